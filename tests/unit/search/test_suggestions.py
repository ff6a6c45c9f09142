"""Optuna's study follows the journal: what is damaged or older is written anew, and goes on alike."""

import math
import shutil
import sqlite3

import optuna
import pytest
from whole_studies import make_spec

from dpsweep.foundation.errors import SweepError
from dpsweep.search.known import KnownTrial
from dpsweep.search.optuna_file import place_of
from dpsweep.search.suggestions import Suggestions
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.facts import terms
from dpsweep.spec.study import SweepSpec


def make(tmp_path, sampler="tpe", **search):
    raw = make_spec(tmp_path, "rebuilt", tracking={"uri": None})
    raw["search"] |= {"sampler": sampler, **search}
    spec = SweepSpec(**raw)
    return spec, SearchSpace.from_spec(spec.space)


def play(suggestions, known, number):
    """Suggest and end one trial, as a search does, and write down what its journal would say."""
    asked, config = suggestions.ask()
    assert asked == number
    outcome = ("finished", "pruned", "failed")[number % 3]
    scores = {5: config["optim.lr"], 10: config["optim.lr"] / 2}
    for step, score in scores.items():
        suggestions.report(number, step, score)
    values = [scores[10]] if outcome == "finished" else None
    suggestions.tell(number, outcome, values)
    known[number] = KnownTrial(config, outcome, [scores[10]], scores)
    return config


def contents(suggestions):
    return [
        (t.number, t.state, t.params, t.values, t.intermediate_values)
        for t in suggestions._study.get_trials()
    ]


