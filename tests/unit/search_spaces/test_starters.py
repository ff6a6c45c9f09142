"""Starter specs and recommended spaces fit the spec and the methods that they are for."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpsweep.foundation.errors import BadInputError
from dpsweep.planning.costs.composition import choose_composition
from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import read_spec
from dpsweep.search_spaces import SPACES, SearchSpace, starter_spec
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables import TRAINABLES

DATASETS = ("digits", "fashion_mnist", "npz", "image_folder", "text")
DEMO = Path(__file__).parents[2] / "examples" / "digits.yaml"


def check_methods(parameters):
    declared = {name: TRAINABLES[name].hyperparameters for name in TRAINABLES}
    return SearchSpace(parameters).check(declared)


@pytest.mark.parametrize("dataset", DATASETS)
def test_each_starter_is_valid_and_fits_its_method(dataset):
    spec = SweepSpec.from_yaml(starter_spec(dataset), check_space=check_methods)
    assert spec.data.dataset == dataset
    assert spec.search.space == SweepSpec.from_yaml(spec.to_yaml()).search.space


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("method", "dataset"), [(method, name) for method in SPACES for name in SPACES[method].spaces]
)
def test_each_recommended_space_has_a_starter(method, dataset):
    text = starter_spec(dataset, method)
    spec = SweepSpec.from_yaml(text, check_space=check_methods)
    assert spec.search.space == SPACES[method].spaces[dataset]
    assert (spec.data.dataset, spec.privacy.accounting) == (dataset, "composed")
    assert (spec.start is not None) == (method == "active_learning")
    assert ("#   select " in text) == ("one of four" in text) == (spec.start is None)
    assert max(len(line) for line in text.splitlines()) <= 100
    assert SweepSpec.from_yaml(spec.to_yaml()) == spec


@pytest.mark.parametrize("dataset", DATASETS)
def test_each_starter_accounts_for_its_search(dataset):
    spec = SweepSpec.from_yaml(starter_spec(dataset))
    assert spec.privacy.accounting == "composed"
    assert spec.privacy.study_epsilon >= 2 * spec.privacy.trial_epsilon
    assert spec.scheduler.type == "epsilon_halving"
    assert len(spec.rungs) == 2
    assert spec.rungs == spec.scheduler.rungs


# What the comments of a starter say has to be changed for each mode.
RECIPES = {
    "select": [
        "privacy.study_epsilon=null", "privacy.selection={mean: 10, shape: 1}",
        "search.sampler=random", "search.num_trials=null", "scheduler={type: fifo}",
    ],
    "public": ["privacy.study_epsilon=null", "data.public.fraction=0.2"],
    "unaccounted": [
        "privacy.study_epsilon=null", "data.validation.visibility=exact",
        "search.space.method=non_private",
    ],
    "composed": [
        "data.validation.visibility=noisy", "data.validation.noise_std=0.01", "search.max_time=45m",
        "search.sampler=nsga2", "search.objectives=[validation/accuracy, dp/epsilon]",
        "scheduler={type: median, min_trials: 5}",
    ],
}  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("mode", RECIPES)
@pytest.mark.parametrize("dataset", DATASETS)
def test_its_comments_lead_to_every_mode(dataset, mode):
    changes = [f"privacy.accounting={mode}", *RECIPES[mode]]
    spec = SweepSpec.from_yaml(starter_spec(dataset), overrides=changes)
    assert spec.privacy.accounting == mode
    assert f"#   {mode} " in starter_spec(dataset)
    assert SweepSpec.from_yaml(spec.to_yaml()) == spec


@pytest.mark.parametrize("dataset", DATASETS)
def test_each_starter_names_every_key_that_may_be_set(dataset):
    text = starter_spec(dataset)
    spec = SweepSpec.from_yaml(text)
    only_elsewhere = {
        key
        for key, value in spec.to_dict()["data"].items()
        if value is None and key not in ("path", "max_private")
    }

    def keys(tree, path=()):
        for key, value in tree.items():
            yield key
            if isinstance(value, dict) and path != ("search",):
                yield from keys(value, (*path, key))

    missing = [key for key in keys(spec.to_dict()) if f"{key}:" not in text]
    only_elsewhere |= {"generation"} | ({"path"} if dataset == "digits" else set())
    only_elsewhere |= set() if dataset == "image_folder" else {"resize"}
    assert set(missing) <= only_elsewhere


@pytest.mark.parametrize("dataset", DATASETS)
def test_starters_are_readable(dataset):
    text = starter_spec(dataset)
    assert max(len(line) for line in text.splitlines()) <= 100
    assert text.isascii()
    assert text.endswith("\n")
    commented = [line for line in text.splitlines() if "#" in line]
    assert len(commented) > 30


@pytest.mark.parametrize("dataset", ["digits", "fashion_mnist", "npz", "image_folder"])
def test_one_run_without_a_search_spends_what_one_trial_may(dataset):
    text = starter_spec(dataset, kind="single")
    spec = SweepSpec.from_yaml(text, check_space=check_methods)
    assert (
        SearchSpace.from_spec(spec.search.space).sample(np.random.default_rng(0))
        == (SPACES["dp_sgd"].fixed[dataset])
    )
    assert spec.privacy.study_epsilon == spec.privacy.trial_epsilon
    assert (spec.search.num_trials, spec.scheduler.type) == (1, "fifo")
    assert spec.search.space["optim.noise_scale"] == (0.4 if dataset == "image_folder" else 5)
    assert spec.name != SweepSpec.from_yaml(starter_spec(dataset)).name
    assert max(len(line) for line in text.splitlines()) <= 100


@pytest.mark.parametrize("dataset", ["digits", "fashion_mnist"])
def test_the_one_run_fits_into_its_study(dataset):
    checked = preflight(read_spec(starter_spec(dataset, kind="single")))
    (plan,) = {task.full_plan for task in checked.sample}
    chosen = choose_composition(checked)
    assert chosen is not None
    assert max(chosen.cost(plan).values()) <= chosen.budget


@pytest.mark.parametrize("kind", ["single", "probe"])
@pytest.mark.parametrize("method", ["scatternet", "adamix"])
@pytest.mark.parametrize("dataset", ["digits", "fashion_mnist"])
def test_methods_on_features_need_no_search_either(dataset, method, kind):
    text = starter_spec(dataset, method, kind=kind)
    spec = SweepSpec.from_yaml(text, check_space=check_methods)
    fixed = SPACES[method].fixed[dataset]
    scale = spec.search.space["optim.noise_scale"]
    start = fixed["optim.noise_scale"]
    assert scale == (start if kind == "single" else {"loguniform": [start / 100, start * 100]})
    others = {name: value for name, value in fixed.items() if name != "optim.noise_scale"}
    assert spec.search.space == {**others, "optim.noise_scale": scale}
    assert max(len(line) for line in text.splitlines()) <= 100


@pytest.mark.parametrize(("dataset", "side"), [("digits", 8), ("fashion_mnist", 28)])
def test_the_norm_of_normalised_features_is_the_root_of_their_number(dataset, side):
    norm = SPACES["scatternet"].fixed[dataset]["optim.input_norm"]
    assert norm == pytest.approx(math.sqrt(81 * (side // 4) ** 2), abs=0.5)


@pytest.mark.parametrize("dataset", ["digits", "fashion_mnist"])
def test_adamix_without_a_search_has_the_noise_of_its_steps(dataset):
    checked = preflight(read_spec(starter_spec(dataset, "adamix", kind="single")))
    assert {len(task.plan) for task in checked.sample} == {100}


def test_texts_need_no_search_either():
    spec = SweepSpec.from_yaml(starter_spec("text", kind="single"), check_space=check_methods)
    assert spec.search.space == SPACES["bitfit"].fixed["text"]
    assert spec.search.num_trials == 1


@pytest.mark.parametrize(
    ("dataset", "method", "kind", "able"),
    [
        ("text", "dp_sgd", "single", ["bitfit"]),
        ("image_folder", "scatternet", "single", ["active_learning", "adamix", "dp_sgd"]),
        ("digits", "active_learning", "probe", ["adamix", "dp_sgd", "scatternet"]),
    ],
)
def test_one_run_of_what_has_no_such_rate_is_refused(dataset, method, kind, able):
    with pytest.raises(BadInputError, match=f"one run of {method} on {dataset}") as refused:
        starter_spec(dataset, method, kind=kind)
    option, _, named = refused.value.fix.partition(" out, or use --method ")
    assert option == ("leave --no-search" if kind == "single" else "leave --probe")
    assert set(able) <= set(named.split(" or "))
    assert method not in named.split(" or ")


def test_probes_are_of_a_rate_and_least_squares_has_none():
    with pytest.raises(BadInputError, match="one run of least_squares on digits") as refused:
        starter_spec("digits", "least_squares", kind="probe")
    assert refused.value.fix.startswith("leave --probe out, or use --method adamix or ")
    assert "least_squares" not in refused.value.fix


@pytest.mark.parametrize("dataset", SPACES["least_squares"].fixed)
def test_least_squares_needs_no_search(dataset):
    text = starter_spec(dataset, "least_squares", kind="single")
    spec = SweepSpec.from_yaml(text, check_space=check_methods)
    assert spec.search.space == SPACES["least_squares"].fixed[dataset]
    assert (spec.search.num_trials, spec.scheduler.type) == (1, "fifo")


def test_a_starter_points_to_rates_that_follow_the_noise():
    line = "# optim.noise_lr in the place of optim.lr"
    assert line in starter_spec()
    assert line not in starter_spec("text")  # Adam's are what they are
    assert line not in starter_spec(kind="single")


def test_unknown_dataset_has_a_hint():
    with pytest.raises(BadInputError) as error:
        starter_spec("digit")
    assert "did you mean 'digits'?" in str(error.value)


@pytest.mark.parametrize("dataset", DATASETS)
def test_recommended_spaces_are_the_ones_of_the_starters(dataset):
    method = "bitfit" if dataset == "text" else "dp_sgd"
    space = SearchSpace.from_spec(SPACES[method].spaces[dataset])
    starter = SearchSpace.from_spec(SweepSpec.from_yaml(starter_spec(dataset)).search.space)
    assert space.parameters == starter.parameters


def test_the_demo_is_what_its_title_says():
    spec = SweepSpec.from_yaml(DEMO, check_space=check_methods)
    assert spec.privacy.accounting == "composed"
    assert (spec.privacy.trial_epsilon, spec.privacy.study_epsilon) == (2, 6)
    assert (spec.data.validation.visibility, spec.data.test.visibility) == ("public", "public")
    values = SearchSpace.from_spec(spec.search.space).values()
    assert values["method"] == ["dp_sgd"]
    assert values["model.name"] == ["linear", "tanh_cnn"]
    assert values["noise.shape"] == ["constant", "cosine"]


@pytest.mark.parametrize("path", [DEMO, *DATASETS])
def test_every_sample_suits_the_method(path):
    spec = SweepSpec.from_yaml(starter_spec(path) if isinstance(path, str) else path)
    space = SearchSpace.from_spec(spec.search.space)
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = space.sample(rng)
        declared = {h.name: h for h in TRAINABLES[values.pop("method")].hyperparameters}
        assert [declared[name].problem(value) for name, value in values.items()] == [None] * len(
            values
        )


def test_loads_neither_optuna_nor_torch_nor_ray():
    code = (
        "import sys; from dpsweep.search_spaces import SPACES, starter_spec; "
        "from dpsweep.spec.study import SweepSpec; SweepSpec.from_yaml(starter_spec('digits')); SPACES['dp_sgd']; "
        "print([m for m in ('torch', 'ray', 'optuna', 'mlflow', 'numpy') if m in sys.modules])"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True, env=dict(os.environ))
    assert out.strip() == "[]"


@pytest.mark.parametrize("name", ["digits", "fashion_mnist", "few_shot", "labels"])
def test_each_example_is_a_valid_spec(name):
    path = Path(__file__).parents[2] / "examples" / f"{name}.yaml"
    spec = read_spec(path)
    assert spec.search.num_trials or spec.episodes.number == 60
    assert {path.stem for path in path.parent.glob("*.yaml")} == {
        "digits",
        "fashion_mnist",
        "few_shot",
        "labels",
    }


@pytest.mark.parametrize("dataset", ["digits", "fashion_mnist", "npz", "image_folder"])
def test_probes_reach_two_decades_around_what_needs_no_search(dataset):
    text = starter_spec(dataset, kind="probe")
    spec = SweepSpec.from_yaml(text, check_space=check_methods)
    start = SPACES["dp_sgd"].fixed[dataset]["optim.noise_scale"]
    low, high = spec.search.space["optim.noise_scale"]["loguniform"]
    assert (low, high) == pytest.approx((start / 100, start * 100))
    assert spec.final_trial == 14
    assert spec.privacy.chosen_composition == "declared"
    assert max(len(line) for line in text.splitlines()) <= 100
    missing = [key for key in spec.to_dict()["search"] if f"{key}:" not in text]
    assert missing == []


def test_probes_of_a_starter_fit_into_its_study():
    checked = preflight(read_spec(starter_spec(kind="probe").replace("pld ", "rdp ")))
    assert choose_composition(checked).epsilon <= checked.spec.privacy.study_epsilon
