"""Places that a spec names, as nodes will see them: absolute, shared, and without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from dpsweep.foundation.errors import Mistake, SpecError
from dpsweep.privacy.modes import MODES
from dpsweep.spec.study import SweepSpec
from dpsweep.spec.tracking import masked

_PATH = re.compile(r"(/[A-Za-z0-9_+.-]+)+/?")
_SQLITE = "sqlite:///"


def check_places(spec: SweepSpec, mount: str | None) -> None:
    """Refuse a spec whose state would be lost with a node, or that would show a secret.

    Args:
        spec: The spec.
        mount: The directory that all nodes share; None where the nodes' own mounts are not known.
    Raises:
        SpecError: With every mistake.
    """
    mistakes = [*_unkept(spec, mount), *_shown(spec)]
    if MODES[spec.privacy.accounting].is_sealed:
        problem = "is select, which runs on local only: Ray keeps traces of every trial elsewhere"
        mistakes.append(Mistake("privacy.accounting", problem, "use composed, or run it here"))
    if mistakes:
        raise SpecError([mistake.at(spec.where) for mistake in mistakes])


def _unkept(spec: SweepSpec, mount: str | None) -> Iterator[Mistake]:
    where = "a directory that all nodes share" if mount is None else f"a directory in {mount}"
    for key, place in _written(spec):
        if not _PATH.fullmatch(place) or {".", ".."} & set(place.split("/")):
            problem = f"{place!r} is no absolute path of letters, digits and _ + . -"
            yield Mistake(key, problem, f"name {where}")
        elif mount is not None and not PurePosixPath(place).is_relative_to(mount):
            yield Mistake(key, f"{place!r} would be lost with its node", f"name {where}")
    if spec.data.path is not None and not spec.data.path.startswith("/"):
        problem = f"{spec.data.path!r} is relative, and means another place on each node"
        yield Mistake("data.path", problem, "name an absolute path that every node has")


def _written(spec: SweepSpec) -> Iterator[tuple[str, str]]:
    yield "storage.path", spec.storage.path
    if spec.storage.features is not None:
        yield "storage.features", spec.storage.features
    if spec.tracking.uri is not None and spec.tracking.uri.startswith(_SQLITE):
        yield "tracking.uri", spec.tracking.uri.removeprefix(_SQLITE).partition("?")[0]
    if spec.privacy.dataset_ledger is not None:
        yield "privacy.dataset_ledger", spec.privacy.dataset_ledger


def _shown(spec: SweepSpec) -> Iterator[Mistake]:
    uri = spec.tracking.uri
    if uri is not None and masked(uri) != uri:
        problem = f"{masked(uri)!r} has a secret in it, which would stand in the rendered file"
        fix = "leave it out; MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD are read"
        yield Mistake("tracking.uri", problem, fix)
