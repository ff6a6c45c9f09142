"""Studies on one dataset ledger: which records are private must be the same for all of them."""

import shutil
import tempfile
from pathlib import Path

import pytest
from other_user import without_rights
from whole_studies import make_spec

from dpsweep.foundation.errors import BadInputError, SpecError
from dpsweep.ledgers.dataset import DatasetLedger
from dpsweep.planning.preflight import preflight
from dpsweep.spec.study import SweepSpec

PRETRAIN = {"model": "small_resnet", "epochs": 1, "lr": 0.1}


def checked(root, name, data=None, **sections):
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
        "dataset_delta": 1e-4,
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
