"""A claim is what the ledger enforced: whoever edits a spec afterwards is told nothing."""

import shutil
from pathlib import Path

import pytest
import yaml
from whole_studies import make_spec

from dpsweep.foundation.errors import LedgerError
from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import TrialLedger, trial_file
from dpsweep.planning.costs.composition import choose_composition
from dpsweep.planning.preflight import preflight
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.events import EventRun, Gaussian, Plan
from dpsweep.results.coverage import CUT_SHORT, noise_of_scores
from dpsweep.results.study import load_sweep
from dpsweep.results.study_card import card
from dpsweep.running import entries
from dpsweep.spec.study import SweepSpec
from dpsweep.study.events import TrialStarted
from dpsweep.study.launched import enforced_terms
from dpsweep.study.study import Study
from dpsweep.study.trial import TrialReport, TrialState

OLD = Path(__file__).parents[2] / "golden" / "old_studies"
PRIVACY = {
    "composed": {"accounting": "composed", "study_epsilon": 4.2},
    "unaccounted": {"accounting": "unaccounted"},
    "public": {"accounting": "public"},
}


def launched(root, mode, *, terms=True):
    """Launch a study of no trials and leave it; ``terms=False`` as older versions did."""
    privacy = {"delta": 1e-5, "trial_epsilon": 2.0, **PRIVACY[mode]}
    raw = make_spec(root, "claimed", tracking={"uri": None}, privacy=privacy)
    raw["data"]["public"] = {"fraction": 0.2}
    spec = SweepSpec(**raw)
    study = Study(spec)
    ledger = StudyLedger(study.files.ledger, terms=enforced_terms(spec) if terms else None)
    chosen = choose_composition(preflight(spec))
    if chosen is not None:
        ledger.open_composition(lambda: chosen)
    ledger.close()
    study.close()
    return study.files


def edited(files, **privacy):
    tree = yaml.safe_load(files.spec.read_text())
    tree["privacy"] |= privacy
    files.spec.write_text(yaml.safe_dump(tree))
    return load_sweep("claimed", root=files.path.parent)


def test_the_claim_of_a_composed_study_is_its_filters(tmp_path):
    files = launched(tmp_path, "composed")
    result = load_sweep("claimed", root=files.path.parent)
    assert result.study_statement().epsilon == 4.2


def test_before_the_first_charge_the_sampling_is_that_of_its_plan(tmp_path):
    """It was none, and "none sampling", beside the study's whole epsilon."""
    result = load_sweep("claimed", root=launched(tmp_path, "composed").path.parent)
    claim = result.study_statement()
    assert claim.sampling == "sampling of its plan"
    assert f"{claim.neighboring_relation}, sampling of its plan, unit: example" in claim.one_line()
    assert "sampling=of its plan, " in claim.line()
    assert "sampling sampling" not in repr(result)
    assert "none sampling" not in repr(result)
    for text in (result.claims.caption(), result.claims.brief()):
        assert "of its plan" in text
    assert "batch sampling: of its plan; accountant" in card(result)


@pytest.mark.parametrize("terms", [True, False])
@pytest.mark.parametrize(
    ("mode", "change"),
    [
        ("composed", {"study_epsilon": 2.5}),
        ("composed", {"delta": 1e-9}),
        ("composed", {"accounting": "public", "study_epsilon": None}),
        ("unaccounted", {"accounting": "composed", "study_epsilon": 2.5}),
        ("public", {"trial_epsilon": 0.5}),
    ],
)
def test_an_edited_spec_claims_nothing(tmp_path, mode, change, terms):
    files = launched(tmp_path, mode, terms=terms)
    text = files.spec.read_text()
    if terms or mode == "composed":
        with pytest.raises(LedgerError, match="the spec of the study is not the one"):
            edited(files, **change)
    else:  # nothing on record to compare with, and nothing that has run: no claim either
        assert edited(files, **change).study_statement() is None
    files.spec.write_text(text)
    assert load_sweep("claimed", root=files.path.parent).view.trials == {}


def test_a_launch_with_both_specs_edited_is_refused(tmp_path):
    files = launched(tmp_path, "composed")
    text = files.spec.read_text()
    files.spec.write_text(text.replace("study_epsilon: 4.2", "study_epsilon: 2.5"))
    spec = SweepSpec.from_yaml(files.spec)
    study = Study(spec)
    with pytest.raises(LedgerError, match=r"study_epsilon is 2.5, and .* launched with 4.2"):
        StudyLedger(files.ledger, terms=enforced_terms(spec))
    study.close()


def test_two_private_runs_of_a_public_search_claim_nothing(tmp_path):
    files = launched(tmp_path, "public")
    spec = SweepSpec.from_yaml(files.spec)
    checked, study = preflight(spec), Study(spec)
    ledger = StudyLedger(files.ledger)
    task = checked.admit(0, {"method": "dp_sgd", "train.max_steps": 3})
    for number in (0, 1):
        ledger.reserve(number, task.full_plan, epsilon=task.planned_epsilon)
        trial = TrialLedger(trial_file(files.ledger, number), budget=None, accountant="rdp")
        trial.charge(0, 3, task.charges)
        trial.close()
        study.write(TrialStarted(number, {}, {"steps": 3}, {"dp.sampling": "poisson"}))
    ledger.close()
    study.close()
    result = load_sweep("claimed", root=files.path.parent)
    assert result.claims.downgraded == "more than one trial has read private records"
    assert result.study_statement() is None


