"""Studies whose noise another version has calibrated: they go on with it, or nothing of them does."""

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from mortal_studies import Killed, MortalStudies
from secret_parts import Seen, run_here, secret_spec
from selections import select_spec

from dpsweep.foundation.errors import InfeasibleBudgetError, StudyError
from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.study_state import read_study_state
from dpsweep.planning import admission
from dpsweep.planning.costs.composition import choose_composition
from dpsweep.planning.costs.selection import choose_selection
from dpsweep.planning.preflight import preflight
from dpsweep.privacy.composition.declared import DeclaredComposition
from dpsweep.privacy.selection.on_subset import SubsetBound, recorded_bound
from dpsweep.results.study import load_sweep
from dpsweep.running.modes import sealed
from dpsweep.running.modes.sealed_final import refuse_other_bound
from dpsweep.running.stage import Stage
from dpsweep.spec.study import SweepSpec
from dpsweep.study.files import StudyFiles
from dpsweep.study.study import Study
from dpsweep.study.trial import TrialState
from dpsweep.sweep import run_sweep
from dpsweep.trainables.methods import dp_sgd

#: What version 0.1.0 has changed at most, and what is none of a trifle.
TRIFLE, MUCH = 3e-10, 1e-3
REFUSAL = "another version of dpsweep has"


@contextmanager
def other_version(monkeypatch, share):
    """Calibrate so much more noise, as another version of dpsweep did."""
    calibrate = dp_sgd.calibrate_noise_schedule
    with monkeypatch.context() as patch:
        patch.setattr(
            dp_sgd, "calibrate_noise_schedule", lambda *a, **k: calibrate(*a, **k) * (1 + share)
        )
        yield patch


def begin_elsewhere(studies, monkeypatch, share, trials=1):
    """Let another version run so many trials, and kill it as the next one is admitted."""
    with other_version(monkeypatch, share) as patch:
        admit = Stage.admit

        def mortal(stage, task):
            if task.trial == trials:
                raise Killed
            return admit(stage, task)

        patch.setattr(Stage, "admit", mortal)
        assert studies.launch(chance=0.0) == "killed"


def events_of(plan):
    return {(run.part, run.event) for run in plan.runs}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("accounting", ["declared", "prefix", "probe"])
def test_new_trials_of_a_begun_study_run_the_declared_events(tmp_path, monkeypatch, accounting):
    studies = MortalStudies(tmp_path, 0, monkeypatch, accounting=accounting)
    begin_elsewhere(studies, monkeypatch, TRIFLE)
    files = StudyFiles.of(studies.spec)
    composition = read_study_state(files.ledger).account.composition
    assert choose_composition(preflight(studies.spec)) != composition
    assert studies.launch(chance=0.0) == "ran"
    result = load_sweep("mortal", root=studies.study.parent)
    assert (result.state, result.claims.downgraded) == ("finished", None)
    assert not [r for r in read_log(files.journal) if r["event"] == "trial_infeasible"]
    assert read_study_state(files.ledger).account.composition == composition
    declared = {(c.part, c.event) for c in composition.classes}
    (ran,) = studies.ran.values()
    assert len(ran) >= 3
    for trial in result.results:
        task = files.task(trial.trial_id)
        assert events_of(task.full_plan) <= declared
        assert events_of(ran[trial.trial_id]) <= declared
    assert studies.check() == "claimed"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("accounting", ["declared", "prefix", "probe"])
def test_much_other_noise_is_refused_before_anything_runs(tmp_path, monkeypatch, accounting):
    studies = MortalStudies(tmp_path, 0, monkeypatch, accounting=accounting)
    begin_elsewhere(studies, monkeypatch, MUCH)
    files, before = StudyFiles.of(studies.spec), studies.num_run
    kept = {p: p.read_bytes() for p in (files.journal, files.spec, *files.ledger.glob("trial*"))}
    told = studies.launch(chance=0.0)
    assert told.startswith(f"refused: {REFUSAL} calibrated this study's noise ("), told
    assert " here, " in told
    assert " there)" in told
    assert studies.num_run == before
    assert kept == {path: path.read_bytes() for path in kept}


