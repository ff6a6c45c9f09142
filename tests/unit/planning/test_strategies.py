"""Strategies of search: each makes a valid spec of one base spec, within one epsilon."""

import pytest

from dpsweep.foundation.errors import BadInputError, SpecError
from dpsweep.planning.costs.composition import choose_composition
from dpsweep.planning.costs.selection import choose_selection
from dpsweep.planning.preflight import preflight
from dpsweep.planning.rungs import rung_figures
from dpsweep.planning.strategies import STRATEGIES, oracle
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.spec.study import SweepSpec

BY_NAME = {strategy.name: strategy for strategy in STRATEGIES}
SCALES = {"loguniform": [0.05, 500]}


def base(*, validation=None, space=None, **sections):
    return SweepSpec(
        **{
            "name": "digits",
            "data": {
                "dataset": "digits",
                "validation": validation or {"fraction": 0.2, "visibility": "public"},
            },
            "privacy": {"delta": 1e-5, "trial_epsilon": 1.0, "accounting": "unaccounted"},
            "search": {
                "sampler": "tpe",
                "num_trials": 3,
                "space": space
                or {
                    "method": "dp_sgd", "model.name": "linear", "optim.noise_scale": SCALES,
                    "optim.input_norm": 3.9, "batch.expected": 128, "train.epochs": 6,
                },
            },
            **sections,
        }
    )  # fmt: skip


@pytest.fixture
def fashion(tmp_path):
    """A base spec on the declared records of Fashion-MNIST; none of them is read."""
    for part in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            (tmp_path / f"{part}-{kind}-ubyte.gz").touch()
    return base(
        space={
            "method": "dp_sgd", "model.name": "linear", "optim.noise_scale": SCALES,
            "optim.input_norm": 12.7, "optim.momentum": 0.9, "optim.schedule": "cosine",
            "batch.expected": 512, "train.epochs": 3,
        },
        data={
            "dataset": "fashion_mnist", "path": str(tmp_path),
            "validation": {"fraction": 0.1, "visibility": "public"},
        },
    )  # fmt: skip


def claimed(spec):
    """Return what the study of a spec declares to cost."""
    checked = preflight(spec)
    choose_composition(checked)
    return checked.declared_epsilon(choose_selection(checked))


def epsilon_of_a_trial(spec):
    plan = preflight(spec).sample[0].full_plan
    return epsilon_of(plan, delta=spec.privacy.delta, accountant="pld")


@pytest.mark.sampled(15)
@pytest.mark.parametrize("visibility", ["public", "noisy"])
@pytest.mark.parametrize("name", BY_NAME)
def test_each_is_a_valid_study_within_epsilon(name, visibility):
    noise = {"noise_std": 0.1} if visibility == "noisy" else {}
    validation = {"fraction": 0.2, "visibility": visibility, **noise}
    spec = BY_NAME[name].spec(base(validation=validation), epsilon=3.0)
    assert claimed(spec) <= 3.0
    assert spec.privacy.trial_epsilon <= 3.0
    assert spec.data.validation.visibility == visibility
    assert spec.report.points == (1 if visibility == "noisy" else 10)
    assert SweepSpec.from_yaml(spec.to_yaml()) == spec
    assert spec.name == f"digits-{name}"


@pytest.mark.parametrize("name", ["fifo", "fifo_declared"])
def test_eight_whole_trials_fit(name):
    spec = BY_NAME[name].spec(base(), epsilon=2.0)
    checked = preflight(spec)
    chosen, plan = choose_composition(checked), checked.sample[0].full_plan
    assert 7.5 < 8 * chosen.share(chosen.cost(plan)) * 8 <= 8
    assert spec.search.num_trials == 8


def test_a_rung_is_a_share_of_the_steps():
    spec = BY_NAME["halving"].spec(base(), epsilon=2.0)
    checked = preflight(spec)
    steps = [figures.steps[0] for figures in rung_figures(checked, checked.sample[:1])]
    assert steps == [(7, 67), (23, 67)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fifo", (0.30, 1.02)),
        ("fifo_declared", (0.33,)),
        ("select", (0.39, 1.16)),
        pytest.param("select_profiles", (0.61, 1.92), marks=pytest.mark.slow),
        ("random", (1.0, 3.0)),
        ("default", (1.0, 3.0)),
    ],
)
def test_trial_epsilons_are_those_of_the_tables(fashion, name, expected):
    """54,000 records, batch 512, 316 steps: `pld` epsilon of a trial, from another program."""
    for epsilon, trial_epsilon in zip((1.0, 3.0), expected):  # the slow one at 1 alone
        spec = BY_NAME[name].spec(fashion, epsilon=epsilon)
        assert epsilon_of_a_trial(spec) == pytest.approx(trial_epsilon, abs=0.02)


