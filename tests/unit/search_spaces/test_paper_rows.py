"""Presets of single rows and figures of the papers: their plans against the papers' figures."""

from __future__ import annotations

import pytest

from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import read_spec
from dpsweep.privacy.events import NonPrivate, PoissonGaussian
from dpsweep.search_spaces import SearchSpace, preset_spec
from dpsweep.spec.study import SweepSpec
from dpsweep.study.trial import TrialTask


def first_task(name: str, *, text: str | None = None, index: int = 0) -> TrialTask:
    """Return the task of one point of a preset's grid, as ``dpsweep run`` would admit it."""
    spec = read_spec(text or preset_spec(name))
    checked = preflight(spec)
    point = SearchSpace.from_spec(spec.search.space).grid()[index]
    return checked.admit(0, dict(point))


# Table 19 of Tramer & Boneh: shuffled batches


@pytest.mark.parametrize(
    ("row", "private"),
    [("shuffle", "fashion_mnist"), ("shuffle_end_to_end", "fashion_mnist_end_to_end")],
)
def test_the_shuffled_arm_has_the_noise_of_the_private_one_and_no_claim(row, private) -> None:
    shuffled, poisson = first_task(f"tramer2021/{row}"), first_task(f"tramer2021/{private}")
    ((event, count),) = [(run.event, run.count) for run in poisson.plan.runs]
    assert isinstance(event, PoissonGaussian)
    assert shuffled.hparams["noise.noise_multiplier"] == pytest.approx(
        event.noise_multiplier, rel=5e-4
    )
    assert shuffled.hparams["batch.sampling"] == "shuffled"
    assert not shuffled.is_private
    assert [run.event for run in shuffled.plan.runs] == [NonPrivate()]
    assert len(shuffled.plan) == count
    own = {"noise.noise_multiplier", "batch.sampling"}
    same = {k: v for k, v in shuffled.hparams.items() if k in poisson.hparams and k not in own}
    assert same == {key: poisson.hparams[key] for key in same}
    assert len(same) > 10
    spec = SweepSpec.from_yaml(preset_spec(f"tramer2021/{row}"))
    assert spec.privacy.accounting == "unaccounted"
