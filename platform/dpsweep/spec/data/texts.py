"""The keys of a ``data`` section that texts alone have: pairs, prompts, and names of splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from dpsweep.foundation.errors import Mistake
from dpsweep.spec.base import Part, Text, given, peek, peek_word, seen

#: Keys that have a meaning for texts alone, without those that every text has.
TEXT_KEYS = (
    "text_column",
    "text_pair_column",
    "prompt_column",
    "target_column",
    "truncation",
    "label_column",
    "splits",
)

#: How a record of two texts is cut: as tokenizers of transformers name it.
Truncation = Literal["longest_first", "only_first", "only_second"]


class SplitsSpec(Part):
    """Which splits of a directory of texts are the parts of the data."""

    is_hinted: ClassVar[bool] = False  # `train` and `test` rarely mean these

    train: Text | None = Field(
        default=None, description="Split of the training source; null: train."
    )
    validation: Text | None = Field(
        default=None,
        description="Split that is the validation part; null: validation or val, if it is there "
        "and no other part.",
    )
    test: Text | None = Field(
        default=None,
        description="Split that is the test part; null: test, if it is there and no other part.",
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Check that no split is two parts: its records would be in both."""
        names = [(key, raw[key]) for key in ("train", "validation", "test") if raw.get(key)]
        for index, (key, name) in enumerate(names):
            others = [other for other, earlier in names[:index] if earlier == name]
            if others:
                yield Mistake(key, f"{seen(name)} is {others[0]} already", "name each split once")


def text_rules(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield what is wrong about the keys of texts together."""
    if peek_word(raw, "dataset") != "text":
        return
    is_lm = peek_word(raw, "task") == "causal_lm"
    has_pair, has_prompt = given(raw, "text_pair_column"), given(raw, "prompt_column")
    has_target, is_npz = given(raw, "target_column"), str(raw.get("path")).endswith(".npz")
    is_file = str(raw.get("path")).endswith((".npz", ".csv", ".jsonl"))
    if has_pair and is_lm:
        yield Mistake(
            "text_pair_column",
            "has no meaning for causal_lm, which reads one text after the other",
            "use prompt_column and target_column",
        )
    if (has_prompt or has_target) and not is_lm:
        key = "prompt_column" if has_prompt else "target_column"
        yield Mistake(key, "is for task: causal_lm", "use text_column and text_pair_column")
    for key, other in (("prompt_column", "target_column"), ("target_column", "prompt_column")):
        if given(raw, key) and not given(raw, other):
            yield Mistake(other, f"is missing beside {key}", "name both columns, or neither")
    if has_prompt and raw.get("text_column") not in (None, "text"):
        problem = "has no meaning beside prompt_column and target_column"
        yield Mistake("text_column", problem, "keep text_column, or the two others")
    for key in ("text_pair_column", "prompt_column", "target_column"):
        if is_npz and given(raw, key):
            yield Mistake(
                key, "has no meaning for an .npz file, which holds token ids", "remove it"
            )
    if given(raw, "truncation") and not (has_pair or has_prompt or has_target):
        yield Mistake(
            "truncation",
            "has no meaning for a record of one text, whose end is cut",
            "remove it",
        )
    if given(raw, "test", "generation") and not has_prompt:
        yield Mistake(
            "test.generation",
            "has no prompts to write on",
            "name data.prompt_column and data.target_column, or remove it",
        )
    if given(raw, "splits") and is_file and any(_named(raw)):
        yield Mistake(
            "splits",
            "has no meaning for a file, which is the training source alone",
            "give a directory as data.path",
        )


def _named(raw: Mapping[str, Any]) -> Iterator[str]:
    for part in ("train", "validation", "test"):
        name = peek(raw, "splits", part)
        if isinstance(name, str):
            yield name