@pytest.fixture
def played(tmp_path):
    spec, space = make(tmp_path)
    path, known = tmp_path / "optuna.db", {}
    suggestions = Suggestions(spec, space, path=path)
    for number in range(14):  # beyond the random trials that TPE begins with
        play(suggestions, known, number)
    return spec, space, path, known, suggestions


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "how",
    [
        "deleted",
        "cut",
        "older",
        "edited",
        *(pytest.param(how, marks=pytest.mark.slow) for how in ("overwritten", "emptied")),
    ],
)
def test_the_study_is_written_anew_and_the_sampler_goes_on_alike(played, tmp_path, how):
    spec, space, path, known, suggestions = played
    before = contents(suggestions)
    wanted = [suggestions.ask() for _ in range(2)]
    content = path.read_bytes()
    if how == "deleted":
        path.unlink()
    elif how in ("older", "edited"):
        change = "delete from trials where number > 9"
        if how == "edited":
            change = "update trial_values set value = value + 1"
        with sqlite3.connect(path) as database:
            database.execute(change)
        database.close()
    else:
        new = {"cut": content[: len(content) // 2], "emptied": b""}
        path.write_bytes(new.get(how, b"something else" * 400))
    told = []
    again = Suggestions(spec, space, path=path, known=known, on_message=told.append)
    assert contents(again) == before
    assert [again.ask() for _ in range(2)] == wanted
    assert len(told) == 1
    assert "written anew from the journal" in told[0]
    aside = list(tmp_path.glob("optuna.db.damaged-*"))
    assert len(aside) == (0 if how == "deleted" else 1)


def test_a_study_that_is_whole_stays(played):
    spec, space, path, known, suggestions = played
    before, told = contents(suggestions), []
    again = Suggestions(spec, space, path=path, known=known, on_message=told.append)
    assert (contents(again), told) == (before, [])


def test_an_end_that_a_kill_cut_off_is_told(tmp_path):
    spec, space = make(tmp_path)
    path, known, told = tmp_path / "optuna.db", {}, []
    suggestions = Suggestions(spec, space, path=path)
    play(suggestions, known, 0)
    number, config = suggestions.ask()
    known[number] = KnownTrial(config, "finished", [0.5])
    again = Suggestions(spec, space, path=path, known=known, on_message=told.append)
    assert [(t.state.name, t.values) for t in again._study.get_trials()][1] == ("COMPLETE", [0.5])
    assert told == []


@pytest.mark.sampled(15)
@pytest.mark.parametrize("sampler", ["random", "tpe", "grid"])
@pytest.mark.parametrize("points", [[], [{"optim.lr": 1.0}, {"noise.shape": "cosine"}]])
@pytest.mark.parametrize("is_cut", [False, True])
def test_what_a_killed_process_had_asked_for_is_asked_again(tmp_path, sampler, points, is_cut):
    """Whole, or killed in the middle of the suggestion; the trials are those of no kill at all."""
    changes = {"points_to_evaluate": points}
    if sampler == "grid":
        changes["space"] = {"method": "dp_sgd", "optim.lr": {"choice": [0.5, 1.0, 2.0]},
                            "noise.shape": {"choice": ["constant", "cosine"]}}  # fmt: skip
    spec, space = make(tmp_path, sampler, **changes)
    undisturbed = Suggestions(spec, space, path=None)
    wanted = [play(undisturbed, {}, number) for number in range(5)]
    path, known, configs = tmp_path / "optuna.db", {}, []
    for number in range(5):
        killed = Suggestions(spec, space, path=path, known=known)
        with pytest.MonkeyPatch.context() as patch:
            if is_cut:
                patch.setattr(SearchSpace, "suggest", lambda *arguments: {})
            assert killed.ask()[0] == number
        again = Suggestions(spec, space, path=path, known=known)
        configs.append(play(again, known, number))
    assert configs == wanted


def test_points_that_wait_go_on_waiting(tmp_path):
    points = [{"optim.lr": rate} for rate in (1.0, 2.0, 2.0, 3.0)]
    spec, space = make(tmp_path, points_to_evaluate=points)
    path, known = tmp_path / "optuna.db", {}
    first = Suggestions(spec, space, path=path)
    assert play(first, known, 0)["optim.lr"] == 1.0
    path.unlink()
    again = Suggestions(spec, space, path=path, known=known)
    rates = [again.ask()[1]["optim.lr"] for _ in range(2)]
    assert rates == [2.0, 3.0]


def test_trials_that_run_and_numbers_that_are_not_known_keep_their_places(tmp_path):
    spec, space = make(tmp_path)
    path = tmp_path / "optuna.db"
    _, config = Suggestions(spec, space, path=None).ask()
    known = {
        1: KnownTrial(config, None, scores={5: 0.25}),
        3: KnownTrial(config, "finished", [1.0]),
    }
    suggestions = Suggestions(spec, space, path=path, known=known)
    states = [t.state.name for t in suggestions._study.get_trials()]
    assert states == ["FAIL", "RUNNING", "FAIL", "COMPLETE"]
    suggestions.report(1, 10, 0.5)
    suggestions.tell(1, "finished", [0.5])
    assert suggestions.ask()[0] == 4


def test_a_leftover_of_sqlite_is_not_played_into_the_new_file(played, tmp_path):
    spec, space, path, known, _ = played
    path.write_bytes(b"something else" * 400)
    journal = tmp_path / "optuna.db-journal"
    journal.write_bytes(b"of the old one")
    Suggestions(spec, space, path=path, known=known)
    assert not journal.exists()


def test_a_file_that_another_program_holds_is_not_damaged(played, monkeypatch):
    spec, space, path, known, _ = played
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **{**k, "timeout": 0.1}))
    shutil.copy(path, path.with_name("copy.db"))
    with connect(path) as database:
        database.execute("begin exclusive")
        with pytest.raises(SweepError, match="cannot be used"):
            Suggestions(spec, space, path=path, known=known)
        database.rollback()
    database.close()
    assert not list(path.parent.glob("optuna.db.damaged*"))


