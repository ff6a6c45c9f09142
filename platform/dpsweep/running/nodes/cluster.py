"""The cluster of one launch: begun early, joined when trials are about to run, left once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import cached_property

from dpsweep.cluster import TARGETS
from dpsweep.cluster.base import ClusterTarget
from dpsweep.cluster.private_directory import private_directory
from dpsweep.foundation.errors import ResourceError, SweepError
from dpsweep.planning.preflight import Preflight
from dpsweep.running.nodes.own_code import refuse_other_networks
from dpsweep.study.files import StudyFiles

#: Held by the launch that is in a cluster.
_ONE = threading.Lock()


class LaunchCluster:
    """The cluster of one launch, with the private directory of a selection.

    A local Ray takes seconds to start, in processes of its own: begun as soon as a spec is known to
    be good, it comes up while this process loads, reads and plans. Whoever makes one closes it.

    Args:
        checked: The checked spec.
    """

    def __init__(self, checked: Preflight) -> None:
        self._checked = checked
        self._has_begun = False
        self._open = contextlib.ExitStack()
        self._target: ClusterTarget | None = None
        self._leaving: threading.Thread | None = None
        self._is_the_one = False

    @cached_property
    def _files(self) -> StudyFiles:
        return StudyFiles.of(self._checked.spec)

    def refuse_early(self) -> None:
        """Refuse what is known to be impossible before anything is connected or written.

        Raises:
            ResourceError: With what is there and what was asked for.
            ChangedCodeError: A network of the user's own has changed since trials were trained.
            DamagedStudyError: Whether it has cannot be read.
        """
        spec = self._checked.spec
        refuse_other_networks(self._checked)
        TARGETS[spec.cluster.target].refuse_early(spec.cluster, spec.resources)

    def begin(self) -> None:
        """Begin to start it, once, unless the study has finished or it cannot be begun early."""
        if self._has_begun:
            return
        self._has_begun = True
        try:
            if self._files.journal.exists() and self._files.view().state == "finished":
                return  # it may have nothing to run
        except SweepError:
            return  # its files cannot be read, which is told when the study is opened
        # Of a selection even an upper bound is not looked at: how many trials it has is its secret.
        is_open = not self._checked.spec.privacy.mode.is_sealed
        self._made().begin(self._checked.total_trials if is_open else None)

    def join(self, say: Callable[[str], None]) -> ClusterTarget:
        """Wait until it answers and can run a trial of the study; return it.

        Args:
            say: Hears what takes long.
        Raises:
            ResourceError: It cannot be reached, or cannot run a trial.
        """
        target = self._made()
        target.say = say
        return target.__enter__()

    def _made(self) -> ClusterTarget:
        if self._target is None:
            self._be_the_one()
            spec, files = self._checked.spec, self._files
            is_sealed = spec.privacy.mode.is_sealed
            private = self._open.enter_context(private_directory()) if is_sealed else None
            target: ClusterTarget = TARGETS[spec.cluster.target](
                spec.cluster, spec.resources, files.path, private_path=private, lock=files.lock
            )
            self._open.callback(target.disconnect)
            self._target = target
        return self._target

    def _be_the_one(self) -> None:
        """Keep others of this process out until ``close``."""
        if self._is_the_one:
            return
        if not _ONE.acquire(blocking=False):
            raise ResourceError(
                "this process runs another sweep, in another thread",
                because="a process is in one Ray cluster at a time",
                fix="run one after the other, or each in a process of its own",
            )
        self._is_the_one = True
        self._open.callback(self._let_others)

    def _let_others(self) -> None:
        self._is_the_one = False
        _ONE.release()

    @property
    def starting(self) -> str:
        """What is said while it is waited for."""
        return self._made().starting

    def close(self) -> None:
        """Leave it; what it kept in a private directory is gone then."""
        if self._leaving is not None:
            self._leaving.join()
        self._open.close()

    def close_behind(self) -> None:
        """Begin to leave it: Ray's processes take seconds to end. ``close`` waits for that."""
        self._leaving = threading.Thread(target=self._open.close, name="dpsweep-ray-stop")
        self._leaving.start()
