"""Section ``data.public``: one place of public records, and what makes sense beside it."""

from typing import Any

import pytest
from raw_specs import changed

from dpsweep.foundation.errors import SpecError
from dpsweep.results.coverage import with_caveats
from dpsweep.spec.data.public import declares_public
from dpsweep.spec.facts import describe_all_public, describe_public
from dpsweep.spec.study import DataSpec, SweepSpec

NPZ = {
    "dataset": "npz", "path": "own.npz", "num_records": 900, "num_classes": 3,
    "validation": {"visibility": "public"},
}  # fmt: skip
RAW = {
    "name": "public",
    "data": NPZ,
    "privacy": {"delta": 1e-5, "trial_epsilon": 1.0, "accounting": "unaccounted"},
    "search": {"space": {"method": "dp_sgd"}},
}


@pytest.mark.parametrize(
    ("public", "lines"),
    [
        ({"fraction": 0.1, "path": "o.npz"}, ["public.path: is another file, and stands beside fraction (keep one of the two)"]),
        ({"positions": [1], "dataset": "digits"}, ["public.dataset: is another file, and stands beside positions (keep one of the two)"]),
        ({"fraction": 0.1, "per_class": 2}, ["public.per_class: stands beside fraction, which draws records whatever their class (keep one of the two)"]),
        ({"fraction": 0.1, "resize": True}, ["public.resize: has a meaning beside another file alone (give path or dataset)"]),
        ({"per_class": 2, "max_records": 9}, ["public.max_records: has a meaning beside another file alone (give path or dataset)"]),
        ({"labels": "bought"}, ["public.labels: are those of public records, and there are none (give data.public a fraction, positions, per_class, path or dataset)"]),
        ({"path": "o.npz", "labels": "hidden", "per_class": 3}, ["public.per_class: reads the labels of public records, which are hidden (use max_records, or labels: known)"]),
        ({"path": "o.npz", "labels": "hidden", "validation": 0.1}, ["public.validation: is scored by labels, which are hidden (use labels: bought, or known)"]),
        ({"dataset": "npz"}, ["public.path: is missing: npz needs it (name the file or the directory)"]),
        ({"dataset": "digits", "path": "o"}, ["public.path: has no meaning for digits (remove it)"]),
        ({"path": "./own.npz"}, ["public.path: is the study's own data, of which records are private (name another file, or declare a part of it: fraction, positions or per_class)"]),
        ({"dataset": "text", "path": "o"}, ["public.path: is text, and records of npz are of another kind (give public records as npz has them)"]),
        ({"positions": []}, ["public.positions: must name a row at least"]),
        ({"positions": [1, 1]}, ["public.positions: has row 1 twice"]),
        ({"positions": [-1]}, ["public.positions: has -1, and rows are numbered from 0"]),
        ({"positions": 3}, ["public.positions: must be a list of rows or the name of a file, got 3"]),
        ({"path": "o.npz", "resize": "yes"}, ["public.resize: input should be a valid boolean, got 'yes'"]),
        ({"path": "o.npz", "pollution": {"path": "own.npz", "share": 0.1}}, ["public.pollution.path: is the study's own data, of which records are private (name another file)"]),
        ({"path": "o.npz", "pollution": {"path": "p.npz", "share": 0.1, "records": 3}}, ["public.pollution.share: stands beside records (keep one of the two)"]),
        ({"path": "o.npz", "pollution": {"path": "p.npz", "share": 0.1, "kinds": ["noise"]}}, ["public.pollution.kinds: has no meaning beside a file: its records are mixed in (keep one of the two)"]),
        ({"path": "o.npz", "pollution": {"share": 1.0}}, ["public.pollution.share: must be < 1, got 1"]),
    ],
)  # fmt: skip
def test_mistakes(public: dict[str, Any], lines: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        DataSpec(**NPZ, public=public)
    assert [str(mistake) for mistake in caught.value.mistakes] == lines


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        ({"classes": [0, 1], "public": {"positions": [1]}}, ["public.positions: has no meaning with data.classes, which takes records out class by class (keep one of the two)"]),
        ({"task": "multi_label", "public": {"per_class": 2}}, ["public.per_class: has one class a record, and the task is multi_label (use max_records, or fraction)"]),
        ({"validation": {"visibility": "noisy", "noise_std": 0.1}, "public": {"path": "o.npz", "validation": 0.1}}, ["public.validation: makes public records the validation part, and noisy says it is private (use data.validation.visibility: public)"]),
        ({"dataset": "digits", "path": None, "num_records": None, "num_classes": None, "public": {"dataset": "digits"}}, ["public.dataset: is the study's own data, of which records are private (name another file, or declare a part of it: fraction, positions or per_class)"]),
    ],
)  # fmt: skip
def test_mistakes_beside_other_keys(data: dict[str, Any], lines: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        DataSpec(**{**NPZ, **data})
    assert [str(mistake) for mistake in caught.value.mistakes] == lines


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"data/public": {"path": "o.npz", "labels": "bought"}, "privacy/accounting": "public"}, "data.public.labels: are bought, and a public search trains on them (use known; or accounting: composed)"),
        ({"data/public": {"path": "o.npz", "labels": "hidden"}, "pretrain": {"model": "tanh_cnn"}}, "pretrain.objective: reads the labels of public records, which are hidden (use rotations, which reads none)"),
        ({"data/public": {"fraction": 0.1, "labels": "hidden"}, "episodes": {"ways": 2, "shots": 2}}, "data.public.labels: are hidden, and episodes draw public records by their labels (use known, or leave episodes out)"),
    ],
)  # fmt: skip
def test_mistakes_beside_other_sections(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(SpecError) as caught:
        SweepSpec(**changed(RAW, changes))
    assert line in [str(mistake) for mistake in caught.value.mistakes]


@pytest.mark.parametrize(
    ("public", "words"),
    [
        ({}, ""),
        ({"fraction": 0.2}, ""),
        ({"path": "o.npz"}, "npz o.npz"),
        ({"dataset": "digits", "per_class": 3}, "3 of each class of digits"),
        ({"path": "o.npz", "max_records": 9}, "9 of npz o.npz"),
        ({"positions": [4, 1]}, "2 rows of the data"),
        ({"positions": "r.txt", "per_class": 2}, "2 of each class of rows in r.txt of the data"),
        ({"per_class": 5}, "5 of each class of the data"),
    ],
)
def test_every_place_is_written_and_read_again(public: dict[str, Any], words: str) -> None:
    spec = SweepSpec(**changed(RAW, {"data/public": public}))
    assert SweepSpec.from_yaml(spec.to_yaml()) == spec
    assert spec.to_dict()["data"]["public"].keys() <= {"fraction", *public}
    assert declares_public(spec.data) is bool(public)
    assert declares_public({"public": public}) is bool(public)
    assert describe_public(spec.data) == words
    share = "a share of 0.2 of the data" if public.get("fraction") else ""
    assert describe_all_public(spec.data) == (words or share)


@pytest.mark.parametrize(
    ("public", "words", "files"),
    [
        ({"fraction": 0.2}, "a share of 0.2 of the data, and records of npz p.npz mixed in", "npz p.npz, which is"),
        ({"path": "o.npz"}, "npz o.npz, and records of npz p.npz mixed in", "npz o.npz and npz p.npz, which are"),
    ],
)  # fmt: skip
def test_a_file_of_pollution_is_named_beside_each_claim(
    public: dict[str, Any], words: str, files: str
) -> None:
    """It is declared public like any other: a private record in it has no protection."""
    polluted = {**public, "pollution": {"path": "p.npz", "share": 0.2}}
    spec = SweepSpec(**changed(RAW, {"data/public": polluted}))
    assert describe_public(spec.data) == words
    claim = f"the study; records of {files} declared public, are not covered"
    assert with_caveats(spec, "the study") == claim


def test_pollution_of_a_file_is_written_without_kinds() -> None:
    public = {"path": "o.npz", "pollution": {"path": "p.npz", "share": 0.2}}
    spec = SweepSpec(**changed(RAW, {"data/public": public}))
    assert spec.to_dict()["data"]["public"]["pollution"] == {"path": "p.npz", "share": 0.2}
    assert SweepSpec.from_yaml(spec.to_yaml()) == spec


def test_specs_of_before_are_written_as_they_were() -> None:
    spec = SweepSpec(**RAW)
    assert spec.to_dict()["data"]["public"] == {"fraction": 0.0}
    polluted = SweepSpec(
        **changed(RAW, {"data/public": {"fraction": 0.1, "pollution": {"records": 5}}})
    )
    assert polluted.to_dict()["data"]["public"] == {
        "fraction": 0.1,
        "pollution": {"records": 5, "kinds": ["digits", "noise"]},
    }
