"""Optuna's study in memory says what its file says, which is written to and not asked again."""

import sqlite3
from contextlib import closing, contextmanager

import optuna
import pytest
from optuna.exceptions import StorageInternalError
from whole_studies import make_spec

from dpsweep.foundation.errors import SweepError
from dpsweep.search import long_tpe
from dpsweep.search.known import KnownTrial
from dpsweep.search.suggestions import Suggestions
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.study import SweepSpec


def make(tmp_path, sampler="tpe", **search):
    raw = make_spec(tmp_path, "through", tracking={"uri": None})
    raw["search"] |= {"sampler": sampler, **search}
    spec = SweepSpec(**raw)
    return spec, SearchSpace.from_spec(spec.space)


def stored(path):
    study = optuna.load_study(study_name="through", storage=f"sqlite:///{path}")
    return study.user_attrs, shown(study)


def shown(study):
    return [
        (t.number, t.state, t.params, t.distributions, t.values, t.intermediate_values,
         t.user_attrs, t.system_attrs)
        for t in study.get_trials()
    ]  # fmt: skip


SPACE = {"method": "dp_sgd", "optim.lr": {"loguniform": [0.1, 4]},
         "noise.shape": {"choice": ["constant", "cosine"]}}  # fmt: skip
GRID = {"method": "dp_sgd", "optim.lr": {"choice": [0.5, 1.0, 2.0]},
        "noise.shape": {"choice": ["constant", "cosine"]}}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("sampler", "changes"),
    [
        ("tpe", {}),
        ("tpe", {"points_to_evaluate": [{"optim.lr": 1.0}, {"noise.shape": "cosine"}]}),
        ("grid", {"space": GRID}),
    ],
    ids=["tpe", "points", "grid"],
)
def test_the_file_says_what_memory_says_after_each_change(tmp_path, sampler, changes):
    spec, space = make(tmp_path, sampler, **changes)
    path = tmp_path / "optuna.db"
    search = Suggestions(spec, space, path=path)

    def check():
        assert stored(path) == (search._study.user_attrs, shown(search._study))

    check()
    for outcome in ("finished", "pruned", "failed", "finished"):
        number, config = search.ask()
        check()
        search.report(number, 5, config["optim.lr"])
        check()
        search.tell(number, outcome, [0.5] if outcome == "finished" else None, epsilon=1.25)
        check()
    number, _ = search.ask()
    search.refuse(number, "too dear")
    check()
    again = Suggestions(spec, space, path=path)
    assert shown(again._study) == shown(search._study)


def test_the_file_is_read_once_and_a_trial_written_at_once(tmp_path, monkeypatch):
    spec, space = make(tmp_path)
    calls = []
    for name in ("get_all_trials", "get_trial", "_get_trials", "create_new_trial",
                 "set_trial_param"):  # fmt: skip
        call = getattr(optuna.storages.RDBStorage, name)

        def counted(*arguments, name=name, call=call, **options):
            calls.append(name)
            return call(*arguments, **options)

        monkeypatch.setattr(optuna.storages.RDBStorage, name, counted)
    search = Suggestions(spec, space, path=tmp_path / "optuna.db")
    assert "get_all_trials" in calls
    calls.clear()
    for _ in range(12):  # beyond the random trials that TPE begins with
        number, config = search.ask()
        search.tell(number, "finished", [config["optim.lr"]], epsilon=1.0)
    assert calls == ["create_new_trial"] * 12


def test_of_a_trial_that_is_not_all_drawn_the_file_has_nothing(tmp_path, monkeypatch):
    spec, space = make(tmp_path)
    path = tmp_path / "optuna.db"
    search = Suggestions(spec, space, path=path)
    assert search.ask()[0] == 0

    def die(space, trial):
        trial.suggest_float("optim.lr", 0.1, 8, log=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SearchSpace, "suggest", die)
        with pytest.raises(KeyboardInterrupt):
            search.ask()
    assert len(stored(path)[1]) == 1
    again = Suggestions(spec, space, path=path)
    assert len(again._study.trials) == 1
    assert [again.ask()[0] for _ in range(2)] == [0, 1]


def test_what_is_not_written_is_not_believed(tmp_path, monkeypatch):
    """An end that the file does not take is no end in memory, either."""
    spec, space = make(tmp_path)
    (tmp_path / "journal.jsonl").touch()
    search = Suggestions(spec, space, path=tmp_path / "optuna.db")
    number, _ = search.ask()

    def refuse(*arguments, **options):
        raise StorageInternalError("full")

    with monkeypatch.context() as patch:
        patch.setattr(optuna.storages.RDBStorage, "set_trial_state_values", refuse)
        with pytest.raises(SweepError, match="cannot be used: full"):
            search.tell(number, "finished", [0.5])
    assert [t.state.name for t in search._study.get_trials()] == ["RUNNING"]


