"""Learning rates that follow from the noise: their plans, and spaces that contradict themselves."""

import pytest
from raw_specs import changed, mistakes

from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import read_spec
from dpsweep.planning.summary import summarize_plan
from dpsweep.spec.study import SweepSpec

RAW = {
    "name": "rates",
    "data": {
        "dataset": "digits",
        "validation": {"fraction": 0.2, "visibility": "public"},
        "public": {"fraction": 0.3},
    },
    "privacy": {"delta": 1e-5, "trial_epsilon": 2.0, "accounting": "unaccounted"},
    "search": {
        "sampler": "random",
        "num_trials": 2,
    },
    "tracking": {"uri": None},
}
SCALED = {"optim.noise_scale": 5, "optim.input_norm": 3.4}


def spec(method="dp_sgd", **given):
    network = {} if method == "adamix" else {"model.name": "linear"}
    space = {"method": method, "train.max_steps": 40, **network, **given}
    return SweepSpec(**changed(RAW, {"search/space": space}))


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        (
            "dp_sgd",
            {"optim.lr": 0.1, "optim.noise_lr": {"loguniform": [0.1, 9]}},
            "optim.lr: has no effect: optim.noise_lr, which is given too, wins over it (leave one",
        ),
        (
            "bitfit",
            {"optim.lr": {"loguniform": [0.1, 1]}, **SCALED},
            "optim.lr: has no effect: optim.noise_scale, which is given too, wins over it (leave",
        ),
        (
            "dp_sgd",
            {"optim.noise_lr": 2, **SCALED},
            "optim.noise_scale: and optim.noise_lr both say the learning rate (leave one of the",
        ),
        (
            "dp_sgd",
            {"optim.noise_scale": {"loguniform": [0.5, 50]}},
            "optim.noise_scale: needs optim.input_norm, the mean norm of what enters the linear "
            "layer (declare it: a public number, never the mean of private records)",
        ),
        (
            "dp_sgd",
            {"optim.name": "adam", **SCALED},
            "optim.noise_scale: has no meaning for adam, which divides by the noise itself (give ",
        ),
        ("dp_sgd", {"optim.lr": None}, "optim.lr: is null, and neither optim.noise_lr nor optim.n"),
        (
            "bitfit",
            {"optim.noise_lr": 2, "bitfit.variant": "two_phase", "bitfit.full_lr": 0.1},
            "bitfit.full_lr: is a learning rate beside optim.noise_lr and would not follow the n",
        ),
        (
            "adamix",
            {"features.name": "none", "optim.noise_lr": 2, "optim.noise_scale": 5},
            "optim.noise_scale: and optim.noise_lr both say the learning rate (leave one of the",
        ),
    ],
)
def test_a_space_that_contradicts_itself_is_refused_at_once(method, given, said):
    (line,) = mistakes(preflight, spec(method, **given))
    assert line.startswith(f"search.space.{said}")


@pytest.mark.parametrize(
    "method",
    [
        "non_private",
        "scatternet_non_private",
        "adamix_paragon",
        "bitfit_non_private",
        "sparse_non_private",
    ],
)
def test_a_method_without_noise_has_no_such_rate(method):
    text = f"""\
name: rates
data: {{dataset: digits, validation: {{visibility: public}}, public: {{fraction: 0.3}}}}
privacy: {{delta: 1.0e-5, trial_epsilon: 2.0, accounting: unaccounted}}
search: {{num_trials: 2, space: {{method: {method}, optim.noise_lr: 2}}}}
"""
    (line,) = mistakes(read_spec, text)
    assert f"search.space.optim.noise_lr: {method} has no such hyperparameter" in line
    assert "search over a method that has it: " in line
    assert "dp_sgd" in line


def test_branches_may_have_rates_of_their_own():
    """Adam by its rate, SGD by u: one parameter, a domain for each."""
    rates = {"by": {"optim.name": {"sgd": {"loguniform": [1, 99]}, "adam": 0.05}}}
    own = spec(**{"optim.name": {"choice": ["sgd", "adam"]}, "optim.noise_lr": rates})
    sample = preflight(own).sample
    assert {task.hparams["optim.lr"] for task in sample} == {None}
    assert {task.hparams["optim.noise_lr"] for task in sample} > {0.05}


def test_a_plan_shows_the_rate_that_follows():
    plain = summarize_plan(preflight(spec(**{"optim.lr": 0.5})))
    assert plain.plan_facts == {}
    summary = summarize_plan(preflight(spec(**{"optim.noise_lr": {"choice": [2, 20]}})))
    noise = summary.noise_multiplier[0]
    low, high = summary.plan_facts["learning_rate"]
    assert (low * noise, high * noise) == pytest.approx((2, 20))
    assert summary.to_dict()["plan_facts"] == {"learning_rate": [low, high]}


def test_the_frozen_winner_of_a_public_search_keeps_u_and_gets_a_rate_of_its_own():
    """As ``run_public`` admits it: from all that the task of the search has."""
    raw = changed(spec(**{"optim.noise_lr": 3}).to_dict(), {"privacy/accounting": "public"})
    checked = preflight(SweepSpec(**raw))
    public = checked.for_public_search()
    searched = public.admit(0, {"method": "dp_sgd", "optim.noise_lr": 3, "train.max_steps": 40})
    final = checked.admit(1, {"method": "dp_sgd", **searched.hparams})
    assert final.hparams == searched.hparams
    rates = [
        check.methods["dp_sgd"].peak_rate(task.hparams, task.plan, check.info.num_private)
        for check, task in ((public, searched), (checked, final))
    ]
    assert rates[0] < 0.9 * rates[1]  # fewer records, more noise
    noises = [task.plan.at(0).noise_multiplier for task in (searched, final)]
    assert [r * n for r, n in zip(rates, noises)] == pytest.approx([3, 3])


def test_a_trial_s_configuration_is_a_spec_again():
    """As ``best --as-spec`` writes it: with the null of the rate that follows."""
    task = preflight(spec(**{"optim.noise_lr": 3})).admit(0, {"method": "dp_sgd", **SCALED})
    again = preflight(spec(**{"optim.lr": None, **SCALED})).sample
    assert {each.hparams["optim.lr"] for each in again} == {task.hparams["optim.lr"]} == {None}
