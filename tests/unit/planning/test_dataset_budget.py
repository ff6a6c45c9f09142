"""Studies on one dataset ledger: which records are private must be the same for all of them."""

import dataclasses
import shutil
import tempfile
from pathlib import Path

import pytest
from other_user import without_rights
from whole_studies import make_spec

from dpsweep.foundation.errors import BadInputError, SpecError
from dpsweep.ledgers.dataset import DatasetLedger
from dpsweep.planning.costs.dataset import dataset_left
from dpsweep.planning.preflight import preflight
from dpsweep.spec.study import SweepSpec

PRETRAIN = {"model": "small_resnet", "epochs": 1, "lr": 0.1}


def checked(root, name, data=None, privacy=None, **sections):
    raw = make_spec(root, name, tracking={"uri": None}, **sections)
    raw["data"] = {
        "dataset": "digits",
        "classes": [0, 1, 2, 3],
        "validation": {"fraction": 0.2, "visibility": "public"},
        "test": {"fraction": 0.1, "visibility": "public"},
        "public": {"fraction": 0.1},
        **(data or {}),
    }
    raw["privacy"] = {
        "delta": 1e-5, "trial_epsilon": 1.0, "accounting": "composed", "study_epsilon": 2.0,
        "dataset_ledger": str(root / "digits.budget"), "dataset_epsilon": 20.0,
        "dataset_delta": 1e-4, **(privacy or {}),
    }  # fmt: skip
    return preflight(SweepSpec(**raw))


def launch(study):
    """Charge a study as its first launch does."""
    privacy = study.spec.privacy
    DatasetLedger(privacy.dataset_ledger).reserve(
        study.spec.name, study.spec.name, directory=study.spec.storage.path,
        dataset=study.dataset_name, parts=study.dataset_parts, accounting="composed",
        epsilon=2.0, delta=1e-5, cap_epsilon=20.0, cap_delta=1e-4,
    )  # fmt: skip


def test_studies_that_declare_the_same_share_a_budget(tmp_path):
    launch(checked(tmp_path, "first"))
    same = checked(tmp_path, "second", {"max_private": 300}, seed=3)
    same.check_dataset_budget(None)
    launch(same)


@pytest.mark.parametrize(
    ("key", "data"),
    [
        ("data.classes", {"classes": [3, 2, 1, 4]}),
        ("data.classes", {"classes": None}),
        ("data.validation.fraction", {"validation": {"fraction": 0.1, "visibility": "public"}}),
        (
            "data.validation.visibility",
            {"validation": {"fraction": 0.2, "visibility": "noisy", "noise_std": 0.1}},
        ),
        ("data.test.fraction", {"test": {"fraction": 0.2, "visibility": "public"}}),
        ("data.test.visibility", {"test": {"fraction": 0.1, "visibility": "private"}}),
        ("data.public.fraction", {"public": {"fraction": 0.0}}),
    ],
)
def test_a_study_for_which_other_records_are_private_is_refused(tmp_path, key, data):
    launch(checked(tmp_path, "first"))
    with pytest.raises(BadInputError, match="other records private") as caught:
        checked(tmp_path, "second", data).check_dataset_budget(None)
    assert f"{key}: " in caught.value.message


def test_classes_that_a_study_trains_on_in_the_open_are_not_private_for_another(tmp_path):
    space = {
        "method": "dp_sgd", "model.name": "small_resnet", "model.checkpoint": "pretrain",
        "optim.lr": 1.0, "batch.expected": 64, "train.epochs": 2,
    }  # fmt: skip
    search = {"num_trials": 1, "sampler": "random", "space": space}
    launch(checked(tmp_path, "first", pretrain={**PRETRAIN, "classes": [5, 6]}, search=search))
    with pytest.raises(BadInputError, match=r"pretrain\.classes: \[5, 6\]"):
        checked(tmp_path, "second").check_dataset_budget(None)


def test_a_ledger_that_is_closed_is_told_with_the_spec_and_who_may_open_it():
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    ledger = folder / "digits.budget"
    try:
        launch(checked(folder, "first"))
        for mode in (0o644, 0o600):
            ledger.chmod(mode)
            with without_rights(), pytest.raises(SpecError) as caught:
                checked(folder, "second")
            assert f"privacy.dataset_ledger: {ledger} is closed to you" in str(caught.value)
            assert "chmod g+rw" in str(caught.value)
        ledger.chmod(0o666)
        with without_rights():
            checked(folder, "second")
        (folder / "studies").mkdir(mode=0o777)
        (folder / "studies").chmod(0o777)
        folder.chmod(0o755)  # a new file has no place there; this one is there
        with without_rights():
            checked(folder, "second")
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        (
            {"data": {"test": {"fraction": 0.2, "visibility": "public"}}},
            "would have other records private",
        ),
        ({"privacy": {"dataset_epsilon": 30.0}}, "privacy.dataset_epsilon is 30"),
        ({"privacy": {"study_epsilon": 18.5}}, "does not fit into the dataset's budget"),
    ],
)
def test_what_run_would_refuse_does_not_fit_and_the_reason_is_there(tmp_path, changes, part):
    launch(checked(tmp_path, "first"))
    second = checked(tmp_path, "second", **changes)
    with pytest.raises(BadInputError) as caught:
        second.check_dataset_budget(None)
    left = dataset_left(second, second.declared_epsilon(None))
    assert not left.fits
    assert left.refused == caught.value.message
    assert part in left.refused
    assert str(left).endswith(f"run will refuse it. The reason: {left.refused}.")
    record = left.to_dict()
    assert (record["fits"], record["refused"], record["broken"]) == (False, left.refused, None)


def test_sums_are_exact_as_those_of_a_charge(tmp_path):
    launch(checked(tmp_path, "first"))
    rest = checked(tmp_path, "second", privacy={"study_epsilon": 18.0})
    assert dataset_left(rest, 18.0).fits
    assert dataset_left(rest, 18.0).refused is None
    assert not dataset_left(rest, 18.000000000001).fits


def test_a_study_without_a_price_is_told_what_else_is_wrong(tmp_path):
    launch(checked(tmp_path, "first"))
    second = checked(tmp_path, "second", {"public": {"fraction": 0.0}})
    left = dataset_left(second, None)
    assert not left.fits
    reason = "The reason: this study would have other records private"
    assert f"no price that could be charged, and does NOT fit: run will refuse it. {reason}" in str(
        left
    )
    assert not dataset_left(checked(tmp_path, "third"), None).fits


def test_a_broken_ledger_takes_no_study_and_says_why(tmp_path):
    first = checked(tmp_path, "first")
    launch(first)
    DatasetLedger(first.spec.privacy.dataset_ledger).break_claim("first", "its ledger was lost")
    left = dataset_left(checked(tmp_path, "second"), 2.0)
    assert not left.fits
    assert left.to_dict()["broken"] == "study 'first': its ledger was lost"
    assert not dataclasses.replace(left, is_charged=True).fits
