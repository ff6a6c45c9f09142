"""One spec over all methods: valid, equal shares at equal epsilon, and room for all of them."""

from collections import Counter

import pytest
from typer.testing import CliRunner

from dpsweep.cli.app import app
from dpsweep.foundation.errors import BadInputError
from dpsweep.planning.reading import read_spec
from dpsweep.privacy.accountants import analytic_gaussian_epsilon
from dpsweep.search_spaces import SPACES, OwnData, SearchSpace
from dpsweep.search_spaces.all_methods import TRIALS, all_methods, all_methods_spec, together

IMAGES = ["digits", "fashion_mnist", "npz", "image_folder"]


@pytest.mark.parametrize("is_searched", [False, True])
@pytest.mark.parametrize("dataset", IMAGES)
def test_every_method_with_a_recommendation_is_there_with_its_own_space(dataset, is_searched):
    spec = read_spec(all_methods_spec(dataset, is_searched=is_searched))
    methods = spec.search.space["method"]["choice"]
    for method, ours in SPACES.items():
        own = ours.space(dataset) if is_searched else ours.fixed.get(dataset)
        assert (own is not None) == (method in methods)
        for name, domain in (own or {}).items():
            assert name == "method" or spec.search.space[name]["by"]["method"][method] == domain
    assert len(methods) >= (3 if dataset == "image_folder" else 4)


@pytest.mark.parametrize("dataset", IMAGES)
def test_without_a_search_each_method_is_one_point_of_the_grid(dataset):
    spec = read_spec(all_methods_spec(dataset, is_searched=False))
    points = SearchSpace.from_spec(spec.search.space).grid()
    assert Counter(p["method"] for p in points) == Counter(spec.search.space["method"]["choice"])
    assert spec.search.num_trials == len(points)


def test_with_a_search_each_method_has_as_many_trials():
    spec = read_spec(all_methods_spec("digits", is_searched=True))
    counts = Counter(point["method"] for point in spec.search.points_to_evaluate)
    assert set(counts.values()) == {TRIALS}
    assert sum(counts.values()) == spec.search.num_trials
    assert set(counts) == set(spec.search.space["method"]["choice"])
    assert spec.scheduler.type == "fifo"


@pytest.mark.parametrize("dataset", IMAGES)
def test_its_text_is_short_lines(dataset):
    for is_searched in (False, True):
        lines = all_methods_spec(dataset, is_searched=is_searched).splitlines()
        assert max(map(len, lines)) <= 100


def test_the_study_has_room_for_all_trials_as_gaussian_mechanisms():
    for epsilon, number in ((1.0, 6), (3.0, 24)):
        total = together(epsilon, 1e-5, number)
        low, high = 0.0, 50.0
        while high - low > 1e-9:
            mu = (low + high) / 2
            low, high = (mu, high) if analytic_gaussian_epsilon(mu, 1e-5) < epsilon else (low, mu)
        exact = analytic_gaussian_epsilon(low * number**0.5, 1e-5)
        assert 1.1 * exact < total < 1.3 * exact


def test_a_start_has_all_of_epsilon_or_leaves_some():
    spec = read_spec(all_methods_spec("fashion_mnist", is_searched=False))
    assert spec.start is not None
    *_, most = spec.start.epsilons
    assert most == spec.privacy.trial_epsilon
    assert min(spec.start.epsilons) < most


def test_data_of_ones_own(tmp_path):
    own = OwnData(str(tmp_path / "mine.npz"), num_records=5000, num_classes=3)
    spec = read_spec(all_methods_spec("npz", is_searched=False, own=own))
    assert (spec.name, spec.data.num_records) == ("mine-all-methods-eps2", 5000)


def test_public_records_of_all_are_few():
    assert all_methods("fashion_mnist", is_searched=True).public <= 0.1


def test_what_has_one_method_is_no_comparison():
    with pytest.raises(BadInputError, match="nothing to compare"):
        all_methods_spec("text", is_searched=True)


@pytest.mark.parametrize(
    "words", [["--method", "dp_sgd"], ["--probe"], ["--preset", "luo2021/cls_lite0"]]
)
def test_it_excludes_what_names_one_method(words):
    result = CliRunner().invoke(app, ["init", "--all-methods", *words])
    assert isinstance(result.exception, BadInputError)
    assert "exclude each other" in str(result.exception)
