"""Presets of single rows and figures of the papers: their plans against the papers' figures."""

from __future__ import annotations

import pytest

from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import read_spec
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.events import Gaussian, Laplace, NonPrivate, Plan, PoissonGaussian
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


# Figures 4a and 5a of Zhao et al.


def test_clusters_at_the_paper_s_ranges_start_where_it_does() -> None:
    spec = SweepSpec.from_yaml(preset_spec("zhao2020/clusters_paper"))
    points = [dict(point) for point in SearchSpace.from_spec(spec.search.space).grid()]
    pairs = {(point["select.clusters"], point["select.each"]) for point in points}
    assert pairs == {(n, each) for n in (100, 200, 300, 400, 500) for each in (5, 10, 20)}
    assert spec.start is not None
    assert (spec.privacy.trial_epsilon, spec.start.epsilons) == (2.2, (2.2,))
    largest = max(clusters * each for clusters, each in pairs)
    for point in points:
        assert point["select.candidates"] == point["labels.max"] == largest == 10_000
    task = first_task("zhao2020/clusters_paper")
    assert not task.plan.part("private")  # the start is all that it costs
    assert 2.1 < task.planned_epsilon <= 2.2


def test_the_extra_cost_is_the_same_after_every_start() -> None:
    """Figure 5a: 0.5 for the PCA and 0.5 for the counts, whatever the start has cost."""
    spec = read_spec(preset_spec("zhao2020/extra_cost"))
    checked = preflight(spec)
    queries, epsilons = set(), {}
    for point in SearchSpace.from_spec(spec.search.space).grid():
        if (point["labels.max"], point["train.repeat"]) != (1000, 0):
            continue
        task = checked.admit(0, dict(point))
        queries.add(task.plan.part("private"))
        epsilons[point["start.epsilon"]] = task.planned_epsilon
    (query,) = queries
    gaussian, laplace = (run.event for run in query.runs)
    assert isinstance(laplace, Laplace)
    assert laplace.scale == 2.0  # epsilon 0.5
    assert epsilon_of(Plan(query.runs[:1]), delta=5e-6, accountant="pld") == pytest.approx(
        0.5, 1e-3
    )
    assert isinstance(gaussian, Gaussian)
    assert list(epsilons) == [1.2, 1.7, 2.2, 2.7, 3.2]
    for start, total in epsilons.items():
        # Composed it is less than the paper's sum, and more than the start alone.
        assert start < total <= start + 1.0
