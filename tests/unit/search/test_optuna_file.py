"""The file of Optuna's study, which the journal can always replace."""

import sqlite3

import optuna

from dpsweep.search import optuna_file
from dpsweep.search.optuna_file import OptunaFile


def test_no_trial_waits_for_the_disk_and_the_file_is_one_that_optuna_opens(tmp_path):
    place = OptunaFile(tmp_path / "studies" / "optuna.db")
    storage = place.storage()
    for _ in range(2):  # connections
        with storage.engine.connect() as connection:
            assert connection.exec_driver_sql("pragma synchronous").scalar() == 0
        storage.engine.dispose()
    study = optuna.create_study(study_name="s", storage=storage)
    study.tell(study.ask(), 0.5)
    storage.engine.dispose()
    assert place.problem() == ""
    url = f"sqlite:///{place.path}"
    assert optuna.load_study(study_name="s", storage=url).trials[0].value == 0.5
    connection = sqlite3.connect(place.path)  # another program's own wish
    assert connection.execute("pragma synchronous").fetchone() == (2,)
    connection.close()


def test_what_was_told_reaches_the_disk_in_the_end(tmp_path, monkeypatch):
    place, synced = OptunaFile(tmp_path / "optuna.db"), []
    place.keep()  # nothing is there yet
    storage = place.storage()
    monkeypatch.setattr(optuna_file.os, "fsync", lambda file: synced.append(file.name))
    place.keep()
    storage.engine.dispose()
    assert synced == [str(place.path)]
