"""Plans whose noise another version has calibrated: as they are on record, or as they were."""

import numpy as np
import pytest

from dpsweep.privacy.composition.declared import DeclaredComposition
from dpsweep.privacy.composition.recalibrated import TRIFLE, as_recorded, covered, other_noise
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
from dpsweep.privacy.composition.split import SplitComposition
from dpsweep.privacy.events import EventRun, Gaussian, Laplace, Plan, PoissonGaussian
from dpsweep.privacy.schedules import NoiseSchedule

NOISE, RATE = 2.231806853796521, 0.1


def plan_of(*events, part="private", count=3):
    return Plan(tuple(EventRun(event, count, part=part) for event in events))


def keys(plan):
    return [(run.part, run.event) for run in plan.runs]


OLD = plan_of(PoissonGaussian(NOISE, RATE))


@pytest.mark.parametrize("share", [-0.99e-6, -3e-10, 3e-10, 0.99e-6])
def test_a_trifle_of_noise_is_that_on_record(share):
    new = plan_of(PoissonGaussian(NOISE * (1 + share), RATE))
    assert new != OLD
    assert as_recorded(new, keys(OLD)) == OLD


@pytest.mark.parametrize(
    "event",
    [
        PoissonGaussian(NOISE * (1 + 1.1e-6), RATE),
        PoissonGaussian(NOISE * (1 - 1.1e-6), RATE),
        PoissonGaussian(NOISE, RATE * (1 + 3e-10)),
        Gaussian(NOISE * (1 + 3e-10)),
        Laplace(NOISE * (1 + 3e-10)),
    ],
)
def test_whatever_else_differs_stays_and_is_refused(event):
    composition = DeclaredComposition.of([(OLD, 4)], target_epsilon=8, delta=1e-5)
    new = plan_of(event)
    assert composition.as_declared(new) is new
    assert "not among the events" in composition.refusal(new)


def test_noise_on_other_records_is_other_noise():
    new = plan_of(PoissonGaussian(NOISE * (1 + 3e-10), RATE), part="validation")
    assert as_recorded(new, keys(OLD)) is new
    public = plan_of(PoissonGaussian(NOISE * (1 + 3e-10), RATE), part="public")
    both = Plan((*public.runs, *plan_of(PoissonGaussian(NOISE * (1 - 3e-10), RATE)).runs))
    assert as_recorded(both, keys(OLD)) == Plan((*public.runs, *OLD.runs))


def test_a_plan_is_as_on_record_as_a_whole_or_not_at_all():
    known, other = PoissonGaussian(NOISE * (1 + 3e-10), RATE), PoissonGaussian(5.0, RATE)
    new = plan_of(known, other)
    assert as_recorded(new, keys(OLD)) is new


def test_two_events_never_become_one():
    """There would be fewer of one class than are run, and more of the other."""
    two = plan_of(*(PoissonGaussian(NOISE * (1 + s), RATE) for s in (3e-10, 6e-10)))
    assert as_recorded(two, keys(OLD)) is two
    with_old = plan_of(PoissonGaussian(NOISE, RATE), PoissonGaussian(NOISE * (1 + 3e-10), RATE))
    assert as_recorded(with_old, keys(OLD)) is with_old


def test_every_step_of_a_schedule_is_the_one_on_record():
    cosine = NoiseSchedule("cosine", end_ratio=0.5)
    old, new = (cosine.plan(noise, RATE, 400) for noise in (3.0, 3.0 * (1 - 3e-10)))
    assert len({run.event for run in old.runs}) == 400
    shuffled = np.random.default_rng(0).permutation(len(old.runs))
    assert as_recorded(new, [keys(old)[index] for index in shuffled]) == old


def test_steps_of_all_records_are_gaussians_on_record():
    run = EventRun(PoissonGaussian(NOISE * (1 + 3e-10), 1.0), 3, phase="prefix")
    assert as_recorded(Plan((run,)), [("private", Gaussian(NOISE))]) == Plan(
        (EventRun(PoissonGaussian(NOISE, 1.0), 3, phase="prefix"),)
    )


def test_a_split_declares_its_search_alone_and_filters_declare_nothing():
    search = DeclaredComposition.of([(OLD, 4)], target_epsilon=8, delta=1e-5)
    split = SplitComposition(search, 0.1, "rdp")
    new = plan_of(PoissonGaussian(NOISE * (1 + 3e-10), RATE))
    assert split.as_declared(new) == OLD
    rest = new.moved("private", "rest")
    assert split.as_declared(rest) is rest
    assert RenyiFilter.at(8, target_epsilon=2.0, delta=1e-5).as_declared(new) is new


# --- Bounds ---------------------------------------------------------------------------------------


def at_least(noise):
    return lambda plan: all(run.event.noise_multiplier >= noise for run in plan.runs)


def test_a_bound_takes_a_trifle_more_noise_and_no_more():
    assert covered(OLD, at_least(NOISE)) is OLD
    for share in (3e-10, 5e-8, 0.99e-6):
        (run,) = covered(OLD, at_least(NOISE * (1 + share))).runs
        assert NOISE * (1 + share) <= run.event.noise_multiplier <= NOISE * (1 + 1.001 * TRIFLE)
        assert (run.event.sample_rate, run.count) == (RATE, 3)
    assert covered(OLD, at_least(NOISE * (1 + 1.1e-6))) is None
    laplace = plan_of(Laplace(1.0))
    assert covered(laplace, lambda plan: plan is not laplace and plan != laplace) is None


# --- Other noise ----------------------------------------------------------------------------------


def test_events_that_only_one_side_has_are_other_noise_if_both_have_some():
    a, b, near = (PoissonGaussian(noise, RATE) for noise in (1.0, 2.0, 2.01))
    assert other_noise([("private", a)], [("private", a)]) is None
    assert other_noise([("private", a), ("private", b)], [("private", a)]) is None  # more of a grid
    assert other_noise([("private", a)], [("private", a), ("private", b)]) is None
    assert other_noise([("private", near)], [("private", a), ("private", b)]) == (near, b)
    laplace = Laplace(3.0)
    assert other_noise([("validation", laplace)], [("private", a)]) == (laplace, a)
    assert other_noise([("private", laplace)], [("private", a)]) == (laplace, a)
