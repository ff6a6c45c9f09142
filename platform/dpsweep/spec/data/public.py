"""The public records of a spec, and the pollution that an experiment mixes into them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from dpsweep.foundation.errors import Mistake
from dpsweep.spec.base import (
    Count,
    Part,
    dotted,
    given,
    peek,
    peek_number,
    peek_word,
    seen,
)
from dpsweep.spec.data.evaluation import Share


class Pollution(Part):
    """Records that do not belong to the task, mixed into the public ones.

    The experiment of Zhao et al. 2020 (https://arxiv.org/abs/1910.01177, section 4.3): a way of
    choosing public records should leave them alone. An annotator who is asked must say something:
    ``digits`` are labelled by their digit modulo the number of classes, ``noise`` by a random class
    of a public seed.

    Guarantees:
        Made of scikit-learn's digits, of public seeds, and of the least and the largest value of
        the public records; no private record is read.
    """

    is_hinted: ClassVar[bool] = False  # `records` is rarely meant to stand here

    records: Count = Field(description="say how many such records to mix in, in equal parts")
    kinds: tuple[Literal["digits", "noise"], ...] = Field(
        default=("digits", "noise"),
        description="digits: scikit-learn's handwritten digits, resized; noise: uniform pixels.",
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Check that there are kinds, each once."""
        kinds = raw.get("kinds", ("digits",))
        if not isinstance(kinds, (list, tuple)):
            return
        twice = [kind for index, kind in enumerate(kinds) if kind in kinds[:index]]
        if twice:
            yield Mistake("kinds", f"has {seen(twice[0])} twice", "name each once")
        if not kinds:
            yield Mistake("kinds", "is empty", "remove it, or leave pollution out")


class PublicSpec(Part):
    """Records of the training source that are declared public."""

    fraction: Share = Field(default=0.0, description="Share of the training source.")
    pollution: Pollution | None = Field(
        default=None,
        description="Records that do not belong to the task, mixed in for an experiment; "
        "null: none.",
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Check that there is something to pollute."""
        if given(raw, "pollution") and peek_number(raw, "fraction", default=0.0) <= 0:
            yield Mistake(
                "pollution",
                "is mixed into public records, and there are none",
                "set data.public.fraction, or leave it out",
            )


def pollution_rules(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield what pollution of ``data.public`` demands of the other sections of a raw spec."""
    path = ("data", "public", "pollution")
    if not given(raw, *path):
        return
    if raw.get("episodes") is not None:
        problem = "has no meaning with episodes, which draw records class by class"
        yield Mistake(dotted(path), problem, "keep one of the two")
    if peek_word(raw, "privacy", "accounting") == "public":
        problem = "would be trained on by the search of accounting public"
        yield Mistake(dotted(path), problem, "remove it, or use another accounting")
    pretrain = peek(raw, "pretrain")
    elsewhere = ("checkpoint", "classes", "dataset")
    if pretrain is not None and not any(given(pretrain, key) for key in elsewhere):
        problem = "would be trained on by `pretrain:`, which uses data.public"
        yield Mistake(dotted(path), problem, "remove it, or name pretrain.dataset")