def test_a_method_of_another_package_is_not_asked_to_run_other_noise(tmp_path, monkeypatch):
    """Its process may take its noise from elsewhere than its plan."""
    studies = MortalStudies(tmp_path, 0, monkeypatch, accounting="declared")
    begin_elsewhere(studies, monkeypatch, TRIFLE)
    monkeypatch.setattr(admission, "is_outside", lambda method: True)
    assert studies.launch(chance=0.0).startswith(f"refused: {REFUSAL}")


def want(studies, monkeypatch, num_trials):
    spec = studies.spec
    search = spec.search.model_copy(update={"num_trials": num_trials})
    monkeypatch.setattr(
        MortalStudies, "spec", property(lambda self: spec.model_copy(update={"search": search}))
    )


@pytest.mark.slow
def test_a_study_that_has_finished_stays_so(tmp_path, monkeypatch):
    """Its budget was used up before all of the wanted trials had begun."""
    studies = MortalStudies(tmp_path, 0, monkeypatch, accounting="declared")
    want(studies, monkeypatch, 30)
    with other_version(monkeypatch, MUCH):
        assert studies.launch(chance=0.0) == "ran"
    assert 3 < len(load_sweep("mortal", root=studies.study.parent).view.trials) < 30
    assert studies.launch(chance=0.0) == "ran"


def test_a_study_whose_trials_have_all_begun_needs_no_plan(tmp_path, monkeypatch):
    studies = MortalStudies(tmp_path, 0, monkeypatch, accounting="declared")
    begin_elsewhere(studies, monkeypatch, MUCH, trials=2)
    want(studies, monkeypatch, 2)
    assert studies.launch(chance=0.0) == "ran"
    assert load_sweep("mortal", root=studies.study.parent).state == "finished"


def test_declared_noise_that_costs_too_much_here_is_not_run(tmp_path, monkeypatch):
    studies = MortalStudies(tmp_path, 0, monkeypatch, accounting="declared")
    checked = preflight(studies.spec)
    task = checked.sample[0]
    (run,) = task.plan.runs
    less = replace(run.event, noise_multiplier=run.event.noise_multiplier * (1 - 9e-7))
    plan = replace(task.plan, runs=(replace(run, event=less),))
    assert checked.admission.epsilon(plan) > checked.budget.target_epsilon
    low = DeclaredComposition.of([(plan, 3)], target_epsilon=5.0, delta=1e-4)
    with pytest.raises(InfeasibleBudgetError, match="the plan costs"):
        replace(checked, composition=low).admit(0, {"method": "dp_sgd", **task.hparams})


# --- Selections ---------------------------------------------------------------------------------


@pytest.fixture
def private(tmp_path, monkeypatch):
    run_here(tmp_path, monkeypatch)


def kill(*args, **more):
    raise Killed


def kill_at(patch, where):
    """Kill a launch when all trials have ended, or as the second is admitted: as it is written."""
    if where == "final":
        patch.setattr(sealed, "begin_final", kill)
        return
    if where == "written":
        write = Study.write_task
        patch.setattr(Study, "write_task", lambda s, t: [write(s, t), t.trial and kill()])
        return
    admit = Stage.admit
    patch.setattr(Stage, "admit", lambda s, task: kill() if task.trial else admit(s, task))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("where", ["final", "second", "written"])
def test_a_search_on_a_secret_part_ends_within_the_bound_on_record(
    private, tmp_path, monkeypatch, where
):
    spec = SweepSpec(**secret_spec(tmp_path))
    seen = Seen(monkeypatch)
    with other_version(monkeypatch, TRIFLE) as patch:
        kill_at(patch, where)
        with pytest.raises(Killed):
            run_sweep(spec)
    checked = preflight(spec)
    record = read_study_state(StudyFiles.of(spec).ledger).selection
    bound = recorded_bound(record)
    assert isinstance(bound, SubsetBound)
    assert not bound.covers(checked.sample[0].full_plan)
    num_begun = len(seen.tasks)
    result = run_sweep(spec)
    assert result.state == "finished"
    *trials, final = seen.tasks
    assert len(trials) >= 3
    assert all(bound.covers(task.full_plan) for task in trials)
    assert bound.covers_final(final.full_plan)
    planned = checked.with_final(bound.final_epsilon).final_of(0, trials[-1])
    for task, before in [(final, planned), *[(t, checked.sample[0]) for t in trials[num_begun:]]]:
        noise, own = (p.runs[0].event.noise_multiplier for p in (task.plan, before.plan))
        assert own < noise <= own * (1 + 1e-6)
    assert result.study_statement().epsilon == record["epsilon"] <= 3.0


