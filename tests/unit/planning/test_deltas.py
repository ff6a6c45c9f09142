"""A delta protects somebody: below 1 / N, derived where it is not given, kept by old studies."""

import numpy as np
import pytest
import yaml
from raw_specs import changed, mistakes

from dpsweep.foundation.errors import StudyError
from dpsweep.ledgers.study import StudyLedger
from dpsweep.planning.preflight import preflight
from dpsweep.spec.deltas import derived_delta
from dpsweep.spec.study import SweepSpec
from dpsweep.study.study import Study


@pytest.fixture
def raw(tmp_path):
    """Return 2,000 declared records, of which 1,500 are private and 500 are validated on."""
    inputs, labels = np.zeros((1900, 4), np.float32), np.zeros(1900, np.int64)
    np.savez(tmp_path / "records.npz", x_train=inputs, y_train=labels)
    return {
        "name": "deltas",
        "data": {
            "dataset": "npz", "path": str(tmp_path / "records.npz"), "num_records": 2000,
            "num_classes": 2, "validation": {"fraction": 0.25, "visibility": "public"},
        },
        "privacy": {"trial_epsilon": 2.0, "accounting": "unaccounted"},
        "search": {"sampler": "random", "num_trials": 2, "space": {"method": "dp_sgd"}},
        "storage": {"path": str(tmp_path / "studies")},
        "tracking": {"uri": None},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("num_records", "delta"),
    [(1, 1e-5), (1797, 1e-5), (10_000, 1e-5), (10_001, 9e-6), (60_000, 1e-6), (10**6, 1e-7)],
)
def test_what_is_derived_is_a_digit_and_at_most_a_tenth_of_one_over_n(num_records, delta):
    assert derived_delta(num_records) == delta
    assert delta <= 0.1 / num_records * (1 + 1e-9)


@pytest.mark.parametrize("delta", [0.4, 1e-3, 1 / 1500])
def test_one_over_n_protects_nobody(raw, delta):
    (said,) = mistakes(preflight, SweepSpec(**changed(raw, {"privacy/delta": delta})))
    assert said.startswith(f"privacy.delta: {delta:g} is not below 1 / 1500 = 0.000667, for 1500 ")
    assert said.endswith("(1e-05, or leave it out)")


def test_just_below_is_taken(raw):
    assert preflight(SweepSpec(**changed(raw, {"privacy/delta": 6e-4}))).spec.privacy.delta == 6e-4


def test_noisy_validation_records_count_and_public_ones_do_not(raw):
    many = {"data/validation/fraction": 0.8, "privacy/delta": 1e-3}  # 400 private, 1600 validation
    assert preflight(SweepSpec(**changed(raw, many)))
    noisy = {**many, "data/validation/visibility": "noisy", "data/validation/noise_std": 0.05}
    (said,) = mistakes(preflight, SweepSpec(**changed(raw, noisy)))
    assert "1 / 1600" in said
    assert "declared validation records" in said


def test_an_episode_is_a_dataset_of_its_own(tmp_path, raw):
    data = {"dataset": "digits", "validation": {"fraction": 0.2, "visibility": "public"}}
    episodes = {"ways": 5, "shots": 4, "number": 2, "queries": 2}
    given = {
        "data": data, "episodes": episodes, "search/space": {
            "method": "dp_sgd", "model.name": "linear", "batch.expected": 10,
        },
    }  # fmt: skip
    spec = changed(raw, given)
    del spec["search"]["sampler"], spec["search"]["num_trials"]
    assert preflight(SweepSpec(**changed(spec, {"privacy/delta": 0.04})))
    (said,) = mistakes(preflight, SweepSpec(**changed(spec, {"privacy/delta": 0.05})))
    assert "1 / 20 = 0.05, for 20 declared private records of one episode" in said


