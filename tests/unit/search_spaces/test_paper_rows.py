"""Presets of single rows and figures of the papers: their plans against the papers' figures."""

from __future__ import annotations

import numpy as np
import pytest
import yaml
from image_sets import ATTRIBUTES, celeba

from dpsweep.foundation.errors import SpecError
from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import read_spec
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import EventRun, Gaussian, Laplace, NonPrivate, Plan, PoissonGaussian
from dpsweep.search_spaces import SearchSpace, preset_spec
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.spec.study import SweepSpec
from dpsweep.study.trial import TrialTask
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.method import PlanContext
from dpsweep.trainables.methods.adamix.adamix import AdaMix
from dpsweep.trainables.networks import build
from dpsweep.trainables.networks.pretrained.backbones import published_settings
from dpsweep.trainables.networks.pretrained.timm_classifier import timm_classifier


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


def planned(name: str) -> tuple[Plan, float]:
    """Return the plan of a preset's first point, without its file, and its epsilon."""
    spec = SweepSpec.from_yaml(preset_spec(name))
    point = dict(SearchSpace.from_spec(spec.search.space).grid()[0])
    method = TRAINABLES[point.pop("method")]
    budget = PrivacyBudget(spec.privacy.trial_epsilon, spec.privacy.delta)
    assert spec.data.num_records is not None
    share = 1 - spec.data.validation.fraction - spec.data.public.fraction
    num_private = round(spec.data.num_records * share)
    accountant = spec.privacy.accountant
    context = PlanContext(budget, accountant, num_private, "exact", {}, frozenset(point))
    hparams = method.complete(resolve(method.hyperparameters, point), context)
    plan = method.plan(hparams, context)
    return plan, epsilon_of(plan, delta=spec.privacy.delta, accountant=accountant)


@pytest.mark.parametrize(
    ("name", "steps", "epsilon", "noise"),
    [
        # The paper: epsilon 3 for all records, by the conversion of its time. The noise here is
        # the least for the same 3 by today's, with 2 per cent fewer records.
        ("tramer2021/mnist", 574, 3.0, 2.7443),
        ("tramer2021/mnist_cnn", 1436, 3.0, 1.2705),
        ("tramer2021/mnist_end_to_end", 4594, 3.0, 1.1311),
        ("tramer2021/cifar10", 359, 3.0, 5.03),
        ("tramer2021/cifar10_cnn", 359, 3.0, 5.03),
        ("tramer2021/cifar10_end_to_end", 1436, 3.0, 1.4117),
        ("tramer2021/cifar10_transfer", 1436, 2.0, 1.1346),
        # The paper: epsilon 1.5 for sigma 15, 200 epochs of 5,000 of 50,000 records, where today's
        # conversion gives 1.23; with the 45,000 records that validation leaves it is 1.305.
        ("luo2021/cls_cifar100_to_cifar10", 1800, 1.305, 15.0),
        ("luo2021/all_cifar100_to_cifar10", 1800, 1.305, 15.0),
        ("luo2021/full_cifar100_to_cifar10", 1800, 1.305, 15.0),
        ("luo2021/scratch_cifar100_to_cifar10", 1800, 1.305, 15.0),
        # The paper: epsilon 3, at the first point of each grid.
        ("tramer2021/mnist_cnn_grid", 1723, 3.0, 0.8928),
        ("tramer2021/cifar10_cnn_grid", 2871, 3.0, 1.1019),
        ("tramer2021/small_cnn", 1436, 3.0, 1.4117),
        ("tramer2021/data_size_550k", 92, 3.0, 1.6991),
        # The paper: epsilon 1, by Renyi DP as here.
        ("bu2024/bitfit_cifar10_vit", 135, 1.0, 1.4289),
        ("bu2024/two_phase_cifar100_vit", 135, 1.0, 1.4289),
    ],
)
def test_a_recipe_costs_what_the_paper_s_does(name, steps, epsilon, noise) -> None:
    plan, cost = planned(name)
    runs = [run for run in plan.runs if isinstance(run.event, PoissonGaussian)]
    assert sum(run.count for run in runs) == steps
    assert runs[0].event.noise_multiplier == pytest.approx(noise, rel=2e-3)
    assert cost == pytest.approx(epsilon, rel=5e-3)
    before = [(run.event, run.count) for run in plan.runs if isinstance(run.event, Gaussian)]
    on_pixels = ("end_to_end", "cnn_grid", "small_cnn", "transfer")
    with_statistics = name.startswith("tramer2021") and not name.endswith(on_pixels)
    assert before == ([(Gaussian(8.0), 2)] if with_statistics else [])


@pytest.mark.parametrize("model", ["tanh_cnn_small", "tanh_cnn_deep"])
def test_the_grid_of_networks_on_pixels_holds_table_12(model) -> None:
    text = preset_spec("tramer2021/cifar10_cnn_grid")
    spec = SweepSpec.from_yaml(text.replace("tanh_cnn_deep", model))
    points = {
        (point["batch.expected"], point["optim.lr"], point["train.epochs"])
        for point in SearchSpace.from_spec(spec.search.space).grid()
    }
    batches = [512 * 2**power for power in range(6)]
    assert points >= {
        (batch, base * batch / 512, epochs)
        for batch in batches for base in (1 / 8, 1 / 4, 1 / 2, 1) for epochs in (30, 60, 120)
    }  # fmt: skip


