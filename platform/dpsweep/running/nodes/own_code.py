"""Whether the processes of a cluster can import the user's own networks, before anything starts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import DamagedStudyError, ModelError, ResourceError, StudyError
from dpsweep.foundation.file_paths import FilePath, read_file
from dpsweep.foundation.shapes import fits
from dpsweep.study.files import StudyFiles, closed_to_user
from dpsweep.trainables.networks.own_models import (
    fingerprint,
    is_own,
    look_in,
    refuse_changed,
    started_in,
)

if TYPE_CHECKING:
    from dpsweep.cluster.base import ClusterTarget
    from dpsweep.planning.preflight import Preflight


#: File in a selection's folder: the SHA-256 of the file of each own network that it may draw.
PINNED = "own_code.json"


def check_own_code(checked: Preflight, target: ClusterTarget) -> None:
    """Let every node import what ``model.name`` names of the user's, and compare the files.

    Args:
        checked: The checked spec.
        target: The cluster, connected.
    Raises:
        ResourceError: A node cannot import it, or imports another file than this process.
    """
    names = _own_names(checked)
    if not names:
        return
    own = {name: fingerprint(name) for name in names}
    refuse_other_code(own, target.on_each_node(found_there, names, started_in()))
    pinned = StudyFiles.of(checked.spec).path / PINNED
    if checked.spec.privacy.mode.is_sealed and isinstance(pinned, Path) and not pinned.exists():
        write_atomically(pinned, json.dumps(own).encode())


def refuse_other_networks(checked: Preflight) -> None:
    """Refuse to go on with a study one of whose own networks has changed since it was trained.

    Of a selection all networks are compared, drawn or not: which were drawn is a secret.

    Raises:
        ChangedCodeError: It has.
        DamagedStudyError: What a selection has pinned is damaged, or closed to this user.
    """
    names, files = _own_names(checked), StudyFiles.of(checked.spec)
    if not names:
        return
    if checked.spec.privacy.mode.is_sealed:
        for name, code in _pinned(files.path / PINNED).items():
            refuse_changed({"model.name": name}, code)
    for number in files.view().trials if files.journal.exists() else ():
        try:
            task = files.task(number)
        except StudyError:  # lost or damaged, which is told when the study is opened
            continue
        if task.hparams.get("model.name") in names:
            refuse_changed(task.hparams, task.code)


def _pinned(path: FilePath) -> dict[str, str]:
    """Return what a selection has pinned; nothing of one that has not begun, or before 281.

    Raises:
        DamagedStudyError: The file is damaged, or closed to this user.
    """
    try:
        pinned = json.loads(read_file(path))
    except FileNotFoundError:
        return {}
    except PermissionError as error:
        raise closed_to_user(path, error) from error
    except (OSError, ValueError, RecursionError):
        pinned = None
    if not fits(pinned, Mapping[str, str]):
        raise DamagedStudyError(
            f"{path} is damaged: whether the networks are the same cannot be known",
            fix="restore it from a backup, or start a new study under another name",
        )
    return dict(pinned)


def _own_names(checked: Preflight) -> list[str]:
    names = [str(name) for name in checked.space.values().get("model.name", ()) if is_own(name)]
    start = checked.spec.start
    of_start = None if start is None else start.hyperparameters.get("model.name")
    return names + ([str(of_start)] if is_own(of_start) else [])


def found_there(names: Sequence[str], place: Path) -> dict[str, str]:
    """Return what this process finds of own networks: the SHA-256 of a file, or why there is none.

    Args:
        names: ``PACKAGE.MODULE:FUNCTION`` each.
        place: Directory where dpsweep was started.
    """
    look_in(place)
    outcomes = {}
    for name in names:
        try:
            outcomes[name] = fingerprint(name)
        except ModelError as error:
            outcomes[name] = error.message
    return outcomes


def refuse_other_code(own: Mapping[str, str], found: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse a cluster whose processes would train other networks than were checked.

    Args:
        own: Name -> SHA-256 of its file here.
        found: Host name -> what ``found_there`` says there.
    Raises:
        ResourceError: They differ.
    """
    for name, digest in own.items():
        for host, there in sorted(found.items()):
            if there[name] == digest:
                continue
            module = name.partition(":")[0]
            is_import = "cannot import" in there[name]
            raise ResourceError(
                f"{host}: {there[name]}" if is_import else f"{host} has another file for {name}",
                because="trials run there",
                fix=f"install {module} on every node, or start dpsweep in a directory that all "
                "nodes mount",
            )
