"""Presets of single rows and figures of the papers: their plans against the papers' figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from dpsweep.foundation.errors import SpecError
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


# Recipes on files of one's own

#: Preset -> shape of a record, and classes.
FILES = {
    "tramer2021/mnist": ((1, 28, 28), 10),
    "tramer2021/mnist_cnn": ((1, 28, 28), 10),
    "tramer2021/mnist_end_to_end": ((1, 28, 28), 10),
    "tramer2021/cifar10": ((3, 32, 32), 10),
    "tramer2021/cifar10_cnn": ((3, 32, 32), 10),
    "tramer2021/cifar10_end_to_end": ((3, 32, 32), 10),
    "tramer2021/cifar10_transfer": ((64,), 10),
    "luo2021/cls_cifar100_to_cifar10": ((3, 32, 32), 10),
    "luo2021/all_cifar100_to_cifar10": ((3, 32, 32), 10),
    "luo2021/scratch_cifar100_to_cifar10": ((3, 32, 32), 10),
    "bu2024/bitfit_cifar10_vit": ((3, 32, 32), 10),
    "bu2024/two_phase_cifar100_vit": ((3, 32, 32), 100),
}


def on_own_file(name: str, tmp_path: Path) -> str:
    """Return a preset whose paths are small files of the right shape."""
    shape, classes = FILES[name]
    spec = yaml.safe_load(preset_spec(name))
    for block, num_classes in (("data", classes), ("pretrain", 100)):
        if spec.get(block, {}).get("path"):
            path = tmp_path / f"{block}.npz"
            x = np.random.default_rng(0).random((2 * num_classes, *shape), np.float32)
            y = np.arange(len(x)) % num_classes
            np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
            spec[block]["path"] = str(path)
    return yaml.safe_dump(spec)


@pytest.mark.parametrize(
    ("name", "steps", "epsilon", "noise"),
    [
        # The paper: epsilon 3 for all records by the conversion of its time. Noise is solved for
        # the same 3 by today's, with 2 per cent fewer records: it is the least for epsilon 3.
        ("tramer2021/mnist", 574, 3.0, 2.67),
        ("tramer2021/mnist_cnn", 1436, 3.0, 1.29),
        ("tramer2021/mnist_end_to_end", 4594, 3.0, 1.08),
        ("tramer2021/cifar10", 359, 3.0, 4.87),
        ("tramer2021/cifar10_cnn", 359, 3.0, 4.87),
        ("tramer2021/cifar10_end_to_end", 1436, 3.0, 1.48),
        ("tramer2021/cifar10_transfer", 1436, 2.0, 1.2),
        # The paper: epsilon 1.5 for sigma 15, 200 epochs of 5,000 of 50,000 records. Its moments
        # accountant has integer orders and the old conversion; the plan has 45,000 records.
        ("luo2021/cls_cifar100_to_cifar10", 1800, 1.30, 15.0),
        ("luo2021/all_cifar100_to_cifar10", 1800, 1.30, 15.0),
        ("luo2021/scratch_cifar100_to_cifar10", 1800, 1.30, 15.0),
        # The paper: epsilon 1, by Renyi DP as here.
        ("bu2024/bitfit_cifar10_vit", 135, 1.0, 1.9),
        ("bu2024/two_phase_cifar100_vit", 135, 1.0, 1.9),
    ],
)
def test_a_recipe_on_a_file_of_one_s_own_costs_what_the_paper_s_does(
    name, steps, epsilon, noise, tmp_path
) -> None:
    task = first_task(name, text=on_own_file(name, tmp_path))
    runs = [run for run in task.plan.runs if isinstance(run.event, PoissonGaussian)]
    assert sum(run.count for run in runs) == pytest.approx(steps, rel=0.01)
    assert runs[0].event.noise_multiplier == pytest.approx(noise, rel=0.1)
    assert 0.98 * epsilon < task.planned_epsilon <= 1.02 * epsilon
    before = [run.event for run in task.plan.runs if isinstance(run.event, Gaussian)]
    statistics = name in ("tramer2021/mnist", "tramer2021/mnist_cnn", "tramer2021/cifar10",
                          "tramer2021/cifar10_cnn")  # fmt: skip
    assert before == ([Gaussian(8.0)] if statistics else [])


@pytest.mark.parametrize("name", ["tramer2021/cifar10", "golatkar2022/pets", "luo2021/cdfsl_5shot"])
def test_a_recipe_without_its_file_says_so_in_a_line(name, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError) as caught:
        first_task(name)
    assert "data.path: no " in str(caught.value)