@pytest.mark.parametrize("variant", ["bitfit", "bitfit_add", "full", "last_layer"])
@pytest.mark.parametrize("task", ["smiling", "male", "multi_label"])
def test_rows_of_faces_have_the_paper_s_recipe(task, variant) -> None:
    """Ten epochs of 500 at epsilon 3, the first point, of the 162,770 faces that celeba has."""
    spec = SweepSpec.from_yaml(preset_spec(f"bu2024/{variant}_celeba_{task}"))
    assert spec.privacy.delta == 5e-6
    space = spec.search.space
    assert space["optim.lr"] == (0.001 if variant == "full" else 0.008)
    point = dict(SearchSpace.from_spec(space).grid()[0])
    method = TRAINABLES[point.pop("method")]
    context = PlanContext(PrivacyBudget(8.0, 5e-6), "rdp", 162_770, "exact", {}, frozenset(point))
    hparams = method.complete(resolve(method.hyperparameters, point), context)
    plan = method.plan(hparams, context)
    assert len(plan) == 3255  # 10 * 162,770 / 500
    assert epsilon_of(plan, delta=5e-6, accountant="rdp") == pytest.approx(3.0, rel=5e-3)


@pytest.mark.parametrize("variant", ["private_public_gd", "ngd", "adamix"])
@pytest.mark.parametrize("name", ["flowers", "cub", "dogs", "mit67", "pets", "caltech"])
def test_rows_of_table_1_have_the_paper_s_budgets(name, variant) -> None:
    """Sigma is 20, and steps are those that the analytic curve allows within 1 and 3."""
    spec = SweepSpec.from_yaml(preset_spec(f"golatkar2022/{name}"))
    points = [dict(point) for point in SearchSpace.from_spec(spec.search.space).grid()]
    steps = {}
    for point in points:
        if point["adamix.variant"] == variant:
            hparams = resolve(
                AdaMix.hyperparameters, {k: v for k, v in point.items() if k != "method"}
            )
            plan = AdaMix.plan(hparams, PlanContext(PrivacyBudget(3.0, 1e-5), "pld", 1000))
            steps[point["noise.target_epsilon"]] = plan
    assert steps == {
        1: Plan((EventRun(Gaussian(20.0), 28),)), 3: Plan((EventRun(Gaussian(20.0), 206),))
    }  # fmt: skip
    fewest = spec.data.num_records * spec.data.public.fraction / spec.data.num_classes
    assert fewest > point["public.shots"]


def test_a_file_of_the_right_shape_is_all_that_a_recipe_needs(tmp_path) -> None:
    spec = yaml.safe_load(preset_spec("tramer2021/cifar10_cnn"))
    x, y = np.zeros((400, 3, 32, 32), np.float32), np.arange(400) % 10
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    spec["data"] |= {"path": str(tmp_path / "mine.npz"), "num_records": 400}
    spec["search"]["space"]["batch.expected"] = 64
    task = first_task("", text=yaml.safe_dump(spec))
    assert task.planned_epsilon <= 3.0


def weights_that_nobody_has(monkeypatch) -> None:
    """Let networks with published weights be built without a network: their weights are random."""

    def settings(name, *, image_size, with_weights=True):
        return published_settings(name, image_size=image_size, with_weights=False)

    def network(settings, *, num_classes, options=None):
        return timm_classifier(
            settings["model"], num_classes, 3, settings["image_size"], options=options
        )

    monkeypatch.setattr(build, "published_settings", settings)
    monkeypatch.setattr(build, "timm_network", network)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("task", "classes"), [("smiling", 2), ("multi_label", len(ATTRIBUTES))])
def test_a_directory_of_faces_is_all_that_their_rows_need(
    task, classes, tmp_path, monkeypatch
) -> None:
    celeba(tmp_path)
    weights_that_nobody_has(monkeypatch)
    spec = yaml.safe_load(preset_spec(f"bu2024/bitfit_celeba_{task}"))
    spec["data"] |= {"path": str(tmp_path), "num_records": 20}
    spec["search"]["space"] |= {"batch.expected": 8, "bitfit.variant": "last_layer"}
    checked = preflight(read_spec(yaml.safe_dump(spec)))
    assert checked.info.num_classes == classes
    assert checked.info.input_shape == (3, 218, 178)


@pytest.mark.parametrize("name", ["tramer2021/cifar10", "golatkar2022/pets", "luo2021/cdfsl_5shot"])
def test_a_recipe_without_its_file_says_so_in_a_line(name, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError) as caught:
        first_task(name)
    assert "data.path: no " in str(caught.value)


@pytest.mark.parametrize("shots", [5, 20, 50])
def test_few_shots_cost_what_their_presets_say(shots) -> None:
    """All records in 200 steps with sigma 15: mu is sqrt(200) / 15."""
    spec = SweepSpec.from_yaml(preset_spec(f"luo2021/cdfsl_{shots}shot"))
    assert spec.episodes is not None
    assert (spec.episodes.ways, spec.episodes.shots, spec.episodes.number) == (5, shots, 60)
    space = spec.search.space
    assert (space["noise.noise_multiplier"], space["train.epochs"]) == (15, 200)
    plan = Plan((EventRun(PoissonGaussian(15.0, 1.0), 200),))
    assert epsilon_of(plan, delta=1e-5, accountant="rdp") == pytest.approx(4.42, rel=5e-3)
    assert spec.privacy.trial_epsilon >= 4.42
