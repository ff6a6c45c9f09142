"""State of a tracker between two launches: run ids, and how far it has read the journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.file_paths import FilePath, read_file
from dpsweep.foundation.records import checked_json, read_checked_json

#: Stands where a trial's number does for the run of public pre-training, which is no trial.
PRETRAINING = -1
#: Its value of the tag dpsweep.role.
PRETRAIN_ROLE = "pretrain"
#: Tag of a study's run that tells an older copy of a store from the store.
SEQ = "dpsweep.seq"
_MANY_DIGITS = 20  # no number of ours has them

_BY_TRIAL = ("run_ids", "model_uris", "states", "unstated", "intros")


@dataclass
class TrackingState:
    """Progress of one study in one tracking store.

    Attributes:
        store: URI and experiment the ids belong to.
        experiment: Name that the experiment was asked for by; MLflow may call it another by now.
        study: Name of the study.
        study_id: Tells two studies of one name apart; tag of all their runs.
        seq: Sequence number of the last journal event handled, -1 before the first.
        parent_run_id: Run of the study.
        run_ids: Run of each trial that has started, and of public pre-training (``PRETRAINING``).
        model_uris: Logged models by trial.
        states: State of each trial that has an event.
        study_tags: ``dp.*`` tags of the study, inherited by its trials.
        mode: ``max`` or ``min`` once the study has said it.
        best: Best objective among finished trials that may be delivered.
        last: Last step and value of each metric, by trial ("study" for the parent).
        unstated: For each trial that has a run, the tags missing beside its epsilon.
        sampling: How the private trials so far draw batches: ``mixed`` where they differ.
        downgraded: Why the study lost its claim, empty while it has it; never taken back.
        is_sealed: True for a study in ``select``, which shows its winner only; never taken back.
        metric: Name of the score that ranks trials.
        searched: Hyperparameters that may differ between trials.
        constants: Those that do not, which stand on the study's run only.
        datasets: Records that the spec declares, as ``StudyStarted`` has them.
        started_ms: When the study was first launched.
        best_trial: The best trial so far.
        final_run: Tag and value of the one run that is delivered; empty where any trial may be.
        final_trial: That run, once it has started.
        intros: How the description of each trial's run begins.
        lacking: By run, the files that the store of artifacts has not taken: the text of each, None
            for one that lies where it is named.
    """

    store: str = ""
    experiment: str = ""
    study: str = ""
    study_id: str = ""
    seq: int = -1
    parent_run_id: str | None = None
    run_ids: dict[int, str] = field(default_factory=dict)
    model_uris: dict[int, str] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    study_tags: dict[str, str] = field(default_factory=dict)
    mode: str = ""
    best: float | None = None
    last: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    unstated: dict[int, list[str]] = field(default_factory=dict)
    sampling: str = ""
    downgraded: str = ""
    is_sealed: bool = False
    metric: str = ""
    searched: list[str] = field(default_factory=list)
    constants: dict[str, str] = field(default_factory=dict)
    datasets: list[dict[str, Any]] = field(default_factory=list)
    started_ms: int = 0
    best_trial: int | None = None
    final_run: list[str] = field(default_factory=list)
    final_trial: int | None = None
    intros: dict[int, str] = field(default_factory=dict)
    lacking: dict[str, dict[str, str | None]] = field(default_factory=dict)

    def touched(self) -> set[int]:
        """Return the trials whose runs have got something, and ``PRETRAINING`` if its has."""
        return {*self.unstated, *(int(name) for name in self.last if name != "study")}

    def save(self, path: FilePath) -> None:
        """Write the state; a reader sees the old file or the new one.

        Raises:
            StorageError: It cannot be written, or the study's folder was moved away.
        """
        write_atomically(path, checked_json(asdict(self)), makes_folder=False)

    @classmethod
    def load(cls, path: FilePath) -> TrackingState:
        """Read the state.

        A missing or damaged file gives an empty state: the journal is then delivered from its
        start, and runs are found again by their tags.
        """
        return cls._read(path) or cls()

    @classmethod
    def is_damaged(cls, path: FilePath) -> bool:
        """Say whether there is a file, and it is not what was written."""
        return path.exists() and cls._read(path) is None

    @classmethod
    def _read(cls, path: FilePath) -> TrackingState | None:
        names = [item.name for item in fields(cls)]
        try:
            raw = read_checked_json(read_file(path), known=names)
            values = {name: raw[name] for name in names if name in raw}
            for name in _BY_TRIAL:
                if name in values:
                    values[name] = {int(key): value for key, value in values[name].items()}
            return cls(**values)
        except (OSError, ValueError, TypeError, AttributeError):
            return None


def name_of(trial: int | None) -> str:
    """Return what a run is of, as messages say it.

    >>> name_of(None), name_of(3), name_of(PRETRAINING)
    ('study', 'trial 3', 'pretrain')
    """
    if trial is None:
        return "study"
    return PRETRAIN_ROLE if trial == PRETRAINING else f"trial {trial}"


def number_of(text: str) -> int | None:
    """Return the number in a tag, or nothing where a hand has written something else.

    >>> number_of("12"), number_of("-1"), number_of("9" * 5000)
    (12, None, None)
    """
    return int(text) if text.isdecimal() and len(text) < _MANY_DIGITS else None


def seq_of(tags: Mapping[str, str]) -> int:
    """Return the last event of the journal that a study's run says it has; -1 without a number.

    >>> seq_of({"dpsweep.seq": "12"}), seq_of({"dpsweep.seq": "twelve"}), seq_of({})
    (12, -1, -1)
    """
    number = number_of(tags.get(SEQ, ""))
    return -1 if number is None else number


def read_run_ids(path: FilePath) -> dict[int, str]:
    """Return the tracking run of each trial, without opening the tracking store."""
    run_ids = TrackingState.load(path).run_ids
    return {trial: run_id for trial, run_id in run_ids.items() if trial != PRETRAINING}
