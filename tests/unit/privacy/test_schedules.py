"""Shapes of schedules: their ends, their middles, and that the clip norm has no plan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.schedules import SHAPES, ClipSchedule, NoiseSchedule


@given(
    shape=st.sampled_from(SHAPES[1:]),
    end_ratio=st.floats(0.01, 100),
    steps=st.integers(1, 200),
    plateaus=st.integers(2, 9),
)
def test_every_shape_starts_at_one_ends_at_the_ratio_and_is_monotone(
    shape: str, end_ratio: float, steps: int, plateaus: int
) -> None:
    factors = NoiseSchedule(shape, end_ratio, plateaus).factors(steps)
    assert factors.shape == (steps,)
    assert factors.dtype == np.float64
    assert factors[0] == 1.0
    assert factors[-1] == (end_ratio if steps > 1 else 1.0)
    moves = np.diff(factors) * (1 if end_ratio >= 1 else -1)
    assert np.all(moves >= -1e-12 * factors.max())


def test_middles_follow_the_formulas() -> None:
    assert NoiseSchedule("linear", 0.5).factors(5)[2] == pytest.approx(0.75)
    assert NoiseSchedule("cosine", 0.5).factors(5)[1] == pytest.approx(
        0.5 + 0.5 * (1 + np.cos(np.pi / 4)) / 2
    )
    assert NoiseSchedule("exponential", 0.25).factors(3)[1] == pytest.approx(0.5)
    step = NoiseSchedule("step", 0.25).factors(9)
    np.testing.assert_allclose(step, [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25])


def test_constant_is_one_run_and_step_is_one_per_plateau() -> None:
    assert len(NoiseSchedule().plan(1.0, 0.1, 1000).runs) == 1
    assert len(NoiseSchedule("step", 0.5, plateaus=4).plan(1.0, 0.1, 1000).runs) == 4
    plan = NoiseSchedule("linear", 0.5).plan(2.0, 0.1, 3)
    assert [run.event.noise_multiplier for run in plan.runs] == [2.0, 1.5, 1.0]


@pytest.mark.parametrize(("steps", "prefix"), [(1, 0), (2, 1), (6, 1), (20, 3), (316, 47)])
def test_a_prefix_is_a_share_of_the_steps_and_never_all_of_them(steps: int, prefix: int) -> None:
    schedule = NoiseSchedule(prefix_share=0.15, prefix_factor=4.0)
    assert schedule.num_prefix(steps) == schedule.plan(1.0, 0.1, steps).prefix_end == prefix
    np.testing.assert_allclose(schedule.factors(steps), [4.0] * prefix + [1.0] * (steps - prefix))
    assert NoiseSchedule(prefix_share=0.15).num_prefix(steps) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cosin", 0.5), "did you mean 'cosine'"),
        (("linear", 0.0), "end_ratio must be > 0"),
        (("linear", float("nan")), "end_ratio must be finite"),
        (("constant", 0.5), "a constant schedule ends where it starts"),
        (("step", 0.5, 1), "plateaus must be >= 2"),
        (("constant", 1.0, 3, 0.0, 4.0), "prefix_share must be in"),
        (("constant", 1.0, 3, 0.15, 0.5), "prefix_factor must be >= 1"),
    ],
)
def test_bad_schedules_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        NoiseSchedule(*arguments)


def test_clip_values_scale_the_factors_and_have_no_plan() -> None:
    clip = ClipSchedule("linear", 0.5)
    np.testing.assert_allclose(clip.values(4.0, 3), [4, 3, 2])
    assert not hasattr(clip, "plan")
