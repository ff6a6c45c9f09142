"""SearchSpace: what is active, suggested, sampled, enumerated; and the check against methods."""

import collections

import numpy as np
import optuna
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_specs import mistakes

from dpsweep import SweepSpec
from dpsweep.foundation.errors import BadInputError, SpecError
from dpsweep.search.suggestions import Suggestions
from dpsweep.search_spaces import SearchSpace, starter_spec
from dpsweep.search_spaces.base import MAX_GRID
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.spec.space.parameters import canonical_space, parse_space

CONDITIONAL = {
    # Out of order on purpose: a condition may stand before what it names.
    "deep": {"int": [1, 3], "num": 3, "when": {"mid": "x"}},
    "mid": {"choice": ["x", "y"], "when": {"method": "a"}},
    "method": {"choice": ["a", "b"]},
    "lr": {"loguniform": [1e-3, 10], "num": 3},
    "fixed": 7,
    "needs_fixed": {"uniform": [0, 1], "num": 2, "when": {"fixed": 7, "method": ["b"]}},
}


def space_of(**domains):
    return SearchSpace.from_spec(
        {"method": "m", **{k.replace("__", "."): v for k, v in domains.items()}}
    )


def is_consistent(space, values):
    active = {p.name for p in space.active(values)}
    assert set(values) == active
    for parameter in space.parameters:
        if parameter.name in values:
            assert parameter.problem(values[parameter.name]) is None
    return True


def test_conditions_follow_what_they_name():
    space = SearchSpace.from_spec(CONDITIONAL)
    names = [p.name for p in space.parameters]
    assert sorted(names) == sorted(CONDITIONAL)
    for parameter in space.parameters:
        assert all(names.index(other) < names.index(parameter.name) for other in parameter.when)


def test_active():
    space = SearchSpace.from_spec(CONDITIONAL)

    def names(**values):
        return {p.name for p in space.active(values)}

    assert names(method="a", mid="x") == {"method", "lr", "fixed", "mid", "deep"}
    assert names(method="a", mid="y") == {"method", "lr", "fixed", "mid"}
    assert names(method="b") == {"method", "lr", "fixed", "needs_fixed"}
    # An inactive parent activates nothing, whatever value it is given.
    assert names(method="b", mid="x") == {"method", "lr", "fixed", "needs_fixed"}


def test_condition_on_a_number_is_not_met_by_true():
    space = space_of(n={"choice": [1, 2]}, x={"uniform": [0, 1], "when": {"n": 1}})
    assert {p.name for p in space.active({"n": True})} == {"method", "n"}


def test_from_spec_raises_every_mistake():
    with pytest.raises(SpecError) as error:
        SearchSpace.from_spec({"a": {"uniform": [2, 1]}, "b": {"choice": []}})
    assert [m.key for m in error.value.mistakes] == [
        "search.space",
        "search.space.a",
        "search.space.b",
    ]


class TestSuggest:
    @pytest.mark.parametrize("sampler", [optuna.samplers.RandomSampler, optuna.samplers.TPESampler])
    def test_every_suggestion_is_consistent_and_every_branch_is_visited(self, sampler):
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        space = SearchSpace.from_spec(CONDITIONAL)
        study = optuna.create_study(sampler=sampler(seed=0))
        branches = set()
        for _ in range(40):
            trial = study.ask()
            values = space.suggest(trial)
            assert is_consistent(space, values)
            branches.add(frozenset(values))
            assert "fixed" not in trial.params
            assert {**trial.params, "fixed": 7} == values
            study.tell(trial, float(values["lr"]))
        assert len(branches) == 3

    def test_an_enqueued_point_is_what_is_suggested(self):
        space = SearchSpace.from_spec(CONDITIONAL)
        point = {"method": "a", "mid": "x", "deep": 2, "lr": 0.5}
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        study.enqueue_trial({**point, "fixed": 7})
        assert space.suggest(study.ask()) == {**point, "fixed": 7}

    def test_the_grid_passes_through_optuna_unchanged(self):
        space = SearchSpace.from_spec(CONDITIONAL)
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        for point in space.grid():
            study.enqueue_trial(point)
        assert [space.suggest(study.ask()) for _ in space.grid()] == space.grid()

    def test_types(self):
        space = space_of(
            i={"int": [1, 9]},
            j={"logint": [1, 9]},
            u={"uniform": [1, 9]},
            c={"choice": [True, None]},
        )
        values = space.suggest(optuna.create_study().ask())
        assert [type(values[k]) for k in "iju"] == [int, int, float]
        assert values["c"] in (True, None)