@pytest.mark.parametrize("where", ["final", "second"])
def test_a_final_run_over_the_bound_is_refused_before_the_search_goes_on(
    private, tmp_path, monkeypatch, where
):
    spec = SweepSpec(**secret_spec(tmp_path))
    with other_version(monkeypatch, MUCH) as patch:
        kill_at(patch, where)
        with pytest.raises(Killed):
            run_sweep(spec)
    seen = Seen(monkeypatch)
    with pytest.raises(StudyError, match=REFUSAL):
        run_sweep(spec)
    assert (seen.stages, seen.tasks) == ([], [])
    with other_version(monkeypatch, MUCH):
        assert run_sweep(spec).state == "finished"


def test_a_selection_takes_a_trifle_more_noise_to_be_within_its_bound(
    private, tmp_path, monkeypatch
):
    spec = select_spec(tmp_path)
    for share, error in ((TRIFLE, None), (MUCH, REFUSAL)):
        spec = spec.model_copy(update={"name": f"by-{share:g}"})
        with other_version(monkeypatch, share) as patch:
            kill_at(patch, "second")
            with pytest.raises(Killed):
                run_sweep(spec)
        if error is None:
            assert run_sweep(spec).state == "finished"
        else:
            with pytest.raises(StudyError, match=error):
                run_sweep(spec)


def test_a_bound_of_this_version_gives_nobody_more_noise(tmp_path, monkeypatch):
    checked = preflight(select_spec(tmp_path))
    charge = choose_selection(checked)
    task = checked.sample[0]
    (run,) = task.plan.runs
    less = replace(run.event, noise_multiplier=run.event.noise_multiplier * (1 - 1e-8))
    dearer = replace(task, plan=replace(task.plan, runs=(replace(run, event=less),)))
    assert charge.admitted(checked, task) is task
    assert charge.admitted(checked, dearer) is None
    (raised,) = replace(charge, is_recalibrated=True).admitted(checked, dearer).plan.runs
    assert less.noise_multiplier < raised.event.noise_multiplier
    assert charge.bound.covers(replace(task, plan=replace(task.plan, runs=(raised,))).full_plan)


def test_a_selection_does_not_go_on_with_half_of_its_space(private, tmp_path, monkeypatch):
    """Its theorem asks for one distribution; draws of the other half would all be refused."""
    space = {
        "method": "dp_sgd", "optim.lr": {"loguniform": [0.1, 4]}, "train.max_steps": 4,
        "noise.target_epsilon": {"choice": [0.5, 1.0]},
    }  # fmt: skip
    spec, seen = select_spec(tmp_path, space=space), Seen(monkeypatch)
    with other_version(monkeypatch, MUCH) as patch:
        kill_at(patch, "second")
        with pytest.raises(Killed):
            run_sweep(spec)
    before = len(seen.tasks)
    with pytest.raises(StudyError, match=REFUSAL):
        run_sweep(spec)
    assert len(seen.tasks) == before


@pytest.mark.parametrize("state", [TrialState.FINISHED, TrialState.FAILED])
def test_whether_a_sealed_trial_failed_changes_no_refusal(state):
    """It fails where its model diverges, which private records decide."""
    charge = SimpleNamespace(
        is_recalibrated=True, admits=lambda *_: True, has_final=lambda _, task: task != "uncovered"
    )
    launch = SimpleNamespace(selection=charge, checked=SimpleNamespace(sample=[], rest=object()))
    files = SimpleNamespace(task=lambda number: "uncovered")
    view = SimpleNamespace(trials={0: SimpleNamespace(state=state)})
    study = SimpleNamespace(view=view, files=files)
    stage = SimpleNamespace(study=study, ledger=SimpleNamespace(admitted={0}))
    with pytest.raises(StudyError, match=REFUSAL):
        refuse_other_bound(launch, stage, 5)
