"""Tracking: one schema of names, one spool, one tracker per store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dpsweep.foundation.database_path import LogPath
from dpsweep.foundation.file_paths import FilePath
from dpsweep.foundation.registry import Registry
from dpsweep.spec.tracking import TRACKER_GROUP, masked
from dpsweep.tracking.apart.remote import RemoteTracker
from dpsweep.tracking.base import Tracker, TrackingRefusedError
from dpsweep.tracking.mlflow_reach import refuse_credentials
from dpsweep.tracking.schema import UnloggableError, check_loggable
from dpsweep.tracking.spool import Spool
from dpsweep.tracking.state import read_run_ids

__all__ = [
    "APART_FROM",
    "TRACKERS",
    "Spool",
    "Tracker",
    "TrackingRefusedError",
    "UnloggableError",
    "check_loggable",
    "open_spool",
    "read_run_ids",
    "refuse_unreachable",
    "refuse_uri",
    "takes_graphs",
]

#: Kind of tracker -> its class, made as ``Kind(uri, experiment, state_path)`` in the spool's thread
#: (memory, for tests, takes nothing). ``state_path`` is a file of its own to remember in, if it
#: must. The class may have ``refuse_uri(uri)`` and ``refuse_unreachable(uri, experiment)``: they
#: raise a BadInputError before anything starts, the second one for a new study only. With
#: ``takes_graphs = True`` its ``log_model`` may get a ``ModelGraph`` in the place of a module; with
#: ``runs_apart = True``, too, a study of many trials makes and uses it in a process of its own.
TRACKERS = Registry(
    "tracker",
    {
        "memory": "dpsweep.tracking.memory:MemoryTracker",
        "mlflow": "dpsweep.tracking.mlflow:MLflowTracker",
    },
    group=TRACKER_GROUP,
)
#: Trials of a study from which on a process for its tracker is worth the second that it loads.
APART_FROM = 32


class StudyPaths(Protocol):
    """Where a study keeps its journal and its tracker's state."""

    name: str
    journal: LogPath
    tracking: FilePath


class TrackingChoice(Protocol):
    """The ``tracking`` part of a spec."""

    @property
    def kind(self) -> str:
        """Name in ``TRACKERS``."""

    @property
    def uri(self) -> str | None:
        """Tracking URI, or None for no tracking."""

    @property
    def experiment(self) -> str | None:
        """Name of the experiment, or None for the study's name."""


def refuse_uri(choice: TrackingChoice) -> None:
    """Let the tracker of another package check its address, before anything starts.

    The address of ``mlflow`` is checked with the spec; here are the credentials for its server.

    Raises:
        BadInputError: It cannot work, or the package cannot be loaded.
    """
    if choice.uri is not None and choice.kind == "mlflow":
        refuse_credentials(choice.uri)
    if choice.uri is None or choice.kind not in TRACKERS.outside():
        return
    check: Callable[[str], None] | None = getattr(TRACKERS[choice.kind], "refuse_uri", None)
    if check is not None:
        check(choice.uri)


def refuse_unreachable(choice: TrackingChoice, name: str) -> None:
    """Refuse a store that cannot take the runs of a new study, before anything is spent.

    Takes at most 15 seconds. Of a study that was launched the store may be away: events wait.

    Args:
        choice: The ``tracking`` part of a spec.
        name: Of the study.
    Raises:
        BadInputError: It is away, or it refuses; or the experiment is deleted.
    """
    if choice.uri is None:
        return
    check: Callable[[str, str], None] | None
    check = getattr(TRACKERS[choice.kind], "refuse_unreachable", None)
    if check is not None:
        check(choice.uri, choice.experiment or name)


def takes_graphs(choice: TrackingChoice) -> bool:
    """Say whether a tracker stores a model that it is given as a graph, without torch."""
    return choice.uri is not None and bool(getattr(TRACKERS[choice.kind], "takes_graphs", False))


def open_spool(
    files: StudyPaths,
    choice: TrackingChoice,
    on_message: Callable[[str], None] | None = None,
    *,
    is_held: bool = False,
    num_trials: int = 0,
) -> Spool:
    """Start carrying a study's journal to its tracking store.

    Returns at once: the tracker is made by the spool's thread. Use it as a context manager.

    Args:
        files: The study's.
        choice: The ``tracking`` part of its spec.
        on_message: Hears what its user should know.
        is_held: Whether the store hears of nothing until ``Spool.release``.
        num_trials: Trials whose events there may be yet. From ``APART_FROM`` on a tracker that can
            is run by a process of its own, which fewer do not make up for.
    """
    uri = choice.uri
    if uri is None:
        return Spool(files.journal, None)

    kind, state_path = choice.kind, files.tracking
    if kind != "mlflow":  # what another kind remembers is not for this one
        state_path = state_path.with_name(f"{state_path.stem}-{kind}{state_path.suffix}")

    def factory() -> Tracker:
        make: Callable[..., Tracker] = TRACKERS[kind]
        experiment = choice.experiment or files.name
        if num_trials >= APART_FROM and getattr(make, "runs_apart", False):
            return RemoteTracker(kind, uri, experiment, state_path)
        return make(uri, experiment, state_path)

    return Spool(
        files.journal,
        factory,
        state_path,
        is_held=is_held,
        on_message=on_message,
        address=masked(uri),
    )
