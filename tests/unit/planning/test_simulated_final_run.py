"""The final run of a simulated study whose search reads other records: it runs, and it costs."""

import pytest
from split_studies import split_spec
from whole_studies import make_spec

from dpsweep.cli.output import Format
from dpsweep.cli.verbs.simulate import _meaning, _simulated_caption, _simulated_row
from dpsweep.planning.costs import composition
from dpsweep.planning.preflight import preflight
from dpsweep.planning.simulation.curves import SyntheticCurves
from dpsweep.planning.simulation.simulate import simulate
from dpsweep.spec.study import SweepSpec
from dpsweep.study.trial import ALL_STARTED

PUBLIC = {
    "data": {
        "dataset": "digits",
        "validation": {"fraction": 0.2, "visibility": "public"},
        "public": {"fraction": 0.3},
    },
    "tracking": {"uri": None},
}


def public(root, **privacy):
    privacy = {"delta": 1e-5, "trial_epsilon": 2.0, "accounting": "public", **privacy}
    return make_spec(root, **PUBLIC, privacy=privacy)


def simulated(raw, policies=("fifo",), **options):
    checked = preflight(SweepSpec(**raw))
    curves = SyntheticCurves(checked.space.parameters, seed=0)
    return checked, simulate(checked, curves, policies=list(policies), **options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_a_public_search_is_followed_by_a_run_that_costs(tmp_path, accountant):
    checked, (fifo,) = simulated(public(tmp_path, accountant=accountant))
    assert fifo.started == fifo.finished == checked.num_trials + 1
    assert 1.9 < fifo.composed_epsilon <= 2.0
    assert (fifo.sampling, fifo.accountant) == ("poisson", accountant)
    row = _simulated_row(fifo, checked, Format.JSON)
    assert row["composed_epsilon"] == fifo.composed_epsilon
    assert row["composed_epsilon_is"] == (
        "that of the final run, after a search on public records, which costs nothing: at most "
        "trial_epsilon=2"
    )
    caption = _simulated_caption(checked, [fifo])
    assert "steps: of all trials, stopped ones included, the final run too." in caption
    assert "best: validation/accuracy as the final run reported it" in caption


def test_the_final_run_is_that_of_the_best_configuration(tmp_path):
    raw = public(tmp_path)
    raw["search"]["space"]["train.epochs"] = {"choice": [1, 2, 4]}
    checked, (fifo,) = simulated(raw, slots=1)
    tasks = [checked.for_public_search().admit(n, v) for n, v in _draws(checked)]
    curves = SyntheticCurves(checked.space.parameters, seed=0)
    final = checked.admit(checked.num_trials, _best(checked, curves))
    assert fifo.steps == sum(len(task.plan) for task in tasks) + len(final.plan)
    assert fifo.composed_epsilon == final.planned_epsilon


def _draws(checked):
    from dpsweep.search.suggestions import Suggestions

    suggestions = Suggestions(checked.spec, checked.space, path=None)
    return [suggestions.ask() for _ in range(checked.num_trials)]


def _best(checked, curves):
    """Return the configuration whose best report is the highest, as a search of fifo picks it."""
    import numpy as np

    def score(number, values):
        length = len(checked.for_public_search().admit(number, values).plan)
        ends = [*range(every(length), length, every(length)), length]
        at = np.array(ends) / length
        return curves.scores(number, values, fractions=at, epsilons=at)[0].max()

    def every(length):
        from dpsweep.study.trial import report_interval

        report = checked.spec.report
        return report_interval(length, report.every_steps, report.points)

    return max(_draws(checked), key=lambda each: score(*each))[1]


@pytest.mark.parametrize("visibility", ["public", "noisy"])
def test_a_search_on_a_fixed_part_ends_with_what_is_declared(tmp_path, visibility):
    noisy = {"validation": {"fraction": 0.2, "visibility": "noisy", "noise_std": 0.1}}
    raw = split_spec(tmp_path, **({"data": noisy} if visibility == "noisy" else {}))
    checked, (fifo,) = simulated(raw)
    assert fifo.started == fifo.finished == 3
    assert fifo.end_reason == ALL_STARTED
    assert fifo.composed_epsilon == 3.0
    assert "all that is declared once its final run (bounded by rdp) has run" in _meaning(checked)


def test_a_configuration_without_room_for_its_final_run_is_infeasible(tmp_path, monkeypatch):
    """Its run on the rest would make more noisy scores than are kept for it."""
    raw = split_spec(tmp_path)
    raw["data"]["validation"] = {"fraction": 0.2, "visibility": "noisy", "noise_std": 0.5}
    raw["report"] = {"every_steps": 1}
    raw["search"]["num_trials"] = 6
    raw["search"]["space"] = {**raw["search"]["space"], "train.epochs": {"choice": [1, 6]}}
    _, (all_kept,) = simulated(raw)
    assert all_kept.infeasible == 0
    monkeypatch.setattr(
        composition, "kept_scores", lambda checked: checked.rest.admission.releases(20)
    )
    _, (few_kept,) = simulated(raw)
    assert few_kept.infeasible > 0
    assert few_kept.steps < all_kept.steps
    assert few_kept.composed_epsilon == all_kept.composed_epsilon == 3.0


def test_stopped_trials_deliver_nothing(tmp_path):
    _, runs = simulated(public(tmp_path), ("fifo", "epsilon_halving"), num_trials=12)
    for run in runs:
        assert run.started == run.finished + run.stopped == 13
        assert run.composed_epsilon > 1.9
        assert run.regret >= 0
