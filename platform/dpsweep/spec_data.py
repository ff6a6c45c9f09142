"""The data section of a spec: which records there are, and which of them are private."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from dpsweep.spec_base import (
    AS_NUMBER,
    AS_WHOLE,
    Count,
    Flaw,
    Part,
    Positive,
    Text,
    given,
    peek_number,
    seen,
    whole,
)

Dataset = Literal["digits", "fashion_mnist", "npz", "image_folder"]

#: Published facts of the built-in datasets: (records of the training source, classes).
BUILT_IN: Mapping[str, tuple[int, int]] = {"digits": (1797, 10), "fashion_mnist": (60_000, 10)}


def _image_size(value: Any) -> Any:
    """Return (height, width); one number stands for a square."""
    sides = list(value) if isinstance(value, (list, tuple)) else [value, value]
    if len(sides) != 2:
        raise ValueError(f"must be one number or [height, width], got {seen(value)}")
    sizes = tuple(whole(side) for side in sides)
    if min(sizes) < 1:
        raise ValueError(f"must be >= 1, got {seen(value)}")
    return sizes


ImageSize = Annotated[
    tuple[int, int],
    BeforeValidator(_image_size),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {
                    "type": "array",
                    "items": {"type": "integer", "minimum": 1},
                    "minItems": 2,
                    "maxItems": 2,
                },
            ]
        }
    ),
]
Share = Annotated[float, Field(ge=0, lt=1), AS_NUMBER]


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
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Flaw]:
        """Check that there is noise where it is promised, and only there."""
        visibility = raw.get("visibility")
        if visibility == "noisy" and not given(raw, "noise_std"):
            yield Flaw(
                ("noise_std",),
                "is missing: noisy scores need the standard deviation of their noise",
                "0.01 is one point of accuracy in a hundred; `dpsweep plan` shows what it costs",
            )
        if visibility in ("public", "exact") and given(raw, "noise_std"):
            yield Flaw(
                ("noise_std",),
                f"has no meaning for visibility {visibility}: these scores are exact",
                "remove it, or use visibility: noisy",
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
        description="public: scored at the end of each trial; private: never scored.",
    )


class PublicSpec(Part):
    """Records of the training source that are declared public."""

    fraction: Share = Field(default=0.0, description="Share of the training source.")


class DataSpec(Part):
    """The dataset, its declared sizes, and which records are private.

    Guarantees:
        Sizes enter sampling rates, normalisers and reports, so all of them are declared or
        published; none is counted from private records.
    """

    dataset: Dataset = Field(
        description="say which data to use: digits, fashion_mnist, npz or image_folder"
    )
    path: Text | None = Field(
        default=None,
        description="npz: the file; image_folder: the directory; fashion_mnist: optional.",
    )
    num_records: Count | None = Field(
        default=None,
        description="Public number of records in the training source (npz, image_folder).",
    )
    num_classes: Annotated[int, Field(ge=2), AS_WHOLE] | None = Field(
        default=None, description="Number of classes (npz); image_folder knows it from its folders."
    )
    image_size: ImageSize | None = Field(
        default=None, description="Size that images are resized to: one number, or [height, width]."
    )
    channels: Literal[1, 3] | None = Field(
        default=None, description="1 (grey) or 3 (colour, the default); image_folder only."
    )
    max_private: Count | None = Field(
        default=None,
        description="Use only this many private records, chosen without looking at them.",
    )
    validation: ValidationSpec = Field(
        description="say which records configurations are compared on, for instance "
        "{fraction: 0.2, visibility: public}"
    )
    test: TestSpec = TestSpec()
    public: PublicSpec = PublicSpec()
    privacy_unit: Literal["example", "user"] = Field(
        default="example", description="Whose data one private record is."
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Flaw]:
        """Check what each dataset needs and that something private is left."""
        if raw.get("privacy_unit") == "user":
            yield Flaw(
                ("privacy_unit",),
                "'user' is not available yet: every guarantee here is for one example",
                "use example; somebody with k examples is protected k times less",
            )
        yield from cls._dataset_rules(raw)
        shares = [
            peek_number(raw, part, "fraction", default=default)
            for part, default in (("validation", 0.2), ("test", 0.0), ("public", 0.0))
        ]
        total = sum(share for share in shares if 0 <= share < 1)
        if total >= 1:
            yield Flaw(
                (),
                "no private record is left: the fractions of validation, test and public add up "
                f"to {total:g}",
                "make their sum smaller than 1",
            )

    @classmethod
    def _dataset_rules(cls, raw: Mapping[str, Any]) -> Iterator[Flaw]:
        dataset = raw.get("dataset")
        if not isinstance(dataset, str):
            return
        needed = {
            "npz": ("path", "num_records", "num_classes"),
            "image_folder": ("path", "num_records", "image_size"),
        }
        for key in needed.get(dataset, ()):
            if raw.get(key) is None:
                yield Flaw((key,), f"is missing: {dataset} needs it", _WHY[key])
        only_for = {
            "path": ("fashion_mnist", "npz", "image_folder"),
            "image_size": ("image_folder",),
            "channels": ("image_folder",),
        }
        for key, datasets in only_for.items():
            known = dataset in BUILT_IN or dataset in needed
            if known and raw.get(key) is not None and dataset not in datasets:
                yield Flaw((key,), f"has no meaning for {dataset}", "remove it")
        if dataset not in BUILT_IN:
            return
        for key, value in zip(("num_records", "num_classes"), BUILT_IN[dataset]):
            if peek_number(raw, key, default=value) != value and raw.get(key) is not None:
                yield Flaw((key,), f"is {value} for {dataset}, got {seen(raw[key])}", "remove it")
        if dataset == "fashion_mnist" and peek_number(raw, "test", "fraction", default=0) > 0:
            yield Flaw(
                ("test", "fraction"),
                "fashion_mnist has a test part of its own",
                "remove it; data.test.visibility: public has it scored",
            )
        if peek_number(raw, "validation", "fraction", default=0.2) == 0:
            yield Flaw(
                ("validation", "fraction"),
                "is 0, so there is nothing to compare configurations on",
                "0.2 is usual",
            )


_WHY = {
    "path": "name the .npz file or the directory",
    "num_records": "declare how many records the training source has; the number becomes public, "
    "and a rounded one is fine",
    "num_classes": "declare the number of classes; counting labels would read private records",
    "image_size": "declare what images are resized to, for instance 32 or [32, 48]",
}