class TestSample:
    def test_seeded_and_consistent(self):
        space = SearchSpace.from_spec(CONDITIONAL)
        draws = [space.sample(np.random.default_rng(3)) for _ in range(2)]
        assert draws[0] == draws[1]
        rng = np.random.default_rng(0)
        many = [space.sample(rng) for _ in range(300)]
        assert all(is_consistent(space, values) for values in many)
        assert collections.Counter(v["method"] for v in many)["a"] == pytest.approx(150, abs=40)

    def test_distributions(self):
        space = space_of(
            u={"uniform": [0, 100]},
            l={"loguniform": [1e-4, 1]},
            i={"int": [1, 4]},
            j={"logint": [1, 1000]},
        )
        rng = np.random.default_rng(0)
        many = [space.sample(rng) for _ in range(4000)]
        assert np.mean([v["u"] for v in many]) == pytest.approx(50, abs=2)
        assert np.median([v["l"] for v in many]) == pytest.approx(1e-2, rel=0.25)
        counts = collections.Counter(v["i"] for v in many)
        assert set(counts) == {1, 2, 3, 4}
        assert min(counts.values()) > 850
        assert np.median([v["j"] for v in many]) == pytest.approx(np.sqrt(0.5 * 1000.5), rel=0.2)
        assert {type(v["i"]) for v in many} == {type(v["j"]) for v in many} == {int}
        assert all(1e-4 <= v["l"] <= 1 and 1 <= v["j"] <= 1000 for v in many)


class TestGrid:
    def test_every_active_combination_once(self):
        points = SearchSpace.from_spec(CONDITIONAL).grid()
        # method a: mid x with 3 depths, mid y; method b: 2 needs_fixed; each at 3 learning rates.
        assert len(points) == 3 * (3 + 1 + 2)
        assert len({tuple(sorted(p.items(), key=str)) for p in points}) == len(points)
        assert all(is_consistent(SearchSpace.from_spec(CONDITIONAL), p) for p in points)
        assert sorted({p["lr"] for p in points}) == pytest.approx([1e-3, 0.1, 10])
        assert {p["lr"] for p in points} >= {1e-3, 10.0}  # the bounds exactly

    @pytest.mark.parametrize(
        ("domain", "points"),
        [
            ({"uniform": [0, 1], "num": 3}, [0.0, 0.5, 1.0]),
            ({"uniform": [0, 1], "num": 1}, [0.5]),
            ({"int": [1, 3], "num": 9}, [1, 2, 3]),
            ({"logint": [1, 100], "num": 3}, [1, 10, 100]),
            ({"choice": ["a", None, True]}, ["a", None, True]),
        ],
    )
    def test_points_of_one_range(self, domain, points):
        assert [p["x"] for p in space_of(x=domain).grid()] == points

    def test_ranges_without_num_are_named(self):
        space = space_of(a={"uniform": [0, 1]}, b={"int": [0, 1], "num": 2}, c={"logint": [1, 2]})
        with pytest.raises(BadInputError, match="without: a, c") as error:
            space.grid()
        assert "num: 5" in error.value.fix

    def test_an_enormous_grid_is_refused_and_explained(self):
        space = space_of(a={"uniform": [0, 1], "num": 1000}, b={"uniform": [0, 1], "num": MAX_GRID})
        with pytest.raises(BadInputError, match="more than 100000") as error:
            space.grid()
        assert error.value.because == "a: 1000, b: 100000"


