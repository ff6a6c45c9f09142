"""Plans: positions, slices, the file format and its mistakes."""

from __future__ import annotations

import json

import dp_accounting
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy import rdp
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import (
    EventRun,
    Gaussian,
    Laplace,
    NonPrivate,
    Plan,
    PoissonGaussian,
    PoissonSubset,
    RepeatAndSelect,
    to_dp_event,
)

amounts = st.floats(min_value=1e-3, max_value=1e3)
simple = st.one_of(
    st.builds(PoissonGaussian, amounts, st.floats(min_value=0, max_value=1)),
    st.builds(Gaussian, amounts),
    st.builds(Laplace, amounts),
    st.just(NonPrivate()),
)
PARTS = ["private", "validation", "public"]
phases = st.sampled_from(["train", "normalize"])
runs = st.builds(EventRun, simple, st.integers(1, 50), phases, st.sampled_from(PARTS))
simple_plans = st.builds(Plan, st.lists(runs, max_size=6).map(tuple))
selected = st.builds(
    RepeatAndSelect,
    st.floats(min_value=1, max_value=100),
    st.one_of(st.just("poisson"), st.floats(min_value=0, max_value=5)),
    simple_plans.map(lambda plan: plan.labelled("private")),
)
on_subsets = st.builds(
    PoissonSubset,
    st.floats(min_value=1e-3, max_value=1),
    simple_plans.filter(len).map(lambda plan: plan.labelled("private")),
)
plans = st.builds(
    lambda plan, extra: plan + Plan(tuple(EventRun(event) for event in extra)),
    simple_plans,
    st.lists(st.one_of(selected, on_subsets), max_size=2),
)


@given(plans)
def test_a_plan_survives_json_exactly(plan: Plan) -> None:
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@given(simple_plans, st.data())
def test_slices_partition_the_positions(plan: Plan, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(plan)))
    head, tail = plan.slice(0, cut), plan.slice(cut, len(plan))
    assert len(head) == cut
    assert (head + tail).merged() == plan.merged()
    events = [run.event for run in plan.runs for _ in range(run.count)]
    assert [plan.at(t) for t in range(len(plan))] == events
    assert len(plan.merged()) == len(plan)


def positions(plan: Plan) -> list:
    return [(run.event, run.phase, run.part) for run in plan.runs for _ in range(run.count)]


@given(simple_plans, st.data())
def test_parts_survive_cuts_and_merging(plan: Plan, data: st.DataObject) -> None:
    assert positions(plan.merged()) == positions(plan)
    start = data.draw(st.integers(0, len(plan)))
    stop = data.draw(st.integers(start, len(plan)))
    assert positions(plan.slice(start, stop)) == positions(plan)[start:stop]
    for part in PARTS:
        assert positions(plan.part(part)) == [p for p in positions(plan) if p[2] == part]
        assert positions(plan.labelled(part)) == [(e, f, part) for e, f, _ in positions(plan)]


def test_only_a_part_that_is_not_private_is_written_down() -> None:
    plan = Plan((EventRun(Gaussian(5.0), 2), EventRun(Gaussian(5.0), 3, "score", "validation")))
    assert plan.to_json() == [
        {"event": "gaussian", "noise_multiplier": 5.0, "count": 2},
        {
            "event": "gaussian",
            "noise_multiplier": 5.0,
            "count": 3,
            "phase": "score",
            "part": "validation",
        },
    ]
    both = Plan((EventRun(Gaussian(5.0), 2), EventRun(Gaussian(5.0), 3, part="validation")))
    assert both.merged() == both, "equal events on different records are not one run"
    with pytest.raises(BadInputError, match=r"part must be one of .*did you mean 'validation'"):
        EventRun(Gaussian(1.0), part="validaton")


def test_a_selection_is_about_one_part() -> None:
    scores = Plan((EventRun(Gaussian(5.0), part="validation"),))
    with pytest.raises(BadInputError, match="no part of their own"):
        RepeatAndSelect(10, 1, scores)
    segment = {"event": "repeat_and_select", "mean": 10, "shape": 1, "of": scores.to_json()}
    with pytest.raises(BadInputError, match="segment 0: the events inside repeat_and_select"):
        Plan.from_json([segment])
    inner = scores.labelled("private").to_json()
    plan = Plan.from_json([{**segment, "of": inner, "part": "validation"}])
    assert len(plan.part("validation")) == 1


def test_public_events_are_neither_sampled_nor_private() -> None:
    public = EventRun(PoissonGaussian(1, 0.1), part="public")
    assert Plan((public, EventRun(Gaussian(1)))).sampling == "full_batch"
    assert Plan((public,)).sampling == "none"
    assert Plan((EventRun(NonPrivate(), part="public"),)).is_private
    assert not Plan((EventRun(NonPrivate(), part="validation"),)).is_private


def test_to_dp_event_is_about_one_part() -> None:
    plan = Plan((EventRun(Gaussian(5.0)), EventRun(Gaussian(9.0), part="validation")))
    with pytest.raises(BadInputError, match="one part of the records"):
        to_dp_event(plan)
    for part in ("private", "validation"):
        theirs = dp_accounting.rdp.RdpAccountant().compose(to_dp_event(plan.part(part)))
        ours = epsilon_of(plan.part(part), delta=1e-5)
        assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-6)


def test_positions_outside_are_refused() -> None:
    plan = Plan((EventRun(Gaussian(1.0), 3),))
    for call in (lambda: plan.at(3), lambda: plan.at(-1), lambda: plan.slice(1, 4)):
        with pytest.raises(IndexError):
            call()
    assert len(plan.slice(2, 2)) == 0


