"""The public records of a spec, and the pollution that an experiment mixes into them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from dpsweep.foundation.errors import Mistake
from dpsweep.spec.base import (
    AS_NUMBER,
    Count,
    Part,
    Text,
    given,
    maybe_number,
    peek,
    peek_number,
    seen,
    whole,
)
from dpsweep.spec.data.datasets import Dataset
from dpsweep.spec.data.evaluation import Share

#: What makes records those of another file or dataset.
OF_FILE = ("dataset", "path")
#: Keys that have a meaning beside another file alone.
_BESIDE_FILE = ("num_records", "max_records", "resize", "validation")
_WHERE = "give data.public a fraction, positions, per_class, path or dataset"


def _positions(value: Any) -> Any:
    """Return rows, each once, sorted; the name of a file stays as it is."""
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("must not be empty")
        return value
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"must be a list of rows or the name of a file, got {seen(value)}")
    rows = sorted(whole(entry) for entry in value)
    if not rows:
        raise ValueError("must name a row at least")
    if rows[0] < 0:
        raise ValueError(f"has {rows[0]}, and rows are numbered from 0")
    twice = [row for before, row in pairwise(rows) if row == before]
    if twice:
        raise ValueError(f"has row {twice[0]} twice")
    return tuple(rows)


Positions = Annotated[
    tuple[int, ...] | str,
    BeforeValidator(_positions),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
            ]
        }
    ),
]


class Pollution(Part):
    """Records that do not belong to the task, mixed into the public ones.

    The experiment of Zhao et al. 2020 (https://arxiv.org/abs/1910.01177, section 4.3): a way of
    choosing public records should leave them alone. The paper has 10,000 images of CIFAR-10 among
    40,000 of SVHN, a share of 0.2. An annotator who is asked must say something: a record of
    ``digits`` or of a file is labelled by its class modulo the number of classes, ``noise`` and a
    record without a label by a random class of a public seed.

    Guarantees:
        Made of scikit-learn's digits or of a file that the spec declares public, of public seeds,
        and of the least and the largest value of the public records; no private record is read.
    """

    is_hinted: ClassVar[bool] = False  # `records` is rarely meant to stand here

    records: Count | None = Field(
        default=None, description="How many such records are mixed in, in equal parts."
    )
    share: Annotated[float, Field(gt=0, lt=1), AS_NUMBER] | None = Field(
        default=None,
        description="Instead of records: their share of all public records afterwards; 0.2 in the "
        "paper.",
    )
    kinds: tuple[Literal["digits", "noise"], ...] = Field(
        default=("digits", "noise"),
        description="digits: scikit-learn's handwritten digits, resized; noise: uniform pixels.",
    )
    dataset: Dataset | None = Field(
        default=None, description="Instead of kinds: another dataset, as data.public.dataset."
    )
    path: Text | None = Field(
        default=None,
        description="Instead of kinds: another file of images, which this declares public; they "
        "are resized, and keep their values.",
    )

    @property
    def is_of_file(self) -> bool:
        """Whether the records are those of another file or dataset."""
        return self.dataset is not None or self.path is not None

    def count(self, num_public: int) -> int:
        """Return how many records are mixed into so many public ones.

        >>> Pollution(share=0.2).count(40_000), Pollution(records=7).count(40_000)
        (10000, 7)
        """
        if self.records is not None:
            return self.records
        assert self.share is not None
        return max(1, round(num_public * self.share / (1 - self.share)))

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Check that there is a number of records, and kinds or a file, each once."""
        if not given(raw, "records") and not given(raw, "share"):
            fix = "say how many such records to mix in, in equal parts; or share: 0.2"
            yield Mistake("records", "is missing", fix)
        if given(raw, "records") and given(raw, "share"):
            yield Mistake("share", "stands beside records", "keep one of the two")
        if given(raw, "kinds") and _has_file(raw):
            problem = "has no meaning beside a file: its records are mixed in"
            yield Mistake("kinds", problem, "keep one of the two")
        kinds = raw.get("kinds", ("digits",))
        if not isinstance(kinds, (list, tuple)):
            return
        twice = [kind for index, kind in enumerate(kinds) if kind in kinds[:index]]
        if twice:
            yield Mistake("kinds", f"has {seen(twice[0])} twice", "name each once")
        if not kinds:
            yield Mistake("kinds", "is empty", "remove it, or leave pollution out")


class PublicSpec(Part):
    """Records that are declared public: some of the training source, or those of another file.

    Guarantees:
        Which records are public is a function of positions and of public records alone, so what is
        private stays the same when a private record is emptied in place. With ``per_class`` and no
        file the first records of each class are public, in an order that is fixed before any is
        read: a private record comes after them, and taking it away moves no other. That they need
        no protection is taken from the spec, not checked, and nothing protects them.
    """

    fraction: Share = Field(default=0.0, description="Share of the training source.")
    positions: Positions | None = Field(
        default=None,
        description="Rows of the training source, from 0: a list, or a file with one a line or an "
        "array of numpy (.npy).",
    )
    dataset: Dataset | None = Field(
        default=None,
        description="Another dataset, whose training records are public; null: npz for a path "
        "that ends so, else the study's own kind.",
    )
    path: Text | None = Field(
        default=None, description="Where it is, as data.path; its training records are public."
    )
    num_records: Count | None = Field(
        default=None,
        description="Number of records of a dataset that only reading counts: of text, and of an "
        "installed package's.",
    )
    per_class: Count | None = Field(
        default=None,
        description="Use so many of each class: of the file or the positions; without either, of "
        "the training source, whose other records are private.",
    )
    max_records: Count | None = Field(
        default=None, description="Of a file: use only so many of its records."
    )
    resize: bool = Field(
        default=False,
        strict=True,
        description="Of a file: stretch its images to the size and the colours of the study's.",
    )
    validation: Share = Field(
        default=0.0,
        description="Of a file: share of it that is the validation part, in the place of "
        "data.validation.fraction.",
    )
    labels: Literal["known", "bought", "hidden"] = Field(
        default="known",
        description="known: whoever needs labels of public records reads them; bought: only "
        "active_learning does, one by one; hidden: nobody does, and a file needs none.",
    )
    pollution: Pollution | None = Field(
        default=None,
        description="Records that do not belong to the task, mixed in for an experiment; "
        "null: none.",
    )

    @property
    def is_of_file(self) -> bool:
        """Whether the public records are those of another file or dataset."""
        return self.dataset is not None or self.path is not None

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Check that public records come from one place, and what needs one has it."""
        has_file = _has_file(raw)
        places = [
            ("fraction", _share(raw, "fraction") > 0, "a share of the study's own records"),
            ("positions", given(raw, "positions"), "rows of the study's own records"),
            ("path" if given(raw, "path") else "dataset", has_file, "another file"),
        ]
        sources = [(key, whose) for key, is_there, whose in places if is_there]
        for key, whose in sources[1:]:
            problem = f"is {whose}, and stands beside {sources[0][0]}"
            yield Mistake(key, problem, "keep one of the two")
        if given(raw, "per_class") and sources[:1] and sources[0][0] == "fraction":
            problem = "stands beside fraction, which draws records whatever their class"
            yield Mistake("per_class", problem, "keep one of the two")
        for key in _BESIDE_FILE:
            if raw.get(key) not in (None, False, 0, 0.0) and not has_file:
                problem = "has a meaning beside another file alone"
                yield Mistake(key, problem, "give path or dataset")
        yield from file_rules(raw)
        is_there = bool(sources) or given(raw, "per_class")
        if raw.get("labels", "known") != "known" and not is_there:
            yield Mistake("labels", "are those of public records, and there are none", _WHERE)
        if given(raw, "per_class") and raw.get("labels") in ("bought", "hidden"):
            problem = f"reads the labels of public records, which are {raw['labels']}"
            yield Mistake("per_class", problem, "use max_records, or labels: known")
        if raw.get("labels") == "hidden" and _share(raw, "validation") > 0:
            problem = "is scored by labels, which are hidden"
            yield Mistake("validation", problem, "use labels: bought, or known")
        if given(raw, "pollution") and not is_there:
            yield Mistake(
                "pollution",
                "is mixed into public records, and there are none",
                "set data.public.fraction, or leave it out",
            )


def _share(raw: Mapping[str, Any], key: str) -> float:
    return peek_number(raw, key, default=0.0)


def _has_file(raw: Any) -> bool:
    return any(given(raw, key) for key in OF_FILE)


def file_rules(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield what is wrong about the keys ``dataset`` and ``path`` of a raw section together."""
    dataset = raw.get("dataset")
    if dataset in ("npz", "image_folder", "text") and raw.get("path") is None:
        yield Mistake("path", f"is missing: {dataset} needs it", "name the file or the directory")
    if dataset == "digits" and raw.get("path") is not None:
        yield Mistake("path", "has no meaning for digits", "remove it")


def declares_public(data: Any) -> bool:
    """Say whether a raw section ``data`` declares records public; it may hold anything."""
    public = peek(data, "public")
    names = ("positions", "per_class", *OF_FILE)
    is_named = any(given(public, key) for key in names) if public is not None else False
    return is_named or peek_number(public, "fraction", default=0.0) > 0


def has_public_validation(data: Any) -> bool:
    """Say whether a raw section ``data`` takes its validation part from the public file."""
    return (maybe_number(peek(data, "public", "validation")) or 0) > 0


def without_defaults(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a written section ``data.public`` without keys that say nothing.

    So the specs of studies that are older than a key stay what they are.
    """
    kept = {key: value for key, value in tree.items() if key == "fraction" or _says(key, value)}
    pollution = kept.get("pollution")
    if pollution is not None:
        of_file = any(pollution[key] is not None for key in OF_FILE)
        drop = {"kinds"} if of_file else set()
        kept["pollution"] = {
            key: value for key, value in pollution.items() if value is not None and key not in drop
        }
    return kept


def _says(key: str, value: Any) -> bool:
    default = PublicSpec.model_fields[key].default
    return bool(value != default)