BRANCHES = {
    "lr": {
        "by": {
            "method": {
                "a": {"loguniform": [0.1, 8], "num": 2},
                "b": {"uniform": [0.001, 0.01], "num": 3, "when": {"fixed": 7}},
                "c": 0.5,
            }
        }
    },
    "method": {"choice": ["a", "b", "c", "d"]},
    "fixed": 7,
}


class TestBranches:
    """One parameter with a domain for each value of another."""

    def test_each_configuration_has_the_value_of_its_branch(self):
        space, rng = SearchSpace.from_spec(BRANCHES), np.random.default_rng(0)
        seen = collections.defaultdict(list)
        for _ in range(200):
            values = space.sample(rng)
            assert is_consistent_branch(space, values)
            seen[values["method"]].append(values.get("lr"))
        assert 0.1 <= min(seen["a"]) < max(seen["a"]) <= 8
        assert 0.001 <= min(seen["b"]) < max(seen["b"]) <= 0.01
        assert set(seen["c"]) == {0.5}
        assert set(seen["d"]) == {None}  # not listed: its default

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize(
        "sampler",
        [
            optuna.samplers.RandomSampler,
            optuna.samplers.TPESampler,
            optuna.samplers.GPSampler,
            optuna.samplers.CmaEsSampler,
        ],
    )
    @pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
    def test_optuna_knows_each_branch_by_a_name_of_its_own(self, sampler):
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        space = SearchSpace.from_spec({**BRANCHES, "x": {"uniform": [0, 1]}})
        study = optuna.create_study(sampler=sampler(seed=0))
        for _ in range(30):
            trial = study.ask()
            values = space.suggest(trial)
            assert is_consistent_branch(space, values)
            study.tell(trial, float(values.get("lr", 0)))
        known = {name: t.distributions[name] for t in study.trials for name in t.distributions}
        assert set(known) == {"method", "x", "lr[a]", "lr[b]"}
        for trial in study.trials:  # no name ever changed its distribution
            assert all(known[name] == d for name, d in trial.distributions.items())

    def test_the_grid_has_the_points_of_each_branch_and_passes_through_optuna(self):
        space = SearchSpace.from_spec(BRANCHES)
        points = space.grid()
        assert collections.Counter(p["method"] for p in points) == {"a": 2, "b": 3, "c": 1, "d": 1}
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        for point in points:
            study.enqueue_trial(space.named(point))
        assert [space.suggest(study.ask()) for _ in points] == points

    def test_values_are_those_of_a_method_where_one_is_asked_for(self):
        space = SearchSpace.from_spec(BRANCHES)
        assert space.values()["lr"] == [0.1, 8.0, 0.001, 0.01, 0.5]
        assert space.values("b")["lr"] == [0.001, 0.01]
        assert "lr" not in space.values("d")

    def test_the_canonical_space_says_the_same(self):
        space = canonical_space(BRANCHES)
        assert list(space) == list(BRANCHES)
        assert parse_space(space) == parse_space(BRANCHES)
        assert space == canonical_space(space)

    def test_a_branch_of_a_method_that_is_not_tried_is_noted(self):
        space = SearchSpace.from_spec({**BRANCHES, "method": "a"})
        assert space.notes() == [
            "search.space.lr.by.method.b is never used: it waits for method = b",
            "search.space.lr.by.method.c is never used: it waits for method = c",
        ]
        assert {p.get("lr") for p in space.grid()} == {0.1, 8.0}

    @pytest.mark.parametrize(
        ("domain", "line"),
        [
            (
                [{"uniform": [0, 1]}, {"uniform": [1, 2]}],
                "search.space.lr: a list of domains is not a domain (for one a method: write {by: "
                "{method: {dp_sgd: {loguniform: [0.1, 8]}, adamix: 0.05}}})",
            ),
            (
                {"by_method": {"a": 1}},
                "search.space.lr: `by` stands alone, above one parameter and its values (write "
                "{by: {method: {dp_sgd: {loguniform: [0.1, 8]}, adamix: 0.05}}})",
            ),
            (
                {"by": {"method": {"a": {"uniform": [2, 1]}}}},
                "search.space.lr.by.method.a: bounds are reversed: [2, 1] (write [1, 2])",
            ),
            (
                {"by": {"method": {"a": {"uniform": [1, 2], "when": {"method": "a"}}}}},
                "search.space.lr.by.method.a: its `when` names method, which decides between the "
                "branches (remove it)",
            ),
            (
                {"by": {"shape": {"flat": 1, "rond": 2}}},
                "search.space.lr.by.shape.rond: its `by` waits for shape = 'rond', which cannot "
                "happen (shape is 'flat' or 'round'; remove lr, or --set search.space.lr=null)",
            ),
            (
                {"by": {"sharp": {"flat": 1}}},
                "search.space.lr.by.sharp.flat: its `by` names 'sharp', which is not in the space "
                "(did you mean 'shape'?)",
            ),
        ],
    )
    def test_mistakes(self, domain, line):
        space = {"method": "a", "shape": {"choice": ["flat", "round"]}, "lr": domain}
        with pytest.raises(SpecError) as error:
            SearchSpace.from_spec(space)
        assert [str(mistake) for mistake in error.value.mistakes] == [line]


