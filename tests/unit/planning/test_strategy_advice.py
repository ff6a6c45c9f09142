"""Advice on strategies: regrets in the order of the tables, the same for a seed, ways out."""

import dataclasses

import pytest
import yaml

from dpsweep.foundation.errors import BadInputError
from dpsweep.planning.reading import read_spec
from dpsweep.planning.simulation.simulate import simulate
from dpsweep.planning.strategies import STRATEGIES
from dpsweep.planning.strategies import advice as advice_module
from dpsweep.planning.strategies.advice import advise

BY_NAME = {strategy.name: strategy for strategy in STRATEGIES}
SPACE = {
    "method": "dp_sgd", "model.name": "linear", "optim.noise_scale": {"loguniform": [0.05, 500]},
    "optim.input_norm": 12.7, "batch.expected": 4096, "train.epochs": 2,
}  # fmt: skip


def written(folder, *, space=SPACE, search=None, validation=None, **privacy):
    """Write a base spec on the declared records of Fashion-MNIST, of which none is read."""
    for part in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            (folder / f"{part}-{kind}-ubyte.gz").touch()
    spec = {
        "name": "fashion",
        "data": {
            "dataset": "fashion_mnist", "path": str(folder),
            "validation": validation or {"fraction": 0.1, "visibility": "public"},
        },
        "privacy": {
            "delta": 1e-5, "trial_epsilon": 0.5, "accounting": "composed", "study_epsilon": 1.0,
            **privacy,
        },
        "search": {**(search or {"sampler": "tpe", "num_trials": 4}), "space": space},
    }  # fmt: skip
    path = folder / "base.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def advised(path, *names, epsilon=1.0, **arguments):
    strategies = [BY_NAME[name] for name in names]
    return advise(read_spec(path), epsilon=epsilon, strategies=strategies, **arguments)


@pytest.fixture(scope="module")
def advice(tmp_path_factory):
    path = written(tmp_path_factory.mktemp("fashion"))
    return advised(path, "probe", "halving", "fifo", "random", replicates=8)


@pytest.mark.slow
def test_regrets_have_the_order_of_the_tables(tmp_path):
    advice = advised(written(tmp_path), "probe", "halving", "fifo", "random", replicates=40)
    probe, halving, fifo, random = (played.regret for played in advice.played)
    assert -0.1 < probe < 0.5 < halving < fifo < random
    assert 0.9 < halving < 1.6  # measured: 1.25
    assert 1.4 < fifo < 2.6  # 2.3
    assert 3.0 < random < 8.0  # 6.4
    assert all(0 < played.standard_error < 1 for played in advice.played)


def test_probes_are_advised_and_cost_what_they_say(advice):
    probe, halving, fifo, random = advice.played
    assert advice.choice is advice.best is probe
    assert (probe.runs, fifo.runs, random.compute) == (13, 8, 1)
    assert probe.compute == 13
    assert halving.compute < fifo.compute == 8
    assert fifo.epsilon < halving.epsilon < probe.epsilon < random.epsilon <= 1
    for played in advice.played:
        row = played.to_dict()
        assert (row["delta"], row["accounting"]) == (1e-5, "composed")
        assert {"privacy_unit", "neighboring_relation", "sampling", "accountant"} < row.keys()


def test_the_cheapest_of_equally_good_ones_is_advised(advice):
    probe, *_, random = advice.played
    equal = dataclasses.replace(random, regrets=tuple(r + 0.09 for r in probe.regrets))
    worse = dataclasses.replace(random, regrets=tuple(r + 0.11 for r in probe.regrets))
    assert dataclasses.replace(advice, played=(probe, equal)).choice is equal
    assert dataclasses.replace(advice, played=(probe, worse)).choice is probe


def test_a_seed_gives_the_same_advice_and_another_one_another(tmp_path):
    path = written(tmp_path)
    first, again, other = (
        advised(path, "fifo", replicates=3, seed=seed).played[0].regrets for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert advised(path, "fifo", replicates=2, seed=1).played[0].regrets == first[:2]


@pytest.mark.slow
def test_select_plays_the_best_of_a_random_number(tmp_path):
    (select,) = advised(written(tmp_path), "select", replicates=40).played
    assert 5 < select.runs < 18
    assert select.compute == select.runs
    assert select.terms.accounting == "select"
    assert select.to_dict()["composition"] is None


def test_a_spec_that_is_the_choice_is_taken_already(advice):
    assert not advice.is_taken
    assert dataclasses.replace(advice, base=advice.choice.spec).is_taken


def test_what_does_not_fit_is_told_with_its_reason(tmp_path):
    advice = advised(written(tmp_path), "probe", "random", epsilon=0.05, replicates=2)
    assert [played.strategy.name for played in advice.played] == ["random"]
    ((strategy, reason),) = advice.refused
    assert strategy.name == "probe"
    assert "epsilon" in reason
    with pytest.raises(BadInputError, match=r"no strategy fits into epsilon=0\.05"):
        advised(written(tmp_path), "probe", epsilon=0.05, replicates=2)


@pytest.mark.parametrize(
    ("changes", "reason", "fix"),
    [
        (
            {"space": {"method": "dp_sgd", "optim.lr": {"loguniform": [0.1, 8]}}},
            "optim.lr is loguniform",
            "dpsweep init --probe --dataset fashion_mnist",
        ),
        (
            {"space": {"method": "bitfit", "optim.lr": {"loguniform": [0.1, 8]}}},
            "optim.lr is loguniform",
            "optim.noise_scale: {loguniform",
        ),
        (
            {"search": {"metric": "validation/loss", "mode": "min"}},
            "searches by validation/loss",
            "--set search.metric=validation/accuracy",
        ),
    ],
)
def test_another_search_is_refused_with_a_way_out(tmp_path, changes, reason, fix):
    with pytest.raises(BadInputError, match=reason) as refused:
        advised(written(tmp_path, **changes), "random", replicates=2)
    assert fix in refused.value.fix
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(("key", "value"), [("epsilon", 0.0), ("replicates", 1)])
def test_bad_numbers_are_refused(tmp_path, key, value):
    with pytest.raises(BadInputError, match=key):
        advised(written(tmp_path), "random", **{"replicates": 2, key: value})


def test_a_strategy_is_played_with_the_noise_of_its_own_scores(tmp_path, monkeypatch):
    played = {}

    def watch(checked, curves, **arguments):
        played[checked.spec.name] = (curves.noise_std, checked.spec.data.validation.noise_std)
        return simulate(checked, curves, **arguments)

    monkeypatch.setattr(advice_module, "simulate", watch)
    validation = {"fraction": 0.1, "visibility": "noisy", "noise_std": 0.0027}
    advised(written(tmp_path, validation=validation), "halving", "random", replicates=2)
    assert played["fashion-random"] == (0.0027, 0.0027)
    used, own = played["fashion-halving"]
    assert used == own > 0.0027  # 24 scores within half of epsilon