def test_a_trial_that_has_ended_has_its_epsilon_with_all_terms(tmp_path):
    """Where Optuna's tools look; what has no finite one has none, and a rebuilt file has it too."""
    spec, space = make(tmp_path)
    path, known = tmp_path / "optuna.db", {}
    suggestions = Suggestions(spec, space, path=path)
    for number, epsilon in enumerate((1.25, math.inf, 0.5)):
        _, config = suggestions.ask()
        outcome = "pruned" if number == 2 else "finished"
        suggestions.tell(number, outcome, [0.5], epsilon=epsilon)
        known[number] = KnownTrial(config, outcome, [0.5], {5: 0.5}, epsilon=epsilon)
    suggestions.ask()

    def attributes(suggestions):
        return [trial.user_attrs for trial in suggestions._study.get_trials()]

    shown = attributes(suggestions)
    assert [each.get("dp/epsilon") for each in shown] == [1.25, None, 0.5, None]
    words = "delta 1e-05, example, add_or_remove_one"
    assert shown[0]["dp/epsilon_is"].startswith(words)
    for word in ("rdp", "unaccounted", "one trial alone"):
        assert word in shown[0]["dp/epsilon_is"]
    assert shown[1] == {}
    path.unlink()
    again = Suggestions(spec, space, path=path, known=known)
    assert attributes(again)[:3] == shown[:3]


def test_an_end_that_a_kill_cut_off_brings_its_epsilon(tmp_path):
    spec, space = make(tmp_path)
    path = tmp_path / "optuna.db"
    _, config = Suggestions(spec, space, path=path).ask()
    known = {0: KnownTrial(config, "finished", [0.5], {5: 0.5}, epsilon=1.25)}
    (trial,) = Suggestions(spec, space, path=path, known=known)._study.get_trials()
    assert trial.user_attrs["dp/epsilon"] == 1.25


def meanings(path):
    study = optuna.load_study(study_name="rebuilt", storage=f"sqlite:///{path}")
    return [trial.user_attrs.get("dp/epsilon_is") for trial in study.get_trials()]


@pytest.fixture
def composed(tmp_path):
    """A search whose study gives up its claim after two trials, and the names of its terms."""
    raw = make_spec(tmp_path, "rebuilt", tracking={"uri": None})
    raw["privacy"] |= {"accounting": "composed", "study_epsilon": 6.0}
    spec = SweepSpec(**raw)
    before = terms(spec)
    assert "composed" in before
    after = before.replace("composed", "unaccounted")
    return spec, SearchSpace.from_spec(spec.space), before, after


def test_a_claim_that_is_given_up_leaves_the_epsilons_of_trials_that_have_ended(composed, tmp_path):
    spec, space, before, after = composed
    path, words = tmp_path / "optuna.db", [before]
    suggestions = Suggestions(spec, space, path=path, meaning=lambda: words[0])
    for number in range(3):
        suggestions.ask()
        suggestions.tell(number, "finished", [0.5], epsilon=1.25)
        if number == 1:
            assert meanings(path) == [before, before]
            words[0] = after
            place_of(path).relabel(after)  # while the search has the file open, and goes on
    assert meanings(path) == [after] * 3
    epsilons = [trial.user_attrs["dp/epsilon"] for trial in suggestions._study.get_trials()]
    assert epsilons == [1.25] * 3


@pytest.mark.slow
def test_a_file_that_missed_it_is_written_anew(composed, tmp_path):
    spec, space, before, after = composed
    path, said = tmp_path / "optuna.db", []
    _, config = (first := Suggestions(spec, space, path=path)).ask()
    first.tell(0, "finished", [0.5], epsilon=1.25)
    known = {0: KnownTrial(config, "finished", [0.5], {5: 0.5}, epsilon=1.25)}
    Suggestions(spec, space, path=path, known=known, on_message=said.append)
    assert (meanings(path), said) == ([before], [])
    now = {"meaning": lambda: after, "on_message": said.append}
    Suggestions(spec, space, path=path, known=known, **now)
    assert meanings(path) == [after]
    assert "has other terms for the epsilon of trial 0" in said[0]


def test_where_there_is_no_file_none_is_made(tmp_path):
    place_of(tmp_path / "optuna.db").relabel("anything")
    assert not list(tmp_path.iterdir())
