"""A public search: which configuration its final run has, and what may be said before its end."""

from types import SimpleNamespace

import pytest
from public_studies import PublicStudy

from dpsweep.privacy.modes import FINAL_RUN
from dpsweep.running.ending import Ending
from dpsweep.running.modes import searching
from dpsweep.study.events import StudyDowngraded
from dpsweep.study.study import Observer
from dpsweep.study.trial import TrialReport, TrialState
from dpsweep.trainables.data.supplies import NO_SUPPLIES


@pytest.fixture
def public(tmp_path):
    study = PublicStudy(tmp_path)
    yield study
    study.study.close()
    study.ledger.close()


def test_the_final_run_has_the_winners_configuration_with_its_nulls(public, monkeypatch):
    ran = []

    def execute(source, stage):
        ran.append(source.next_task(num_running=0))
        return "interrupted"

    public.run(monkeypatch, execute)
    (final,) = ran
    assert final.hparams == public.searched.hparams
    assert final.hparams["noise.noise_multiplier"] is None
    assert len(final.plan) == len(public.searched.plan) == 40
    (noise,) = {run.event.noise_multiplier for run in final.plan.runs}
    assert noise != 20
    trials = public.result.results
    assert trials[0].config == trials[1].config
    assert trials[0].config["noise.noise_multiplier"] is None  # another run of it is the same one


@pytest.mark.parametrize("state", [TrialState.RUNNING, TrialState.FAILED])
def test_a_final_run_that_has_not_finished_is_claimed_at_all_that_it_may_cost(
    public, monkeypatch, state
):
    """Who stops it may have looked at its scores; so what it happened to spend bounds nothing."""

    def execute(source, stage):
        final = source.next_task(num_running=0)
        public.charge(final, 4)
        public.report(final, stage, 4, done=False)
        if state is TrialState.FAILED:
            failed = TrialReport(final.trial, 4, {}, 0.4, charged=4, done=True, failure="died")
            stage.on_report(failed)
            stage.on_end(final.trial)
        return "interrupted"

    public.run(monkeypatch, execute)
    result = public.result
    final = result.results[1]
    assert final.state is state
    assert final.epsilon < 1
    claim = result.study_statement()
    assert (claim.epsilon, claim.sampling) == (2.0, final.statement.sampling)
    assert claim.released.startswith(FINAL_RUN)
    assert "epsilon <= 2" in claim.one_line() or "epsilon=2" in claim.one_line()


def test_a_final_run_that_has_finished_is_claimed_at_what_it_cost(public, monkeypatch):
    def execute(source, stage):
        final = source.next_task(num_running=0)
        public.charge(final, len(final.plan))
        public.report(final, stage, len(final.plan), done=True)
        stage.on_end(final.trial)
        return "finished"

    public.run(monkeypatch, execute)
    result = public.result
    claim = result.study_statement()
    assert claim == result.results[1].statement
    assert 1.9 < claim.epsilon <= 2.0


def test_the_search_is_handed_public_records_alone(public, monkeypatch):
    handed = []

    def search(launch, checked, data):
        handed.append((data, checked.records))
        return Ending("interrupted")

    monkeypatch.setattr(searching, "_search", search)
    launch = SimpleNamespace(
        study=public.study, observer=Observer(), checked=public.checked, ledger=public.ledger,
        data=SimpleNamespace(for_public_search=lambda with_test: ("public", with_test)),
    )  # fmt: skip
    searching.run_public(launch)
    assert handed == [(("public", True), "public")]


def test_a_search_labels_epsilons_by_the_mode_that_holds_when_a_trial_ends(public, monkeypatch):
    """What is asked at each end: a claim may be given up while the search goes on."""

    class Enough(Exception):
        pass

    labels = []

    def suggestions(*args, meaning, **more):
        labels.append(meaning())
        public.study.write(StudyDowngraded("a reason"))
        labels.append(meaning())
        raise Enough

    monkeypatch.setattr(searching, "prefetch", lambda *args: None)
    monkeypatch.setattr(searching, "Suggestions", suggestions)
    launch = SimpleNamespace(
        study=public.study, observer=Observer(), ledger=public.ledger, target=None,
        stage=lambda *args, **more: SimpleNamespace(replay=lambda first: None),
        policy=lambda: None, supplies=NO_SUPPLIES, data=None,
    )  # fmt: skip
    with pytest.raises(Enough):
        searching._search(launch, public.checked, None)
    before, after = labels
    assert ", public, a model that no private record was used for" in before
    assert after == before.replace(", public, ", ", unaccounted, ")
