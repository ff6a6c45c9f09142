"""How a language model is asked to write, and what its texts are scored by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from dpsweep.foundation.errors import Mistake
from dpsweep.spec.base import AS_NUMBER, AS_WHOLE, Count, Part, seen

Score = Literal["bleu", "rouge_l", "nist", "meteor", "cider"]


class GenerationSpec(Part):
    """The test part's prompts, written on by the model that a trial delivers, once, at its end.

    The settings of Li & Liang 2021 (https://arxiv.org/abs/2101.00190) for E2E are 5 beams and a
    length penalty of 0.9.
    """

    is_hinted: ClassVar[bool] = False

    scores: tuple[Score, ...] = Field(
        default=("bleu", "rouge_l", "nist", "meteor", "cider"),
        description="Scores of the texts, each as test/NAME; they need the extra generation.",
    )
    max_new_tokens: Count = Field(
        default=64, description="Tokens of a text that is written, at most."
    )
    num_beams: Count = Field(default=1, description="1: greedy; more: beam search.")
    length_penalty: Annotated[float, AS_NUMBER] = Field(
        default=1.0, description="Of beam search: above 0, longer texts are preferred."
    )
    no_repeat_ngram_size: Annotated[int, Field(ge=0), AS_WHOLE] = Field(
        default=0, description="No n-gram of this size comes twice in a text; 0: any may."
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Check that there are scores, each once."""
        scores = raw.get("scores", ("bleu",))
        if not isinstance(scores, (list, tuple)):
            return
        twice = [name for index, name in enumerate(scores) if name in scores[:index]]
        if twice:
            yield Mistake("scores", f"has {seen(twice[0])} twice", "name each once")
        if not scores:
            yield Mistake("scores", "is empty", "remove it for all, or leave generation out")