def is_consistent_branch(space, values):
    active = {p.name: p for p in space.active(values)}
    return set(values) == set(active) and not any(
        active[name].problem(value) for name, value in values.items()
    )


@pytest.mark.parametrize("sampler", ["random", "grid", "tpe"])
def test_first_points_name_the_branch_they_are_of(sampler):
    raw = yaml.safe_load(starter_spec())
    raw["search"] |= {"sampler": sampler, "points_to_evaluate": [{"method": "c"}]}
    raw["search"]["points_to_evaluate"].append({"method": "a", "lr": 8.0})
    raw["search"]["space"] = {**BRANCHES, "method": {"choice": ["c", "a"]}}
    spec = SweepSpec(**raw)
    suggestions = Suggestions(spec, SearchSpace.from_spec(spec.space), path=None)
    first, second = suggestions.ask()[1], suggestions.ask()[1]
    assert (first["method"], first["lr"]) == ("c", 0.5)
    assert (second["method"], second["lr"]) == ("a", 8.0)
    raw["search"]["points_to_evaluate"] = [{"lr": 8.0}, {"method": "c", "lr": 8.0}]
    assert mistakes(lambda: SweepSpec(**raw)) == [
        "search.points_to_evaluate[0].lr: has a domain for each method, and the point names none "
        "(add method to the point)",
        "search.points_to_evaluate[1].lr: is fixed to 0.5, got 8",
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1e-9, 1e9),
    st.floats(1e-9, 1e9),
    st.integers(1, 30),
    st.sampled_from(["uniform", "loguniform"]),
)
def test_grid_points_and_samples_stay_within_the_bounds(a, b, num, kind):
    low, high = sorted((a, b))
    if low == high:
        return
    space = space_of(x={kind: [low, high], "num": num})
    rng = np.random.default_rng(0)
    for values in space.grid() + [space.sample(rng) for _ in range(20)]:
        assert low <= values["x"] <= high


def test_values_are_choices_bounds_or_the_fixed_one():
    assert SearchSpace.from_spec(CONDITIONAL).values() == {
        "method": ["a", "b"],
        "lr": [1e-3, 10.0],
        "fixed": [7],
        "mid": ["x", "y"],
        "deep": [1, 3],
        "needs_fixed": [0.0, 1.0],
    }


