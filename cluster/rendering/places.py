"""Places that a spec names, as nodes will see them: absolute, shared, and without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from dpsweep.foundation.bucket_path import is_address
from dpsweep.foundation.database_path import PASSWORD, is_database_address
from dpsweep.foundation.errors import Mistake, SpecError
from dpsweep.privacy.modes import MODES
from dpsweep.spec.space.parameters import parse_space
from dpsweep.spec.study import SweepSpec
from dpsweep.spec.tracking import masked

_PATH = re.compile(r"(/[A-Za-z0-9_+.-]+)+/?")
_SQLITE = "sqlite:///"
#: Hyperparameters that may name a file of weights, and their values that name none.
_WEIGHTS, _NO_FILE = ("model.checkpoint", "features.checkpoint"), (None, "published", "pretrain")


#: Environment variables that trials need themselves, where a study's bucket asks for them.
_OF_BUCKET = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION", "AWS_DEFAULT_REGION",
)  # fmt: skip


def needs_disk(spec: SweepSpec) -> bool:
    """Say whether a study has a place on a disk that its nodes share."""
    return any(_written(spec))


def needed_by_trials(spec: SweepSpec) -> tuple[str, ...]:
    """Return the secrets that trials' processes need: they charge themselves and keep models.

    The driver does all else, and gets all of them.
    """
    names = () if spec.storage.database is None else (PASSWORD,)
    return (*names, *_OF_BUCKET) if is_address(spec.storage.path) else names


def check_places(
    spec: SweepSpec,
    mount: str | None,
    *,
    is_mounted: bool = True,
    others: Iterable[Mistake] = (),
) -> None:
    """Refuse a spec whose state would be lost with a node, or that would show a secret.

    Args:
        spec: The spec.
        mount: The directory that all nodes share; None where the nodes' own mounts are not known.
        is_mounted: False where nothing is mounted.
        others: Mistakes that the rendering knows of besides, to be told with these.
    Raises:
        SpecError: With every mistake.
    """
    mistakes = [*_unkept(spec, mount, is_mounted), *_shown(spec), *others]
    if MODES[spec.privacy.accounting].is_sealed:
        problem = "is select, which runs on local only: Ray keeps traces of every trial elsewhere"
        mistakes.append(Mistake("privacy.accounting", problem, "use composed, or run it here"))
    if mistakes:
        raise SpecError([mistake.at(spec.where) for mistake in mistakes])


def _unkept(spec: SweepSpec, mount: str | None, is_mounted: bool) -> Iterator[Mistake]:
    where = "a directory that all nodes share" if mount is None else f"a directory in {mount}"
    for key, place in _written(spec):
        if not is_mounted:
            problem = f"{place!r} needs a disk that all nodes share, and none is mounted"
            yield Mistake(key, problem, "set cluster.vm.nfs, or use a server and a bucket")
        elif not _PATH.fullmatch(place) or {".", ".."} & set(place.split("/")):
            problem = f"{place!r} is no absolute path of letters, digits and _ + . -"
            yield Mistake(key, problem, f"name {where}")
        elif mount is not None and not PurePosixPath(place).is_relative_to(mount):
            yield Mistake(key, f"{place!r} would be lost with its node", f"name {where}")
    for key, path in _read(spec):
        if not path.startswith("/"):
            problem = f"{path!r} is relative, and means another place on each node"
            yield Mistake(key, problem, "name an absolute path that every node has")


def _read(spec: SweepSpec) -> Iterator[tuple[str, str]]:
    public = spec.data.public
    pollution = None if public.pollution is None else public.pollution.path
    for parameter in parse_space(spec.search.space)[0]:
        for name in parameter.choices if parameter.name in _WEIGHTS else ():
            if name not in _NO_FILE:
                yield f"search.space.{parameter.name}", str(name)
    for key, value in ({} if spec.start is None else spec.start.hyperparameters).items():
        if key in _WEIGHTS and value not in _NO_FILE:
            yield f"start.hyperparameters.{key}", str(value)
    if spec.pretrain is not None and spec.pretrain.checkpoint is not None:
        yield "pretrain.checkpoint", spec.pretrain.checkpoint
    for key, path in (
        ("pretrain.path", None if spec.pretrain is None else spec.pretrain.path),
        ("data.path", spec.data.path),
        ("data.public.path", public.path),
        ("data.public.positions", public.positions),
        ("data.public.pollution.path", pollution),
    ):
        if isinstance(path, str):
            yield key, path


def _written(spec: SweepSpec) -> Iterator[tuple[str, str]]:
    if not is_address(spec.storage.path):
        yield "storage.path", spec.storage.path
    if spec.storage.features is not None:
        yield "storage.features", spec.storage.features
    if spec.tracking.uri is not None and spec.tracking.uri.startswith(_SQLITE):
        yield "tracking.uri", spec.tracking.uri.removeprefix(_SQLITE).partition("?")[0]
    ledger = spec.privacy.dataset_ledger
    if ledger is not None and not is_database_address(ledger):
        yield "privacy.dataset_ledger", ledger


def _shown(spec: SweepSpec) -> Iterator[Mistake]:
    uri = spec.tracking.uri
    if uri is not None and masked(uri) != uri:
        problem = f"{masked(uri)!r} has a secret in it, which would stand in the rendered file"
        fix = "leave it out; MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD are read"
        yield Mistake("tracking.uri", problem, fix)
