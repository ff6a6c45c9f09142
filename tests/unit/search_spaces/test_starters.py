"""Starter specs and recommended spaces fit the spec and the methods that they are for."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpsweep.errors import BadInputError
from dpsweep.search_spaces import SPACES, SearchSpace, starter_spec
from dpsweep.spec import SweepSpec
from dpsweep.trainables import TRAINABLES

DATASETS = ("digits", "fashion_mnist", "npz", "image_folder")
DEMO = Path(__file__).parents[2] / "examples" / "digits.yaml"


def check_methods(parameters):
    declared = {name: TRAINABLES[name].hyperparameters for name in TRAINABLES}
    return SearchSpace(parameters).check(declared)


@pytest.mark.parametrize("dataset", DATASETS)
def test_each_starter_is_valid_and_fits_its_method(dataset):
    spec = SweepSpec.from_yaml(starter_spec(dataset), check_space=check_methods)
    assert spec.data.dataset == dataset
    assert spec.search.space == SweepSpec.from_yaml(spec.to_yaml()).search.space


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
    assert set(missing) <= only_elsewhere | ({"path"} if dataset == "digits" else set())


@pytest.mark.parametrize("dataset", DATASETS)
def test_starters_are_readable(dataset):
    text = starter_spec(dataset)
    assert max(len(line) for line in text.splitlines()) <= 100
    assert text.isascii()
    assert text.endswith("\n")
    commented = [line for line in text.splitlines() if "#" in line]
    assert len(commented) > 30


def test_unknown_dataset_has_a_hint():
    with pytest.raises(BadInputError) as error:
        starter_spec("digit")
    assert "did you mean 'digits'?" in str(error.value)


@pytest.mark.parametrize("dataset", DATASETS)
def test_recommended_spaces_are_the_ones_of_the_starters(dataset):
    space = SearchSpace.from_spec(SPACES["dp_sgd"][dataset])
    starter = SearchSpace.from_spec(SweepSpec.from_yaml(starter_spec(dataset)).search.space)
    assert space.parameters == starter.parameters


def test_the_demo_is_what_its_title_says():
    spec = SweepSpec.from_yaml(DEMO, check_space=check_methods)
    assert spec.search.num_trials == 12
    assert spec.privacy.trial_epsilon == 2
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
        "from dpsweep.spec import SweepSpec; SweepSpec.from_yaml(starter_spec('digits')); SPACES['dp_sgd']; "
        "print([m for m in ('torch', 'ray', 'optuna', 'mlflow', 'numpy') if m in sys.modules])"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True, env=dict(os.environ))
    assert out.strip() == "[]"
