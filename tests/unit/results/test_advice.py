"""What is left of a study's budget, and the command that buys more trials with it."""

import re
import shlex
from functools import partial

import pytest
from whole_studies import cli_here
from written_studies import write_study

from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import TrialLedger, trial_file
from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import read_spec
from dpsweep.results.advice import advice, noise_alone, trials_that_fit, undelivered
from dpsweep.results.study import load_sweep
from dpsweep.study.journal import fold
from dpsweep.study.launched import refuse_other_spec
from dpsweep.study.study import Study
from dpsweep.tracking.state import TrackingState


@pytest.fixture
def written(tmp_path):
    return partial(write_study, tmp_path)


def admitted(result, more, share):
    """Return how many further trials the study's own ledger admits, each of a known cost."""
    checked = preflight(result.spec)
    ledger = StudyLedger(result.files.ledger)
    first, count = len(result.view.trials), 0
    for number, point in enumerate(checked.draw(first + more + 20)):
        if number < first:
            continue
        task = checked.admit(number, point)
        if not ledger.reserve(number, task.full_plan, epsilon=task.planned_epsilon):
            break
        steps = max(1, int(share * len(task.plan)))
        own = TrialLedger(
            trial_file(result.files.ledger, number), budget=checked.budget, accountant="rdp"
        )
        own.charge(0, steps, task.plan.slice(0, steps))
        own.close()
        ledger.settle(number, "finished")
        count += 1
    ledger.close()
    return count


@pytest.mark.parametrize("share", [1, 0.3])
def test_the_ledger_admits_as_many_as_are_told(written, share):
    result = written([1, share])
    more = trials_that_fit(result)
    assert more >= 2
    mean = 1 if share == 1 else (1 + share) / 2
    assert abs(admitted(result, more, mean) - more) <= 2


def test_the_advice_is_a_command_that_continues_the_study(written, tmp_path, monkeypatch):
    result = written([1, 0.3])
    monkeypatch.chdir(tmp_path)
    told, command = advice(result)
    assert "at no further cost" in told
    assert (
        "used or reserved by 2 trials (in Renyi cost, by which k equal trials use k times" in told
    )
    number = 2 + trials_that_fit(result)
    words = shlex.split(command)
    assert words[-2:] == ["--set", f"search.num_trials={number}"]
    done = cli_here("status", "digits", "--root", tmp_path / "studies")
    assert command in done.stderr  # `run` prints what `advice` returns, too
    # What `run` asks first: the same study, or refused.
    study = Study(read_spec(tmp_path / words[2], overrides=words[4::2]))
    study.keep_spec()
    study.close()
    assert load_sweep("digits", root=tmp_path / "studies").spec.search.num_trials == number


def test_status_shows_it_too_and_never_an_epsilon_alone(written, tmp_path):
    written([1, 0.3])
    done = cli_here("status", "digits", "--root", tmp_path / "studies")
    assert done.returncode == 0, done.stderr
    assert "search.num_trials=" in done.stderr
    assert not re.search(r"epsilon\W*\d", done.stderr)


@pytest.mark.parametrize(
    ("shares", "changes", "lines"),
    [
        ([1, 1], {"state": "interrupted"}, 1),
        ([1, 1], {"reason": "search.max_time has passed"}, 1),
        ([1, 1], {"search": {"sampler": "grid", "space": {
            "method": "dp_sgd", "train.epochs": 5, "optim.lr": {"choice": [0.5, 1]}}}}, 1),
    ],
)  # fmt: skip
def test_there_is_no_command_where_it_would_do_nothing(written, shares, changes, lines):
    result = written(shares, **changes)
    found = advice(result)
    assert len(found) == lines
    assert "budget: " in found[0]