def ended(root, mode, *, step, reason):
    """Return a study of one private trial of six steps that has finished at a step."""
    files = launched(root, mode)
    spec = SweepSpec.from_yaml(files.spec)
    study, ledger = Study(spec), StudyLedger(files.ledger)
    checked = preflight(spec)
    task = checked.admit(0, {"method": "dp_sgd", "train.max_steps": 6})
    study.write_task(task)
    ledger.reserve(0, task.full_plan, epsilon=task.planned_epsilon)
    trial = TrialLedger(trial_file(files.ledger, 0), budget=None, accountant="rdp")
    trial.charge(0, step, task.charges.slice(0, step))
    trial.close()
    study.write(entries.trial_started(spec, task))
    spent = epsilon_of(task.charges.slice(0, step), delta=1e-5, accountant="rdp")
    report = TrialReport(0, step, {}, spent, done=True, charged=step, value=0.5)
    released = entries.released_in_the_end(
        spec, study.view.trials[0], TrialState.FINISHED, reason, step
    )
    study.write_end(report, TrialState.FINISHED, reason, released=released, artifacts=[])
    ledger.settle(0, "finished", at_least=step)
    ledger.close()
    study.close()
    return load_sweep("claimed", root=files.path.parent), spent, released


@pytest.mark.parametrize("mode", list(PRIVACY))
def test_a_model_that_diverged_does_not_end_a_claim_early(tmp_path, mode):
    """Where it did depends on the records, so what the plan may spend is claimed."""
    result, spent, released = ended(tmp_path, mode, step=3, reason="diverged: at step 3")
    trial = result.trial(0)
    assert released.startswith(CUT_SHORT)
    if mode == "public":
        assert result.study_statement().epsilon == trial.statement.epsilon == 2.0
        assert "for information" not in result.claims.brief() + trial.statement.released
    else:
        assert trial.statement.epsilon == spent < 2.0
        assert trial.statement.released.startswith(CUT_SHORT)
        for words in (result.claims.brief(), result.claims.caption()):
            assert "Diverged trials: what they have spent, for information." in words


@pytest.mark.parametrize("mode", list(PRIVACY))
@pytest.mark.parametrize("reason", ["plan complete", "diverged: at step 6"])
def test_a_trial_that_ran_its_plan_is_claimed_for_what_it_spent(tmp_path, mode, reason):
    result, spent, released = ended(tmp_path, mode, step=6, reason=reason)
    statement = result.trial(0).statement
    assert statement.epsilon == spent <= 2.0
    assert "for information" not in released + statement.released + result.claims.brief()
    if mode == "public":
        assert result.study_statement().epsilon == spent


def test_terms_beside_one_trial_are_those_of_that_trial(tmp_path, monkeypatch):
    """One on public records draws no private one, whatever the others do."""
    shutil.copytree(OLD, tmp_path / "studies")
    monkeypatch.chdir(tmp_path)
    result = load_sweep("public", root=tmp_path / "studies")
    kinds = {view.records: number for number, view in result.view.trials.items()}
    words = {kind: result.claims.brief({number}) for kind, number in kinds.items()}
    assert "sampling=none" in words["public"]
    assert "sampling=poisson" in words["private"]
    assert "sampling=poisson" in result.claims.caption(set(result.view.trials))
    assert "sampling=none" in result.claims.caption({kinds["public"]})


def test_noisy_scores_are_said_to_be_noisy(tmp_path):
    raw = make_spec(tmp_path, "noisy")
    assert noise_of_scores(SweepSpec(**raw)) == []
    raw["data"]["validation"] |= {"visibility": "noisy", "noise_std": 0.05}
    (words,) = noise_of_scores(SweepSpec(**raw))
    assert "standard deviation 0.05: one may be above 1" in words


def test_what_is_composed_has_its_own_terms_beside_one_trial(tmp_path):
    """Trials of two samplings compose to a mixed one, whichever of them is shown."""
    files = launched(tmp_path, "unaccounted")
    spec = SweepSpec.from_yaml(files.spec)
    study, ledger = Study(spec), StudyLedger(files.ledger)
    checked = preflight(spec)
    for number, rate in enumerate((64, None)):
        hparams = {"method": "dp_sgd", "train.max_steps": 6}
        hparams |= {} if rate is None else {"batch.expected": rate}
        task = checked.admit(number, hparams)
        study.write_task(task)
        ledger.reserve(number, task.full_plan, epsilon=task.planned_epsilon)
        trial = TrialLedger(trial_file(files.ledger, number), budget=None, accountant="rdp")
        plan = task.charges if rate else Plan((EventRun(Gaussian(40.0), 6),))
        trial.charge(0, 6, plan)
        trial.close()
        study.write(entries.trial_started(spec, task))
    ledger.close()
    study.close()
    claims = load_sweep("claimed", root=files.path.parent).claims
    for number, sampling in enumerate(("poisson", "full_batch")):
        words = claims.brief({number})
        assert f"sampling={sampling}, rdp" in words.partition("For indication")[0]
        assert "sampling=mixed, rdp" in words.partition("For indication")[2]
    assert claims.brief().count("sampling=") == 1
