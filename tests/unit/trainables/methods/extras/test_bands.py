"""Noise that takes itself back: a round costs its event, and nothing of the past is kept."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from dpsweep.auditing.audit import AuditSettings, run_audit
from dpsweep.auditing.subject import built_in
from dpsweep.foundation.errors import BadInputError, BudgetExceededError, InfeasibleBudgetError
from dpsweep.ledgers.trial import TrialLedger
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.gradients.noise import watched_releases
from dpsweep.trainables.method import RunContext
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.methods.extras.bands import (
    Rounds,
    bands_problems,
    charged_rounds,
    column,
    make_rounds,
)

CONTEXT = RunContext(study_seed=0, trial=0)


def matrix(bands, steps):
    """C, written out: lower triangular, the same column at each step."""
    c = column(bands)
    return np.array(
        [[c[t - s] if 0 <= t - s < bands else 0.0 for s in range(steps)] for t in range(steps)]
    )


def prepared(make_plan, data, method=DPSGD, **given):
    hparams, plan = make_plan(method, **given)
    instance = method()
    instance.prepare(data, hparams, plan, CONTEXT)
    return instance, plan


def noises_of(method, start, stop):
    """Noise of each step that a run takes, all tensors in one row, in units of its deviation."""
    seen = []
    with watched_releases(seen.append):
        method.run(start, stop)
    tensors = len(method._parameters)
    rows = [
        torch.cat([((r.noisy - r.exact) / r.scale).flatten() for r in seen[i : i + tensors]])
        for i in range(0, len(seen), tensors)
    ]
    return torch.stack(rows).numpy()


@pytest.mark.parametrize(("bands", "steps"), [(1, 4), (2, 5), (3, 7), (4, 6), (5, 4)])
def test_no_way_of_taking_part_moves_a_round_by_more_than_its_bound(bands, steps):
    """Brute force over groups and samples: norms of what one record adds, and who shares rows."""
    c, rng = matrix(bands, steps), np.random.default_rng(0)
    for group in range(bands):
        own = range(group, steps, bands)
        assert len(own) <= math.ceil(steps / bands)
        supports = [set(np.flatnonzero(c[:, step])) for step in own]
        assert all(not a & b for a, b in itertools.combinations(supports, 2))
        for pattern in itertools.product((0, 1), repeat=len(own)):
            gradients = np.zeros((steps, 3))
            for step, sampled in zip(own, pattern):
                direction = rng.standard_normal(3)
                gradients[step] = sampled * direction / np.linalg.norm(direction)
            moved = c @ gradients
            norms = [np.linalg.norm(moved[sorted(rows)]) for rows in supports]
            assert max(norms, default=0) <= 1 + 1e-12
            assert np.sum(moved**2) <= sum(pattern) + 1e-9
            outside = set(range(steps)).difference(*supports) if supports else set(range(steps))
            assert not np.any(moved[sorted(outside)])
    assert np.linalg.norm(column(bands)) == pytest.approx(1, abs=1e-12)


def test_the_column_is_that_of_the_square_root_of_prefix_sums():
    c = column(6) / column(6)[0]
    assert np.convolve(c, c)[:6] == pytest.approx(np.ones(6))


@pytest.mark.parametrize("bands", [2, 4])
def test_noise_is_that_of_the_inverse_of_the_matrix(bands, make_plan, data):
    """C n is independent and N(0, (z C)^2); n itself is not."""
    method, plan = prepared(
        make_plan, data, noise__bands=bands, train__max_steps=8 * bands, batch__expected=10
    )
    noise = noises_of(method, 0, len(plan))
    assert len(noise) == 8 * bands
    independent = matrix(bands, len(noise)) @ noise
    assert stats.kstest(independent.flatten(), "norm").pvalue > 1e-6
    assert np.std(independent) == pytest.approx(1, rel=5 / (2 * independent.size) ** 0.5)
    for lag in range(1, bands + 1):
        product = np.mean(independent[lag:] * independent[:-lag])
        assert abs(product) < 5 / independent[lag:].size ** 0.5
    assert np.mean(noise[1:] * noise[:-1]) < -0.1


def test_prefix_sums_have_less_noise():
    """What a weight hears of it: sums of steps, at the same multiplier of the events."""
    steps, bands = 64, 8
    sums = np.tril(np.ones((steps, steps)))
    errors = [np.sum((sums @ np.linalg.inv(matrix(b, steps))) ** 2) for b in (1, bands)]
    assert errors[1] < 0.6 * errors[0]


def test_a_plan_is_of_rounds(make_plan):
    _, plain = make_plan(DPSGD, train__max_steps=10)
    assert make_plan(DPSGD, train__max_steps=10, noise__bands=1)[1] == plain
    _, plan = make_plan(DPSGD, train__max_steps=10, noise__bands=4)
    (run,) = plan.runs
    assert (run.count, run.event.sample_rate, run.part) == (3, 1.0, "private")
    assert epsilon_of(plan, delta=1e-5) == pytest.approx(3.0, rel=1e-3)
    _, plan = make_plan(DPSGD, train__max_steps=10, noise__bands=2, batch__expected=20)
    assert plan.runs == (EventRun(PoissonGaussian(plan.at(0).noise_multiplier, 0.2), 5),)


@pytest.mark.parametrize("bands", [2, 4])
def test_epsilon_is_not_below_that_of_one_step_of_each_round(bands):
    """Whoever knows that a record is in step 0 of its rounds sees at least that much noise."""
    rate, rounds = charged_rounds({"noise.bands": bands}, 0.1, 5 * bands)
    plan = Plan((EventRun(PoissonGaussian(1.0, rate), rounds),))
    worse = Plan((EventRun(PoissonGaussian(1.0, 0.1), rounds),))
    assert epsilon_of(plan, delta=1e-5) > epsilon_of(worse, delta=1e-5)


def test_a_given_multiplier_ends_where_the_budget_does(make_plan, data):
    method, plan = prepared(
        make_plan, data, noise__bands=4, noise__noise_multiplier=2.0, train__max_steps=400
    )
    assert 0 < len(plan) < 100
    assert len(method._events) == len(method._learning_rates) == 4 * len(plan)


def test_every_record_takes_part_in_one_group_of_its_round(make_plan, data):
    """The law of the sampler: b q in one step of a round, 0 in the others, groups uniform."""
    method, plan = prepared(
        make_plan, data, noise__bands=3, train__max_steps=600, batch__expected=40
    )
    batches, sums = [], method._engine.clipped_gradient_sum

    def watched(inputs, labels, rows, bound):
        batches.append(rows)
        return sums(inputs, labels, rows, bound)

    method._engine.clipped_gradient_sum = watched
    method.run(0, len(plan))
    taken = np.zeros((200, 600), bool)
    for step, rows in enumerate(batches):
        taken[rows, step] = True
    by_slot = taken.reshape(200, 200, 3).sum(axis=1)
    assert np.all((by_slot > 0).sum(axis=1) == 1)
    groups = np.bincount(by_slot.argmax(axis=1), minlength=3)
    assert stats.chisquare(groups).pvalue > 1e-6
    assert stats.binomtest(int(taken.sum()), 200 * 200, 0.6).pvalue > 1e-6
    rounds = taken.reshape(200, 200, 3).any(axis=2)
    pairs = np.mean(rounds[:, 1:] & rounds[:, :-1])
    assert pairs == pytest.approx(0.36, abs=0.02)  # of one round whatever the round before was


def test_groups_do_not_depend_on_seeds_or_processes(make_plan, data):
    one, two = (prepared(make_plan, data, noise__bands=4)[0] for _ in range(2))
    for method in (one, two):
        method.run(0, 1)
    assert np.any(one._rounds._groups != two._rounds._groups)


def test_a_trial_that_goes_on_has_forgotten_noise_and_groups(make_plan, data):
    method, plan = prepared(make_plan, data, noise__bands=4, train__max_steps=16)
    assert len(plan) == 4
    noises_of(method, 0, 2)
    groups, state = method._rounds._groups, method.state_dict()
    assert set(state) == {"model", "optimizer", "position"}
    kept = [v for v in state["model"].values()]
    kept += [v for each in state["optimizer"]["state"].values() for v in each.values()]
    for step in method._noise._past:
        for noise in step:
            assert not any(torch.equal(noise.float(), v) for v in kept if torch.is_tensor(v))
    method.load_state_dict(state)
    after = noises_of(method, 2, 4)
    assert np.any(method._rounds._groups != groups)
    independent = matrix(4, 8) @ after  # C begins anew
    assert stats.kstest(independent.flatten(), "norm").pvalue > 1e-6
    assert np.std(independent) == pytest.approx(1, rel=5 / (2 * independent.size) ** 0.5)
    assert np.std(after[0]) == pytest.approx(1 / column(4)[0], rel=5 / (2 * after[0].size) ** 0.5)


class Independent:
    bands = 4

    def __init__(self):
        self.log = []

    def forget(self):
        self.log.append("forget")

    def next_step(self):
        self.log.append("step")


def test_an_unfinished_or_short_round_is_followed_by_other_groups():
    noise = Independent()
    rounds = Rounds([PoissonGaussian(1.0, 0.5)] * 10, 1000, noise)
    list(rounds.steps(0))
    groups = rounds._groups
    list(rounds.steps(1))
    assert rounds._groups is groups
    assert noise.log == ["forget"] + 8 * ["step"]
    for step in rounds.steps(1):
        if step == 5:
            break
    assert list(rounds.steps(1)) == [4, 5, 6, 7]
    assert noise.log[9:] == 2 * ["step"] + ["forget"] + 4 * ["step"]
    assert np.any(rounds._groups != groups)
    groups = rounds._groups
    assert list(rounds.steps(2)) == [8, 9]
    list(rounds.steps(0))
    assert np.any(rounds._groups != groups)


def test_lost_rounds_are_charged_again_and_never_past_the_budget(tmp_path, make_plan):
    _, plan = make_plan(DPSGD, train__max_steps=16, noise__bands=4)
    ledger = TrialLedger(
        tmp_path / "trial-0000.jsonl", budget=PrivacyBudget(3.0, 1e-5), accountant="rdp"
    )
    ledger.charge(0, 2, plan.slice(0, 2))
    ledger.charge(1, 3, plan.slice(1, 3))  # as after a checkpoint between the two rounds
    assert len(ledger) == 4
    assert ledger.epsilon() <= 3.0
    with pytest.raises(BudgetExceededError):
        ledger.charge(3, 4, plan.slice(3, 4))
    ledger.close()


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("noise.shape", {"noise__shape": "linear", "noise__end_ratio": 2.0}),
        ("noise.prefix_factor", {"noise__prefix_factor": 3.0}),
        ("clip.shape", {"clip__shape": "cosine", "clip__end_ratio": 0.5}),
        ("clip.rule", {"clip__rule": "quantile"}),
        ("optim.noise_lr", {"optim__noise_lr": 1.0}),
        ("optim.noise_scale", {"optim__noise_scale": 5.0}),
        ("optim.name", {"optim__name": "adam_bc"}),
    ],
)
def test_what_was_not_proved_beside_it_is_refused(name, given, make_plan):
    with pytest.raises(InfeasibleBudgetError, match=name) as refused:
        make_plan(DPSGD, noise__bands=4, **given)
    assert "\n" not in refused.value.message
    make_plan(DPSGD, noise__bands=1, **given)
    values = {key.replace("__", "."): [value] for key, value in given.items()}
    assert [m.key for m in bands_problems({**values, "noise.bands": [2, 4]})] == [name]
    assert bands_problems({**values, "noise.bands": [1, 4]}) == []


def test_a_batch_larger_than_a_group_is_refused(make_plan):
    with pytest.raises(InfeasibleBudgetError, match=r"noise\.bands=5 with a sampling rate"):
        make_plan(DPSGD, noise__bands=5)  # 50 of 200
    assert charged_rounds({"noise.bands": 3}, 1 / 3 + 1e-16, 7) == (1.0, 3)


@pytest.mark.parametrize("name", ["sparse", "bitfit"])
def test_methods_without_a_proof_have_no_such_switch(name):
    assert "noise.bands" not in {knob.name for knob in TRAINABLES[name].hyperparameters}


def test_an_audit_says_that_it_does_not_follow_it():
    subject = built_in("dp_sgd", 1.0, 4, {"model.name": "linear", "noise.bands": 2})
    with pytest.raises(BadInputError, match=r"noise\.bands=2"):
        run_audit(subject, AuditSettings(20))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("scatternet", {"normalize__kind": "private_data", "heads__count": 2}),
        ("dope_sgd", {"clip__rule": "automatic"}),
        ("dp_sgd", {"optim__name": "adam", "optim__ema": 0.9}),
    ],
)
def test_it_is_a_switch_of_every_method_that_has_it(name, given, make_plan, make_blobs):
    data = make_blobs(shape=(1, 8, 8))
    if name == "dope_sgd":
        data = replace(data, parts={**data.parts, "public": data.parts["validation"]})
    given = {"features__name": "none", **given} if name == "scatternet" else given
    method, plan = prepared(
        make_plan, data, TRAINABLES[name], noise__bands=4, train__max_steps=10, **given
    )
    before = method._num_before
    assert len(plan) == before + 3
    method.run(0, len(plan))
    assert len(method._noise._past) == 4
    assert len(method._events) == 10
    method.load_state_dict(method.state_dict())


def test_without_bands_nothing_is_as_it_was_not(make_plan, data):
    method, _ = prepared(make_plan, data)
    assert method._rounds is None
    assert make_rounds({}, method._events, 20, 200, "cpu") is None
