"""The records of one trial, out of those of its study."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dpsweep.study.trial import TrialTask

if TYPE_CHECKING:
    from dpsweep.trainables.data.dataset import SweepData


def records_for(data: SweepData, task: TrialTask) -> SweepData:
    """Return a trial's data, without private records where its plan asks them nothing.

    Its positions on public records are free, and so cannot read others, whoever wrote the method.
    """
    if data.searched_share is not None:
        data = data.for_records(task.records)
    data = data.for_trial(task.hparams)
    if task.records != "public" and not task.plan.part("private"):
        inputs, labels = data.parts["private"]
        data = replace(data, parts={**data.parts, "private": (inputs[:0], labels[:0])})
    return data