def test_the_cap_of_a_dataset_protects_as_well(raw, tmp_path):
    ledger = {
        "accounting": "composed", "trial_epsilon": 2.0, "study_epsilon": 4.0, "delta": 1e-5,
        "dataset_ledger": str(tmp_path / "d.budget"), "dataset_epsilon": 8, "dataset_delta": 0.01,
    }  # fmt: skip
    (said,) = mistakes(preflight, SweepSpec(**changed(raw, {"privacy": ledger})))
    assert said.startswith("privacy.dataset_delta: 0.01 is not below 1 / 1500")


def test_a_study_that_protects_nobody_may_have_any(raw):
    space = {"search/space": {"method": "non_private"}, "privacy/delta": 0.4}
    assert preflight(SweepSpec(**changed(raw, space)))


def test_every_mistake_is_told_at_once(raw):
    given = {"privacy/delta": 0.4, "data/test": {"visibility": "public"}}
    said = mistakes(preflight, SweepSpec(**changed(raw, given)))
    assert [line.split(":")[0] for line in said] == ["data.test.visibility", "privacy.delta"]


class TestLeftOut:
    def test_it_is_written_and_read_again(self, raw):
        spec = SweepSpec(**changed(raw, {"data/num_records": 60_000}))
        assert (spec.privacy.delta, spec.names_delta) == (1e-6, False)
        again = SweepSpec.from_yaml(spec.to_yaml())
        assert (again.privacy.delta, again.names_delta) == (1e-6, True)
        assert again == spec

    def test_it_is_of_the_published_number_where_none_is_declared(self, raw):
        faces = {"dataset": "celeba", "path": "faces", "task": "multi_label"}
        spec = SweepSpec(**{**raw, "data": {**faces, "validation": {"visibility": "public"}}})
        assert (spec.privacy.delta, spec.names_delta) == (6e-7, False)

    def test_it_is_said(self, raw):
        assert any(
            "privacy.delta is not given: it is 1e-05" in note
            for note in preflight(SweepSpec(**raw)).notes
        )
        given = preflight(SweepSpec(**changed(raw, {"privacy/delta": 1e-5})))
        assert not any("delta" in note for note in given.notes)

    def test_a_study_of_an_earlier_version_goes_on_with_its_own(self, raw, tmp_path):
        """It was launched without a delta and froze 1e-5; the same file must continue it."""
        inputs, labels = np.zeros((20_000, 4), np.float32), np.zeros(20_000, np.int64)
        np.savez(tmp_path / "records.npz", x_train=inputs, y_train=labels)
        raw = changed(raw, {"data/num_records": 20_000})
        assert SweepSpec(**raw).privacy.delta == 5e-6
        old = SweepSpec(**changed(raw, {"privacy/delta": 1e-5}))
        study = Study(old)
        StudyLedger(study.files.ledger).close()
        study.close()
        checked = preflight(SweepSpec(**raw))
        assert checked.spec.privacy.delta == checked.budget.delta == 1e-5
        Study(checked.spec).close()
        frozen = yaml.safe_load((tmp_path / "studies" / "deltas" / "spec.yaml").read_text())
        assert frozen["privacy"]["delta"] == 1e-5
        other = preflight(SweepSpec(**changed(raw, {"privacy/delta": 5e-6})))
        with pytest.raises(StudyError, match="another spec"):
            Study(other.spec)

    def test_an_old_study_with_a_delta_that_protects_nobody_runs_no_further(self, raw):
        old = changed(raw, {"privacy/delta": 1e-2})
        study = Study(SweepSpec(**old))
        StudyLedger(study.files.ledger).close()
        study.close()
        for spec in (old, raw):
            (said,) = mistakes(preflight, SweepSpec(**spec))
            assert "0.01 is not below 1 / 1500" in said

    def test_a_launch_that_was_refused_leaves_no_delta(self, raw):
        Study(SweepSpec(**changed(raw, {"privacy/delta": 1e-7}))).close()
        spec = SweepSpec(**raw)
        assert preflight(spec).spec.privacy.delta == spec.privacy.delta != 1e-7