DECLARED = {
    "dp_sgd": (
        Hyperparameter("optim.lr", "float", 0.1, "Peak learning rate.", low=0, open_low=True),
        Hyperparameter("optim.momentum", "float", 0.9, "Momentum.", low=0, high=1),
        Hyperparameter("batch.expected", "int", 256, "Batch.", low=1),
        Hyperparameter("noise.shape", "str", "constant", "Shape.", choices=("constant", "cosine")),
        Hyperparameter("model.name", "str", "linear", "Network.", choices=("linear", "timm/")),
        Hyperparameter("flag", "bool", False, "A switch."),
        Hyperparameter("train.max_steps", "int", None, "Steps.", low=1, optional=True),
    ),
    "non_private": (
        Hyperparameter("optim.lr", "float", 0.1, "Peak learning rate.", low=0, open_low=True),
    ),
}

CHECKS = [
    ({"optim.lr": {"uniform": [0.1, 1]}, "train.max_steps": None, "model.name": "timm/vit"}, []),
    ({"method": "dp_sdg"}, ["search.space.method: unknown method 'dp_sdg' (did you mean 'dp_sgd'? known: dp_sgd, non_private)"]),
    ({"method": "fern"}, ["search.space.method: unknown method 'fern' (known: dp_sgd, non_private; one that a package brings is known where that package is installed)"]),
    (
        {"method": "dp_sdg", "optim.rl": 1, "noise.shape": 3},
        [
            "search.space.method: unknown method 'dp_sdg' (did you mean 'dp_sgd'? known: dp_sgd, non_private)",
            "search.space.optim.rl: no method has such a hyperparameter (did you mean 'optim.lr'?)",
        ],
    ),
    ({"optim.rl": 1}, ["search.space.optim.rl: dp_sgd has no such hyperparameter (did you mean 'optim.lr'?)"]),
    ({"optim.learning_rate": 1}, ["search.space.optim.learning_rate: dp_sgd has no such hyperparameter (did you mean 'optim.lr'?)"]),
    ({"lr": 1}, ["search.space.lr: dp_sgd has no such hyperparameter (did you mean 'optim.lr'?)"]),
    ({"optim.nesterov_flavour": 1}, ["search.space.optim.nesterov_flavour: dp_sgd has no such hyperparameter (known: optim.lr, optim.momentum)"]),
    ({"optim.lr": {"uniform": [0, 1]}}, ["search.space.optim.lr: its lower bound must be > 0, got 0.0 (Peak learning rate.)"]),
    ({"optim.momentum": {"uniform": [0.5, 1.5]}}, ["search.space.optim.momentum: its upper bound must be <= 1, got 1.5 (Momentum.)"]),
    ({"optim.lr": "fast"}, ["search.space.optim.lr: must be a number, got 'fast' (Peak learning rate.)"]),
    ({"optim.lr": None}, ["search.space.optim.lr: must not be null (Peak learning rate.)"]),
    ({"batch.expected": {"uniform": [1, 9]}}, ["search.space.batch.expected: takes whole numbers, uniform gives fractions (use int)"]),
    ({"batch.expected": {"loguniform": [1, 9]}}, ["search.space.batch.expected: takes whole numbers, loguniform gives fractions (use logint)"]),
    ({"batch.expected": {"choice": [16, 2.5]}}, ["search.space.batch.expected: must be a whole number, got 2.5 (Batch.)"]),
    ({"batch.expected": {"int": [0, 5]}}, ["search.space.batch.expected: its lower bound must be >= 1, got 0 (Batch.)"]),
    ({"optim.lr": {"int": [1, 5]}}, []),
    (
        {"noise.shape": {"choice": ["constant", "cosin"]}},
        ["search.space.noise.shape: unknown value 'cosin', did you mean 'cosine'?; allowed: constant, cosine (Shape.)"],
    ),
    ({"noise.shape": {"uniform": [0, 1]}}, ["search.space.noise.shape: takes no range, but constant, cosine (write {choice: [constant, cosine]})"]),
    ({"flag": {"int": [0, 1]}}, ["search.space.flag: takes no range, but true, false (write {choice: [true, false]})"]),
    (
        {"method": {"choice": ["dp_sgd", "non_private"]}, "noise.shape": "cosine"},
        ["search.space.noise.shape: non_private has no such hyperparameter (add `when: {method: dp_sgd}` to {choice: ['cosine']})"],
    ),
    (
        {"method": {"choice": ["dp_sgd", "non_private"]}, "batch.expected": {"int": [1, 9]}},
        ["search.space.batch.expected: non_private has no such hyperparameter (add `when: {method: dp_sgd}`)"],
    ),
    (
        {
            "method": {"choice": ["dp_sgd", "non_private"]},
            "noise.shape": {"choice": ["constant", "cosine"], "when": {"method": "dp_sgd"}},
            # Conditional on the method through its parent.
            "batch.expected": {"int": [1, 9], "when": {"noise.shape": "cosine"}},
            "optim.lr": 0.1,
        },
        [],
    ),
    (
        {
            "method": {"choice": ["dp_sgd", "non_private"]},
            "noise.shape": {"choice": ["constant", "cosine"], "when": {"method": "dp_sgd"}},
            "optim.lr": {"uniform": [1, 9], "when": {"noise.shape": "cosine", "method": "non_private"}},
        },
        ["search.space.optim.lr: has no meaning for any method, by its `when` (correct `when`)"],
    ),
    # A condition on a method that is not tried: narrowing a space is no mistake.
    ({"optim.lr": {"uniform": [1, 9], "when": {"method": "non_private"}}}, []),
    ({"optim.lr": {"uniform": [1, 9], "when": {"method": ["dp_sgd", "non_private"]}}}, []),
    (
        {"optim.lr": {"uniform": [1, 9], "when": {"method": ["dp_sgd", "non_privat"]}}},
        ["search.space.optim.lr: its `when` waits for method = 'non_privat', which is no method (did you mean 'non_private'?)"],
    ),
    (
        {"optim.lr": {"by": {"method": {"dp_sgd": 1, "dp_sdg": 2}}}},
        ["search.space.optim.lr.by.method.dp_sdg: its `by` waits for method = 'dp_sdg', which is no method (did you mean 'dp_sgd'?)"],
    ),
    # What is never used must be right all the same.
    (
        {"batch.expected": {"int": [1, 9], "when": {"method": "non_private"}}},
        ["search.space.batch.expected: non_private has no such hyperparameter (leave it out, or search over a method that has it: dp_sgd)"],
    ),
    (
        {"optim.lr": {"by": {"method": {"dp_sgd": 1, "non_private": -1}}}},
        ["search.space.optim.lr.by.method.non_private: must be > 0, got -1 (Peak learning rate.)"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("space", "lines"), CHECKS)
def test_check_against_declared_hyperparameters(space, lines):
    found = SearchSpace.from_spec({"method": "dp_sgd", **space}).check(DECLARED)
    assert [str(mistake) for mistake in found] == lines


def test_check_without_any_known_method():
    found = SearchSpace.from_spec({"method": "x", "a": 1}).check({})
    assert [str(mistake) for mistake in found] == ["search.space.method: unknown method 'x'"]


def test_a_parameter_is_overruled_only_if_it_has_no_effect_in_any_method():
    steps = Hyperparameter("steps", "int", None, ".", optional=True, wins_over="epochs")
    epochs, rate = (
        Hyperparameter("epochs", "int", 1, "."),
        Hyperparameter("rate", "float", 1.0, "."),
    )
    space = {"method": {"choice": ["a", "b"]}, "epochs": 3, "rate": 0.5}
    space["steps"] = {"choice": [9], "when": {"method": "a"}}
    table = {"a": (steps, epochs, rate), "b": (epochs, rate)}

    def overruled(**declared):
        return [(p.name, w) for p, w in SearchSpace.from_spec(space).overruled(declared)]

    assert overruled(**table) == []  # b learns for three epochs
    assert overruled(a=table["a"]) == [("epochs", "steps")]
    assert overruled(a=table["a"], b=(rate,)) == [("epochs", "steps")]
    del space["steps"]["when"]
    assert overruled(a=table["a"], b=table["a"]) == [("epochs", "steps")]
