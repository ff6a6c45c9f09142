"""A launch that is killed while it admits a trial of a study on a dataset's ledger."""

import shutil

import pytest
from launches import Driver

from dpsweep.foundation.errors import LedgerError
from dpsweep.ledgers.dataset import read_dataset_ledger
from dpsweep.sweep import _commit


class KilledError(Exception):
    pass


@pytest.fixture
def launch(tmp_path):
    drivers = []

    def begin():
        driver = Driver(
            tmp_path, dataset_ledger=str(tmp_path / "digits.budget"),
            dataset_epsilon=8.0, dataset_delta=1e-4,
        )  # fmt: skip
        drivers.append(driver)
        _commit(driver.checked, driver.study, driver.ledger, driver.composition, None)
        driver.ledger.settle_lost(driver.study.view.ended())
        return driver

    yield begin
    for driver in drivers:
        driver.close()


def killed(driver, monkeypatch):
    """End a launch after the dataset's ledger has heard of a trial, and before the journal does."""

    def kill(task):
        raise KilledError

    monkeypatch.setattr(driver.study, "write_task", kill)
    with pytest.raises(KilledError):
        driver.source().next_task(num_running=0)
    driver.close()


def test_launches_that_begin_no_trial_do_not_lock_the_study_out(launch, monkeypatch, tmp_path):
    driver = launch()
    killed(driver, monkeypatch)
    launch().close()  # settles the trial, and ends before it admits one
    again = launch()
    assert again.source().next_task(num_running=0).trial == 0
    ((times,),) = [list(read_dataset_ledger(tmp_path / "digits.budget").trials.values())]
    assert times == {0: 2}


def test_a_copy_of_before_the_trial_began_is_still_refused(launch, monkeypatch, tmp_path):
    driver = launch()
    killed(driver, monkeypatch)
    launch().close()
    files, copy = driver.study.files.path, tmp_path / "copy"
    shutil.copytree(files, copy)
    again = launch()
    assert again.source().next_task(num_running=0).trial == 0
    again.close()
    shutil.rmtree(files)
    copy.rename(files)
    with pytest.raises(LedgerError, match=r"knows trials of study 'stage' that its own .*: 0"):
        launch()