def test_a_probe_leaves_the_final_run_all_but_its_own_cost():
    spec = BY_NAME["probe"].spec(base(), epsilon=1.0)
    assert spec.search.strategy == "probe"
    assert spec.search.probe == SweepSpec.from_yaml(spec.to_yaml()).search.probe
    assert spec.privacy.trial_epsilon == spec.privacy.study_epsilon == 1.0
    shorter = {"strategy": "probe", "probe": {"overrides": {"train.epochs": 3}}}
    own = base().to_dict()["search"]["space"]
    privacy = {"accounting": "composed", "study_epsilon": 1.0, "trial_epsilon": 1.0}
    written = base(search={**shorter, "space": own}, privacy=privacy)
    assert BY_NAME["probe"].spec(written, epsilon=2.0).search.probe.overrides == {"train.epochs": 3}
    assert BY_NAME["fifo"].spec(written, epsilon=2.0).search.strategy == "sampler"


def test_no_search_takes_the_good_scale_of_a_linear_model_or_the_middle():
    space = BY_NAME["default"].spec(base(), epsilon=1.0).search.space
    assert space["optim.noise_scale"] == 5
    rates = {"method": "dp_sgd", "model.name": "linear", "optim.noise_lr": {"loguniform": [1, 16]}}
    assert BY_NAME["default"].spec(base(space=rates), epsilon=1.0).search.space[
        "optim.noise_lr"
    ] == pytest.approx(4)


@pytest.mark.parametrize(
    ("space", "reason"),
    [
        ({"method": "dp_sgd", "optim.noise_scale": 5, "optim.input_norm": 4}, "searches nothing"),
        ({"method": "dp_sgd", "optim.lr": {"loguniform": [0.1, 8]}}, "optim.lr is loguniform"),
        ({"method": "dp_sgd", "optim.noise_lr": {"uniform": [1, 8]}}, "optim.noise_lr is uniform"),
        (
            {
                "method": "dp_sgd",
                "optim.noise_lr": SCALES,
                "train.epochs": {"choice": [2, 4]},
            },
            "searches optim.noise_lr, train.epochs",
        ),
    ],
)
def test_a_base_searches_one_range_that_carries_over(space, reason):
    for strategy in STRATEGIES:
        with pytest.raises(BadInputError, match=reason):
            strategy.spec(base(space=space), epsilon=1.0)


@pytest.mark.parametrize("name", ["halving", "fifo", "fifo_declared"])
def test_scores_that_cost_too_much_get_more_noise(name):
    validation = {"fraction": 0.2, "visibility": "noisy", "noise_std": 0.008}
    spec = BY_NAME[name].spec(base(validation=validation), epsilon=2.0)
    assert 0.008 < spec.data.validation.noise_std < 0.06
    assert claimed(spec) <= 2.0
    enough = {**validation, "noise_std": 0.06}
    kept = BY_NAME[name].spec(base(validation=enough), epsilon=2.0)
    assert kept.data.validation.noise_std == 0.06


def test_exact_scores_are_refused_with_their_place():
    validation = {"fraction": 0.2, "visibility": "exact"}
    with pytest.raises(SpecError, match=r"data\.validation\.visibility"):
        BY_NAME["fifo"].spec(base(validation=validation), epsilon=2.0)


def test_a_study_of_few_steps_has_no_room_for_rungs():
    space = {
        "method": "dp_sgd", "model.name": "linear", "optim.noise_lr": SCALES,
        "batch.expected": 1000, "train.max_steps": 4,
    }  # fmt: skip
    with pytest.raises(BadInputError, match="4 steps, too few for 2 rungs"):
        BY_NAME["halving"].spec(base(space=space), epsilon=2.0)


def test_a_ledger_of_the_dataset_stays_and_other_sections_do_too(tmp_path):
    privacy = {
        "delta": 1e-6, "trial_epsilon": 1.0, "accounting": "composed", "study_epsilon": 2.0,
        "dataset_ledger": str(tmp_path / "all.budget"), "dataset_epsilon": 9.0,
        "dataset_delta": 1e-4,
    }  # fmt: skip
    spec = BY_NAME["select"].spec(base(privacy=privacy, seed=7), epsilon=2.0)
    assert (spec.privacy.delta, spec.privacy.dataset_epsilon, spec.seed) == (1e-6, 9.0, 7)
    assert (
        oracle(base(privacy=privacy), epsilon=1.0, points=3, seeds=1)[0].privacy.dataset_ledger
        is None
    )


def test_the_oracle_runs_a_grid_once_a_seed():
    specs = oracle(base(seed=3), epsilon=1.0, points=5, seeds=2)
    assert [spec.seed for spec in specs] == [3, 4]
    assert len({spec.name for spec in specs}) == 2
    checked = preflight(specs[1])
    scales = [point["optim.noise_scale"] for point in checked.space.grid()]
    assert scales == pytest.approx([0.05, 0.5, 5, 50, 500])
    assert specs[0].privacy.accounting == "unaccounted"
    near = oracle(base(), epsilon=1.0, points=3, seeds=1, bounds=(1.0, 9.0))[0]
    assert near.search.space["optim.noise_scale"] == {"loguniform": [1.0, 9.0], "num": 3}
    assert epsilon_of_a_trial(specs[0]) == pytest.approx(1.0, abs=0.01)
