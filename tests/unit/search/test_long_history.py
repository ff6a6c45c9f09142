"""TPE where there are more trials than it is shown."""

import time

import numpy as np
import optuna
import pytest
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial

from dpsweep.search import long_tpe
from dpsweep.search.built_in import tpe_sampler
from dpsweep.search.long_tpe import SHOWN, History, LongTPE

SPACE = {
    "lr": optuna.distributions.FloatDistribution(1e-3, 10.0, log=True),
    "batch": optuna.distributions.CategoricalDistribution([64, 128, 256]),
}


def history(count, *, seed=0, directions=("maximize",)):
    """Return a study of trials whose best learning rate is 1; a third of them was pruned."""
    study = optuna.create_study(directions=list(directions))
    rng = np.random.default_rng(seed)
    for number in range(count):
        lr = float(10 ** rng.uniform(-3, 1))
        value = -float(np.log10(lr) ** 2)
        params = {"lr": lr, "batch": int(rng.choice([64, 128, 256]))}
        state = TrialState.PRUNED if number % 3 == 2 else TrialState.COMPLETE
        study.add_trial(
            create_trial(
                state=state, params=params, distributions=SPACE,
                values=[value] * len(directions) if state is TrialState.COMPLETE else None,
                intermediate_values={1: value} if len(directions) == 1 else {},
            )
        )  # fmt: skip
    return study


def suggested(study, sampler):
    study.sampler = sampler
    trial = study.ask()
    found = (
        trial.suggest_float("lr", 1e-3, 10.0, log=True),
        trial.suggest_categorical("batch", [64, 128, 256]),
    )
    study.tell(trial, state=TrialState.FAIL)
    return found


@pytest.mark.parametrize("direction", list(StudyDirection)[1:])
def test_the_best_are_kept_and_an_even_share_of_the_others(direction):
    study = history(3000)
    trials = study.get_trials(deepcopy=False)
    kept = History(direction).shown(trials)
    assert len(kept) == SHOWN
    assert [t.number for t in kept] == sorted({t.number for t in kept})
    sign = -1 if direction is StudyDirection.MAXIMIZE else 1
    complete = [t for t in trials if t.state is TrialState.COMPLETE]
    best = sorted(complete, key=lambda t: sign * t.value)[:25]
    assert {t.number for t in best} <= {t.number for t in kept}
    others = [t.number for t in kept if t not in best]
    assert others[0] < 10
    assert others[-1] > 2990
    assert max(np.diff(others)) <= 3000 / (SHOWN - 25) + 3
    share = sum(t.state is TrialState.PRUNED for t in kept if t not in best) / len(others)
    assert 0.25 < share < 0.42


def test_of_few_trials_it_is_optunas():
    for seed in range(5):
        plain = optuna.samplers.TPESampler(seed=seed, multivariate=False)
        study = history(SHOWN)
        assert suggested(study, tpe_sampler(seed)) == suggested(study, plain)


@pytest.mark.slow
@pytest.mark.parametrize("shown", [40, SHOWN])
def test_what_it_has_learned_before_is_what_a_new_one_would_read(monkeypatch, shown):
    """Trials end in any order, several of a value; some never run, some never end."""
    monkeypatch.setattr(long_tpe, "SHOWN", shown)
    rng = np.random.default_rng(3)
    study = optuna.create_study(direction="maximize")
    lasting, live = History(study.direction), []
    ends = ["complete", "complete", "complete", "pruned", "failed", "never"]
    for _ in range(150):
        trial = study.ask()
        trial.suggest_float("lr", 1e-3, 10.0, log=True)
        live.append(trial)
        while len(live) > rng.integers(1, 5):
            ended = live.pop(rng.integers(len(live)))
            end = rng.choice(ends)
            if end == "pruned":
                ended.report(float(rng.integers(4)), 1)
                study.tell(ended, state=TrialState.PRUNED)
            elif end == "failed":
                study.tell(ended, state=TrialState.FAIL)
            elif end == "complete":
                study.tell(ended, float(rng.integers(4)))
        trials = study.get_trials(deepcopy=False)
        kept = lasting.shown(trials)
        assert [t.number for t in kept] == [
            t.number for t in History(study.direction).shown(trials)
        ]
        for seen in kept:
            theirs = trials[seen.number]
            assert (seen.state, seen.value, seen.params, seen.constraints, seen.values) == (
                theirs.state, theirs.value, theirs.params, theirs.constraints, theirs.values
            )  # fmt: skip
            assert seen.intermediate_values == theirs.intermediate_values


def test_suggestions_while_others_run_are_optunas():
    """Optuna counts a trial that runs among the bad ones, so that two are not alike."""
    plain = optuna.samplers.TPESampler
    drawn = []
    for sampler in (tpe_sampler, lambda seed: plain(seed=seed, multivariate=False)):
        study, live, of = optuna.create_study(direction="maximize"), [], []
        for number in range(60):
            study.sampler = sampler(number)
            trial = study.ask()
            lr = trial.suggest_float("lr", 1e-3, 10.0, log=True)
            of.append((lr, trial.suggest_categorical("batch", [64, 128, 256])))
            live.append(trial)
            if len(live) == 4:
                ended = live.pop(number % 3)
                study.tell(ended, -abs(np.log10(ended.params["lr"])))
        drawn.append(of)
    assert drawn[0] == drawn[1]


def test_of_more_it_looks_for_the_same_place():
    study = history(SHOWN + 500)
    rates = [suggested(study, LongTPE(seed))[0] for seed in range(40)]
    assert np.median(np.abs(np.log10(rates))) < 0.1


def test_with_two_objectives_it_is_shown_all():
    study = history(SHOWN + 100, directions=("maximize", "minimize"))
    sampler = LongTPE(0)
    suggested(study, sampler)
    assert sampler._shown is study


@pytest.mark.slow
def test_a_suggestion_takes_no_longer_with_three_times_the_trials():
    """What every trial that has ended is asked is asked once, and not for each suggestion."""
    few, many = history(1500), history(4500)
    times = {few: [], many: []}
    for seed in range(12):  # in turns: neighbors on the machine slow both
        for study, seconds in times.items():
            begin = time.thread_time()
            suggested(study, LongTPE(seed))
            seconds.append(time.thread_time() - begin)
    assert np.median(times[many][1:]) < 1.5 * np.median(times[few][1:])
