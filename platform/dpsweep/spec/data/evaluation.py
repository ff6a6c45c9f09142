"""The records that configurations are compared on, and those that the chosen ones are scored on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from dpsweep.foundation.errors import Mistake
from dpsweep.spec.base import (
    AS_NUMBER,
    Part,
    Positive,
    given,
    maybe_number,
    seen,
)
from dpsweep.spec.data.generation import GenerationSpec

Share = Annotated[float, Field(ge=0, lt=1), AS_NUMBER]


#: More noise on an accuracy leaves nothing of it.
MAX_NOISE_STD = 0.5


class ValidationSpec(Part):
    """Records that configurations are compared on, and who may see their exact scores.

    Guarantees:
        ``public`` declares that the validation records need no protection. ``noisy``: every
        released accuracy is exact accuracy + N(0, ``noise_std``^2) and is charged; one record
        changes the accuracy of n records by at most 1/n, so the release is a Gaussian mechanism of
        noise multiplier n * ``noise_std``. ``exact``: the records need protection and get none.
    """

    fraction: Share = Field(
        default=0.2,
        description="Share of the training source; without effect on a dataset that comes with a "
        "validation part of its own.",
    )
    visibility: Literal["public", "noisy", "exact"] = Field(
        description="say whose records these are: `public` (they need no protection), `noisy` "
        "(private; scores get noise and are charged), or `exact` (private, yet scores are exact; "
        "no guarantee covers them)"
    )
    noise_std: Positive | None = Field(
        default=None,
        description="noisy: standard deviation of the noise on a released accuracy; 0.01 is one "
        "point in a hundred.",
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Check that there is noise where it is promised, and only there."""
        visibility = raw.get("visibility")
        if visibility == "noisy" and not given(raw, "noise_std"):
            yield Mistake(
                "noise_std",
                "is missing: noisy scores need the standard deviation of their noise",
                "0.01 is one point of accuracy in a hundred; `dpsweep plan` shows what it costs",
            )
        if visibility in ("public", "exact") and given(raw, "noise_std"):
            yield Mistake(
                "noise_std",
                f"has no meaning for visibility {visibility}: these scores are exact",
                "remove it, or use visibility: noisy",
            )
        if (maybe_number(raw.get("noise_std")) or 0) > MAX_NOISE_STD:
            yield Mistake(
                "noise_std",
                f"must be <= {MAX_NOISE_STD:g}, got {seen(raw['noise_std'])}: an accuracy lies "
                "between 0 and 1",
                "0.01 is one point of accuracy in a hundred",
            )


class TestSpec(Part):
    """Records that the chosen configurations are scored on, once, at the end."""

    __test__: ClassVar[bool] = False  # the name would make pytest collect it

    fraction: Share = Field(
        default=0.0,
        description="Share of the training source; only for a dataset without a test part.",
    )
    visibility: Literal["public", "private"] = Field(
        default="private",
        description="public: the model that each trial delivers is scored, once, at its end; "
        "private: no score on them is released.",
    )
    generation: GenerationSpec | None = Field(
        default=None,
        description="causal_lm with prompt_column: the delivered model also writes a text for each "
        "prompt, which is scored beside the targets; {} for the defaults.",
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Check that what is to be written may be scored."""
        if raw.get("generation") is not None and raw.get("visibility", "private") != "public":
            problem = "scores test records, which are private"
            fix = "set data.test.visibility: public if they need no protection, or remove it"
            yield Mistake("generation", problem, fix)
