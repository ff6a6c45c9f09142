"""The gallery of a study: what its best model predicts, its pictures, and its page, as files."""

from __future__ import annotations

from typing import Any

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import SweepError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.results.page.html import page_of
from dpsweep.results.pictures.confusion import MAX_CLASSES, keep_confusion
from dpsweep.results.pictures.files import write_pictures
from dpsweep.results.pictures.table import pictures_of
from dpsweep.results.study import OpenStudy, SweepResult
from dpsweep.spec.study import SweepSpec
from dpsweep.study.study import Observer
from dpsweep.study.trial import TrialTask
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.execution.predictions import confusion_of, draw_examples, predict
from dpsweep.trainables.execution.trial_data import records_for


def show_predictions(
    study: OpenStudy, task: TrialTask, model: Any, data: SweepData
) -> list[FilePath]:
    """Keep the confusion matrix of the best model, and show examples that it gets right and wrong.

    Guarantees:
        Only records of a part that the spec declares public are looked at: test records, else
        validation records. Of such a model they are post-processing.

    Args:
        study: The study.
        task: Its best trial.
        model: Of that trial, a ``torch.nn.Module`` on the CPU.
        data: The study's records.
    Returns:
        A sheet of examples, of images; else nothing.
    """
    data = records_for(data, task)
    part = _public_part(study.spec)
    if part is None or data.info.task != "classification" or not len(data.parts[part][1]):
        return []
    records, info = data.parts[part], data.info
    predicted = predict(model, records[0])
    if info.num_classes <= MAX_CLASSES:
        counts = confusion_of(predicted, records[1], info.num_classes)
        keep_confusion(
            study.files, trial=task.trial, part=part, names=info.class_names, counts=counts
        )
    sheet = draw_examples(
        study.files.trial(task.trial) / "examples.png",
        records,
        predicted,
        class_names=info.class_names,
        title=f"{part} records, declared public: wrong first, then right",
    )
    return [] if sheet is None else [sheet]


def _public_part(spec: SweepSpec) -> str | None:
    if spec.data.test.visibility == "public":
        return "test"
    return "validation" if spec.data.validation.visibility == "public" else None


def draw_study(study: OpenStudy, observer: Observer | None = None) -> list[str]:
    """Draw a study's pictures and its page; return the files.

    A picture that cannot be drawn is no reason to fail a study that has finished: it is said.
    """
    try:
        result = SweepResult.of(study)
        write_pictures(pictures_of(result), study.files.pictures)
        write_atomically(study.files.page, page_of(result).encode())
    except Exception as error:
        if observer is not None:
            why = str(error) if isinstance(error, SweepError) else repr(error)
            observer.on_message(f"the study's pictures are not drawn: {why}")
    return drawn(study)


def drawn(study: OpenStudy) -> list[str]:
    """Return the pictures and the page that there are."""
    return [str(path) for path in (study.files.pictures, study.files.page) if path.exists()]


def withdraw(study: OpenStudy, reason: str) -> list[str]:
    """Replace whatever says a claim that does not hold any more; return the files.

    Pictures themselves say none; their tables and the page do.
    """
    if not study.files.page.exists():
        return []
    for path in [*study.files.pictures.glob("*.csv"), study.files.page]:
        write_atomically(path, f"withdrawn: {reason}\n".encode())
    return drawn(study)