def test_sampling_names_what_the_events_do() -> None:
    sampled, full = EventRun(PoissonGaussian(1, 0.1)), EventRun(Gaussian(1))
    assert Plan((sampled,)).sampling == "poisson"
    assert Plan((full, EventRun(PoissonGaussian(1, 1.0)))).sampling == "full_batch"
    assert Plan((full, sampled)).sampling == "mixed"
    assert Plan((EventRun(NonPrivate(), 5),)).sampling == "none"
    assert Plan((EventRun(RepeatAndSelect(3, 1, Plan((sampled,)))),)).sampling == "poisson"
    assert not Plan((sampled, EventRun(NonPrivate()))).is_private


def test_all_mistakes_of_a_file_at_once() -> None:
    with pytest.raises(BadInputError) as caught:
        Plan.from_json(
            [
                {"event": "poisson_gaussian", "noise_multiplier": -1, "sample_rate": 2, "step": 3},
                {"event": "gausian"},
                {"event": "gaussian", "noise_multiplier": float("nan"), "count": 1.5},
                7,
                {"event": "laplace"},
                {"event": "repeat_and_select", "mean": 0.5, "shape": "x", "of": [{"event": "?"}]},
                {"event": "gaussian", "noise_multiplier": True},
                {"event": "gaussian", "noise_multiplier": 1, "part": "test"},
            ]
        )
    lines = str(caught.value).splitlines()
    expected = [
        ("segment 0", "'step', did you mean 'steps'?"),
        ("segment 0", "noise_multiplier must be >= 0, got -1"),
        ("segment 0", "sample_rate must be in [0, 1], got 2"),
        ("segment 1", "did you mean 'gaussian'?"),
        ("segment 2", "noise_multiplier must be finite"),
        ("segment 2", "count must be a whole number, got 1.5"),
        ("segment 3", "must be an object"),
        ("segment 4", "laplace needs scale"),
        ("segment 5", "mean must be >= 1"),
        ("segment 5", "shape must be a number >= 0 or 'poisson'"),
        ("segment 5: of: segment 0", "event must be one of"),
        ("segment 6", "noise_multiplier must be a number, got True"),
        ("segment 7", "part must be one of private, validation, rest, public; got 'test'"),
    ]
    assert len(lines) == len(expected)
    for line, (where, what) in zip(lines, expected):
        assert line.startswith(where)
        assert what in line


@pytest.mark.parametrize("wrong", [{"event": "gaussian"}, "[]", None, 3])
def test_a_file_must_be_a_list(wrong: object) -> None:
    with pytest.raises(BadInputError, match="must be a list of segments"):
        Plan.from_json(wrong)


def test_to_dp_event_costs_the_same_with_dp_accounting() -> None:
    plan = Plan(
        (
            EventRun(Gaussian(20.0)),
            EventRun(PoissonGaussian(1.0, 0.01), 500),
            EventRun(Laplace(30.0), 2),
            EventRun(RepeatAndSelect(4, "poisson", Plan((EventRun(Gaussian(8.0), 2),)))),
        )
    )
    accountant = dp_accounting.rdp.RdpAccountant().compose(to_dp_event(plan))
    assert epsilon_of(plan, delta=1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)
    infinite = dp_accounting.rdp.RdpAccountant().compose(
        to_dp_event(Plan((EventRun(NonPrivate()),)))
    )
    assert infinite.get_epsilon(1e-5) == float("inf")


def test_a_budget_says_what_it_refuses() -> None:
    for wrong in (
        {"target_epsilon": 0, "delta": 1e-5},
        {"target_epsilon": float("inf"), "delta": 1e-5},
        {"target_epsilon": 1, "delta": 0},
        {"target_epsilon": 1, "delta": 1},
    ):
        with pytest.raises(BadInputError):
            PrivacyBudget(**wrong)
    with pytest.raises(BadInputError, match="'replace_one' is not supported"):
        PrivacyBudget(target_epsilon=1, delta=1e-5, neighboring_relation="replace_one")


def test_what_a_plan_is_made_of() -> None:
    with pytest.raises(BadInputError, match="a plan is made of EventRun, got Gaussian"):
        Plan((Gaussian(1.0),))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _ = Plan() + EventRun(Gaussian(1.0))  # type: ignore[operator]
    with pytest.raises(BadInputError, match="segment 0: phase must be a word, got 7"):
        Plan.from_json([{"event": "gaussian", "noise_multiplier": 1.0, "phase": 7}])
    with pytest.raises(BadInputError, match="of must be a Plan, got list"):
        RepeatAndSelect(2, 1, [])  # type: ignore[arg-type]


def test_curves_of_steps_off_the_grid_are_those_of_rdp_for_each_rate() -> None:
    events = [PoissonGaussian(1.0, 0.01), PoissonGaussian(2.0, 0.5), PoissonGaussian(3.0, 0.01)]
    for orders in (np.array([3.33]), np.array([2.0, 3.33, 200.0])):
        curves = PoissonGaussian.curves(events, orders)
        for event, curve in zip(events, curves):
            noise = np.array([event.noise_multiplier])
            exact = rdp.poisson_gaussian_rdp(noise, event.sample_rate, orders)[0]
            np.testing.assert_allclose(curve, exact, rtol=1e-9)
            np.testing.assert_allclose(event.renyi(orders), exact, rtol=1e-9)
    assert PoissonGaussian(1.0, 0.0).pure_epsilon() == 0
