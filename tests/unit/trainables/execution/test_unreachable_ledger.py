"""A ledger that cannot be written while a trial runs: no private step without its charge."""

import errno
import os

import pytest

from dpsweep.foundation.errors import LedgerError, StorageError


@pytest.mark.parametrize("how", ["removed", "replaced", "full", "gone"])
def test_no_private_step_runs_while_the_ledger_cannot_be_written(lab, monkeypatch, how):
    """What was charged is an upper bound of what ran, whatever becomes of the file."""
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 30})
    trial = lab.open(settings, task)
    run, ran = trial.method.run, []

    def noted(start, stop):
        ran.extend(range(start, stop))
        run(start, stop)

    trial.method.run = noted
    trial.advance()
    assert ran == list(range(10))
    path, write = trial.ledger.path, os.write
    before = path.read_bytes()
    if how in ("removed", "replaced"):
        path.unlink()
    if how == "replaced":
        path.write_bytes(before)
    if how == "gone":  # the disk is not mounted any more
        path.parent.rename(path.parent.with_name("away"))
    if how == "full":

        def refuse(file, content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "write", refuse)
    for _ in range(2):
        with pytest.raises((LedgerError, StorageError), match=r"trial-0000\.jsonl"):
            trial.advance()
    assert ran == list(range(10))
    trial.close()
    monkeypatch.setattr(os, "write", write)
    if how == "full":
        assert path.read_bytes() == before
        assert lab.open(settings, task).position == 10


def test_nothing_is_written_where_the_study_has_been(lab):
    """A new folder would lie in the way of the one that somebody moved and puts back."""
    settings = lab.settings()
    trial = lab.open(settings, lab.task(settings, {"train.max_steps": 30}))
    trial.advance()
    lab.directory(0).rename(lab.directory(0).with_name("away"))
    with pytest.raises(StorageError, match=r"cannot write .*\.ckpt: No such file or directory"):
        trial.advance()
    assert not lab.directory(0).exists()
    trial.close()
    lab.directory(0).with_name("away").rename(lab.directory(0))
    again = lab.open(settings, lab.task(settings, {"train.max_steps": 30}))
    assert again.position == 10
    assert len(again.ledger) == 20  # charged before the checkpoint could not be written
    again.close()
