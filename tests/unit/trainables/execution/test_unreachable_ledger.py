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