def test_an_excerpt_of_a_long_history_is_what_copies_of_its_trials_are(monkeypatch):
    monkeypatch.setattr(long_tpe, "SHOWN", 40)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=1))
    study.optimize(lambda trial: -abs(trial.suggest_float("x", 0, 1) - 0.3), n_trials=60)
    copies = optuna.create_study(direction="maximize")
    copies.add_trials(long_tpe.History(study.direction).shown(study.get_trials()))
    asked = {"excerpt": [], "copies": []}
    for seed in range(20):
        for name, of, sampler in (
            ("excerpt", study, long_tpe.LongTPE(seed)),
            ("copies", copies, optuna.samplers.TPESampler(seed=seed, multivariate=False)),
        ):
            of.sampler = sampler
            trial = of.ask()
            asked[name].append(trial.suggest_float("x", 0, 1))
            of.tell(trial, state=optuna.trial.TrialState.FAIL)
    assert asked["excerpt"] == asked["copies"]
    whole = optuna.samplers.TPESampler(seed=7, multivariate=False)
    study.sampler = whole
    assert study.ask().suggest_float("x", 0, 1) != asked["excerpt"][7]


def draws(search, number):
    """Ask for trials and end them, three at a time, as a search does."""
    live, configs = [], []
    for _ in range(number):
        live.append(search.ask())
        configs.append(live[-1][1])
        if len(live) == 3:
            done, config = live.pop(0)
            search.tell(done, "finished", scores(search, config), epsilon=1.0)
    for done, config in live:
        search.tell(done, "finished", scores(search, config), epsilon=1.0)
    return configs


def scores(search, config):
    return [abs(config["optim.lr"] - 1.0)] * len(search.objectives)


@pytest.mark.slow
def test_a_genetic_sampler_goes_on_as_if_nothing_had_ended(tmp_path):
    """Its parents are an attribute of the study, by identifiers that are not the file's."""
    spec, space = make(
        tmp_path, "nsga2", metric="validation/accuracy",
        objectives=["validation/accuracy", "dp/epsilon"],
    )  # fmt: skip
    whole = Suggestions(spec, space, path=tmp_path / "whole.db")
    first = Suggestions(spec, space, path=tmp_path / "cut.db")
    assert draws(first, 66) == draws(whole, 66)
    attributes = first._storage.get_study_system_attrs(0)
    assert [key for key in attributes if ":parent:" in key]
    again = Suggestions(spec, space, path=tmp_path / "cut.db")
    assert again._storage.get_study_system_attrs(0) == attributes
    assert draws(again, 8) == draws(whole, 8)
    with optuna_study(tmp_path / "cut.db") as study:
        ids = {trial._trial_id for trial in study.trials}
        kept = study._storage.get_study_system_attrs(study._study_id)
        assert all(set(kept[key]) <= ids for key in attributes)


@contextmanager
def optuna_study(path):
    yield optuna.load_study(study_name="through", storage=f"sqlite:///{path}")