def test_a_search_that_time_has_ended_is_told_how_it_goes_on(written, tmp_path, monkeypatch):
    """The trials that are left of its number, at most; the change is one that a launch takes."""
    result = written([1, 0.3], reason="search.max_time has passed", search__max_time=60)
    study = Study(read_spec(tmp_path / "study.yaml", overrides=["search.num_trials=3"]))
    study.keep_spec()
    study.close()
    monkeypatch.chdir(tmp_path)
    told, command = advice(load_sweep("digits", root=tmp_path / "studies"))
    assert trials_that_fit(result) > 1
    assert (
        "so that one more trial fits at no further cost, without the search.max_time that" in told
    )
    words = shlex.split(command)
    assert words[-2:] == ["--set", "search.max_time=null"]
    spec = read_spec(tmp_path / words[2], overrides=words[4::2])
    assert (spec.search.max_time, spec.search.num_trials) == (None, 3)
    refuse_other_spec(spec)


def test_nothing_is_advised_to_a_study_that_claims_nothing(written):
    result = written([1, 0.3])
    ledger = StudyLedger(result.files.ledger)
    ledger.downgrade("tested")
    ledger.close()
    assert advice(load_sweep("digits", root=result.files.path.parent)) == []


def test_what_is_used_up_buys_nothing(written, tmp_path):
    most = 2 + admitted(written([1, 1]), 40, 1)
    assert most > 3
    (tmp_path / "full").mkdir()
    result = write_study(tmp_path / "full", [1] * most)
    assert trials_that_fit(result) == 0
    assert len(advice(result)) == 1


def test_the_time_of_a_study_is_that_of_its_launches():
    """S1.5: an hour between two launches is no work."""
    hour = 3_600_000
    events = [
        (0, "study_started", {"name": "x"}),
        (5_000, "study_spent", {"epsilon": 0.2, "share": 0.1}),
        (8_000, "study_ended", {"state": "interrupted"}),
        (hour, "study_started", {"name": "x"}), (hour + 2_000, "study_ended", {"state": "finished"}),
        (2 * hour, "model_logged", {"trial": 0, "uri": "models:/m"}),
    ]  # fmt: skip
    view = fold([{"time_ms": 1 + time, "event": event, **more} for time, event, more in events])
    assert view.worked_ms == 10_000


def test_events_that_the_store_has_not_are_told_with_what_delivers_them(
    written, tmp_path, monkeypatch
):
    result = written([1])
    monkeypatch.chdir(tmp_path)
    assert undelivered(result) == ""  # it has no store
    tracking = result.spec.tracking.model_copy(update={"uri": "sqlite:///mlflow.db"})
    result.spec = result.spec.model_copy(update={"tracking": tracking})
    number = len(read_log(result.files.journal))
    line, typed = undelivered(result).splitlines()
    assert f"{number} events" in line
    assert typed.strip() == "dpsweep run studies/digits/spec.yaml"
    TrackingState(seq=number - 2).save(result.files.tracking)
    assert "1 event;" in undelivered(result)
    TrackingState(seq=number - 1).save(result.files.tracking)
    assert undelivered(result) == ""


@pytest.mark.parametrize(("std", "is_doubted"), [(0.05, False), (0.15, False), (0.4, True)])
def test_scores_that_are_no_more_than_noise_are_doubted(written, std, is_doubted):
    result = written([1, 1])
    assert noise_alone(result) == []
    part = result.spec.data.validation
    noisy = part.model_copy(update={"visibility": "noisy", "noise_std": std})
    data = result.spec.data.model_copy(update={"validation": noisy})
    vars(result)["spec"] = result.spec.model_copy(update={"data": data})
    for trial in result.view.trials.values():
        trial.value = 0.5
    assert ("which is not told of private records" in " ".join(noise_alone(result))) is is_doubted
    assert advice(result)[0].startswith("no noisy accuracy" if is_doubted else "budget:")
    for trial in result.view.trials.values():  # the best of so many is as high by noise alone
        trial.reports = [{}] * 500
    assert bool(noise_alone(result)) is (std > 0.1)