def test_a_write_that_is_cut_off_is_not_made_twice(tmp_path, monkeypatch):
    spec, space = make(tmp_path)
    path = tmp_path / "optuna.db"
    search = Suggestions(spec, space, path=path)
    number, _ = search.ask()
    call = optuna.storages.RDBStorage.create_new_trial

    def cut(*arguments, **options):
        call(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(optuna.storages.RDBStorage, "create_new_trial", cut)
        with pytest.raises(KeyboardInterrupt):
            search.ask()
    search.report(number, 5, 0.25)
    assert [trial[0] for trial in stored(path)[1]] == [0, 1]


@pytest.mark.sampled(21)
@pytest.mark.parametrize(
    "change",
    [
        "delete from trial_values",
        "delete from study_directions",
        "delete from trials where number = 1",
        "update trial_params set distribution_json = '{'",
        "update trial_params set distribution_json = '[]'",
        "update trial_user_attributes set value_json = 'x'",
        "update studies set study_name = 'another'",
    ],
)
def test_rows_that_no_optuna_has_written_are_written_anew(tmp_path, change):
    spec, space = make(tmp_path)
    path, known, said = tmp_path / "optuna.db", {}, []
    search = Suggestions(spec, space, path=path)
    for _ in range(3):
        number, config = search.ask()
        search.tell(number, "finished", [0.5], epsilon=1.25)
        known[number] = KnownTrial(config, "finished", [0.5], epsilon=1.25)
    before = shown(search._study)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(change)
    again = Suggestions(spec, space, path=path, known=known, on_message=said.append)
    assert shown(again._study) == before == stored(path)[1]
    assert len(said) == 1
    assert "written anew from the journal" in said[0]


def test_trials_keep_their_numbers_though_one_is_missing(tmp_path):
    """Also of what was asked for and never admitted, of which the journal says nothing."""
    spec, space = make(tmp_path)
    path = tmp_path / "optuna.db"
    search = Suggestions(spec, space, path=path)
    asked = [search.ask() for _ in range(2)]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("delete from trials where number = 0")
    again = Suggestions(spec, space, path=path)
    assert again.ask() == asked[0]


def test_of_a_genetic_trial_that_is_not_all_drawn_the_file_has_nothing(tmp_path):
    """Its sampler notes the generation before it draws."""
    spec, space = make(tmp_path, "nsga2", objectives=["validation/accuracy", "dp/epsilon"])
    path, drawn = tmp_path / "optuna.db", []
    search = Suggestions(spec, space, path=path)
    suggest = SearchSpace.suggest

    def noted(self, trial):
        config = suggest(self, trial)
        drawn.append((stored(path)[1], shown(trial.study)[trial.number][-1]))
        return config

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SearchSpace, "suggest", noted)
        number, _ = search.ask()
    ((rows, attrs),) = drawn
    assert rows == []
    assert any("generation" in name for name in attrs)
    assert stored(path)[1] == shown(search._study)
    assert stored(path)[1][number][-1] == attrs


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"optim.lr": "high"}, "optim.lr must be a number, got 'high'"),
        ({"optim.lr": 3000.0}, "optim.lr must be within [0.1, 4], got 3000"),
        ({"noise.shape": "round"}, "noise.shape must be one of 'constant', 'cosine', got 'round'"),
    ],
)
def test_a_trial_of_another_program_that_is_not_of_the_space_is_not_run(tmp_path, values, reason):
    spec, space = make(tmp_path, space=SPACE)
    path, messages = tmp_path / "optuna.db", []
    Suggestions(spec, space, path=path)
    theirs = optuna.load_study(study_name="through", storage=f"sqlite:///{path}")
    theirs.enqueue_trial(values)
    theirs.enqueue_trial({"optim.lr": 1.25})
    search = Suggestions(spec, space, path=path, on_message=messages.append)
    number, config = search.ask()
    assert (number, config["optim.lr"]) == (1, 1.25)  # within the space it is welcome
    (message,) = messages
    assert message.startswith(f"trial 0 of {path}, which another program has asked for, is not of")
    assert reason in message
    assert stored(path)[1][0][1].name == "FAIL"


def test_what_another_program_has_drawn_outside_of_the_space_is_not_run(tmp_path):
    spec, space = make(tmp_path, space=SPACE)
    path = tmp_path / "optuna.db"
    Suggestions(spec, space, path=path)
    theirs = optuna.load_study(study_name="through", storage=f"sqlite:///{path}")
    theirs.ask().suggest_float("optim.lr", 100, 1000, log=True)
    number, config = Suggestions(spec, space, path=path).ask()
    assert number == 1
    assert 0.1 <= config["optim.lr"] <= 4


def test_another_distribution_of_another_program_is_set_aside(tmp_path):
    """Optuna would refuse the space's own from then on."""
    spec, space = make(tmp_path, space=SPACE)
    path = tmp_path / "optuna.db"
    Suggestions(spec, space, path=path)
    theirs = optuna.load_study(study_name="through", storage=f"sqlite:///{path}")
    theirs.ask().suggest_float("optim.lr", 0, 1000)
    number, config = Suggestions(spec, space, path=path).ask()
    assert number == 0
    assert 0.1 <= config["optim.lr"] <= 4
    assert list(tmp_path.glob("optuna.db.damaged-*"))


def test_a_folder_that_is_gone_is_told_as_such_and_sqlites_own_words_are_quoted(tmp_path):
    import sqlite3

    from dpsweep.search.optuna_file import OptunaFile, unusable

    try:
        try:
            raise sqlite3.OperationalError("database or disk is full")
        except sqlite3.OperationalError as cause:
            raise StorageInternalError("An exception is raised during the commit.") from cause
    except StorageInternalError as error:
        (tmp_path / "journal.jsonl").touch()
        said = unusable(OptunaFile(tmp_path / "optuna.db"), error)
        assert "optuna.db cannot be used: database or disk is full" in said.message
        gone = [unusable(OptunaFile(tmp_path / "gone" / "optuna.db"), error)]
        (tmp_path / "journal.jsonl").unlink()  # something has made a folder in its place
        gone += [unusable(OptunaFile(tmp_path / "optuna.db"), error)]
    for each in gone:
        assert "the study's folder is not there any more" in each.message
        assert each.fix.startswith("put the study's folder back")
        assert "a new study at zero" in each.fix
        assert "written anew" not in str(each)
