"""Whether the processes of a cluster run the same software, before anything is spent."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dpsweep.cluster.package import code_digest
from dpsweep.foundation import version as own_version
from dpsweep.foundation.errors import ResourceError
from dpsweep.foundation.registry import installed
from dpsweep.foundation.words import counted, listed

if TYPE_CHECKING:
    from dpsweep.cluster.base import ClusterTarget
    from dpsweep.planning.preflight import Preflight
    from dpsweep.study.journal import TrialView
    from dpsweep.study.study import Observer

#: What must be equal, and how many parts of its version: records, gradients and costs come of it.
EQUAL: Mapping[str, int | None] = {
    "python": 2,  # Ray pickles between processes
    "ray": None,
    "numpy": 1,  # arrays of another major version cannot be read
    "torch": None,
    "opacus": None,
    "dp-accounting": None,
}
#: What may differ, with a word: scores may differ by it, and what is missing fails its trials.
ALIKE = ("scipy", "scikit-learn", "timm", "transformers", "kymatio")
#: Groups of entry points whose packages the processes of trials import.
_GROUPS = ("dpsweep.trainables", "dpsweep.datasets", "dpsweep.events", "dpsweep.extractors")
_GIT_S = 10.0
_COMMIT = re.compile(r" \(commit [^)]*\)")


def check_software(checked: Preflight, target: ClusterTarget, observer: Observer) -> None:
    """Compare the software of every node of a joined cluster with that of this process.

    Compared are Python, the packages of ``EQUAL`` and ``ALIKE``, the files of dpsweep, and the
    packages that extend it: their versions, and the files that their entry points name. The rest
    of such a package, and what it depends on, is not looked at.

    Args:
        checked: The checked spec.
        target: The cluster, connected.
        observer: Hears what differs and may.
    Raises:
        ResourceError: A node differs in what must be equal; with the node, the package, both
            versions and the remedy.
    """
    if not target.joined:
        return  # processes that this one has started: of the same environment
    points = plugin_points()
    there = target.on_each_node(software_here, [*EQUAL, *ALIKE], points)
    own = software_here([*EQUAL, *ALIKE], points)
    refuse_other_software(own, there, used=_used(checked))
    nodes = counted(len(there), "node")
    observer.on_message(f"{nodes} of the cluster: {own['dpsweep']}, the same code as here")
    for note in other_software(own, there):
        observer.on_message(note)


def package_notes(trials: Mapping[int, TrialView]) -> list[str]:
    """Say which trials are of other versions of packages than those that are installed now.

    Args:
        trials: Of a study, by number; each says which package has brought its method.
    """
    numbers: dict[str, list[int]] = {}
    for number, trial in sorted(trials.items()):
        if trial.package:
            numbers.setdefault(trial.package, []).append(number)
    notes = []
    for package, of_it in sorted(numbers.items()):
        name = package.rpartition(" ")[0]
        version = _version(name)
        now = f"{name} {version}" if version else "none"
        if now != package:
            which = listed([str(number) for number in of_it], 5)
            noun = "trial" if len(of_it) == 1 else "trials"
            notes.append(
                f"note: {noun} {which} ran with {package}, and {now} is installed now; plans and "
                "scores of both stand in one table"
            )
    return notes


def plugin_points() -> list[tuple[str, str]]:
    """Return what packages add that trials import: name of the entry point, and its module."""
    return sorted(
        {
            (name, point.module)
            for group in _GROUPS
            for name, point in installed(group).items()
            if _is_outside(point)
        }
    )


def _is_outside(point: EntryPoint) -> bool:
    return point.dist is not None and point.dist.name != "dpsweep"


def _used(checked: Preflight) -> set[str]:
    """Return names of entry points that this study needs; events are read with every ledger."""
    return {*checked.methods, checked.spec.data.dataset, *installed("dpsweep.events")}


def software_here(
    packages: Sequence[str], points: Sequence[tuple[str, str]] = ()
) -> dict[str, str]:
    """Return versions of this process: Python, packages ("" for one that is not there), dpsweep.

    Args:
        packages: Names of packages; "python" is Python itself.
        points: Entry points of packages that extend dpsweep; each gives a line
            ``plugin NAME``: package, version, commit and digest of its module's file.
    """
    software = {name: _version(name) for name in packages}
    software["dpsweep"] = _described("dpsweep", own_version.__version__, Path(own_version.__file__))
    software["code"] = code_digest()
    return software | {f"plugin {name}": _plugin(name, module) for name, module in points}


def _version(package: str) -> str:
    if package == "python":
        return platform.python_version()
    try:
        return distribution(package).version
    except PackageNotFoundError:
        return ""


def _plugin(name: str, module: str) -> str:
    """Return what this process has of an entry point: "" if it is not installed."""
    points = (installed(group).get(name) for group in _GROUPS)
    point = next((p for p in points if p is not None and p.module == module), None)
    if point is None or point.dist is None:
        return ""
    try:
        place = find_spec(module)
        path = Path(place.origin) if place is not None and place.origin is not None else None
        digest = "" if path is None else hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except (ImportError, OSError):  # importing its parent runs whatever that holds
        return ""
    return f"{_described(point.dist.name, point.dist.version, path)}, {module} {digest}"


def _described(package: str, version: str, path: Path | None) -> str:
    """Return name, version and, where it is known, the commit of a package."""
    try:
        commit = _installed_commit(distribution(package))
    except PackageNotFoundError:
        commit = ""
    commit = commit or ("" if path is None else _checked_out(path.parent))
    return f"{package} {version}" + (f" (commit {commit})" if commit else "")


def _installed_commit(package: Distribution) -> str:
    """Return the commit that pip has noted of a package that it has got from a repository."""
    try:
        noted = json.loads(package.read_text("direct_url.json") or "{}")
        return str(noted.get("vcs_info", {}).get("commit_id", ""))[:12]
    except ValueError:
        return ""


def _checked_out(folder: Path) -> str:
    """Return the commit of the checkout that a folder lies in, "" where there is none."""
    checkout = next((p for p in (folder, *folder.parents) if (p / ".git").exists()), None)
    if checkout is None:
        return ""
    try:
        # A package that was installed below somebody's checkout is no part of it.
        _git(checkout, "ls-files", "--error-unmatch", str(folder))
        commit = _git(checkout, "rev-parse", "--short=12", "HEAD")
        changed = _git(checkout, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{commit}, changed" if changed else commit


def _git(checkout: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(checkout), *arguments],
        capture_output=True,
        text=True,
        timeout=_GIT_S,
        check=True,
    )
    return done.stdout.strip()


def refuse_other_software(
    own: Mapping[str, str], there: Mapping[str, Mapping[str, str]], *, used: Iterable[str] = ()
) -> None:
    """Refuse nodes that differ in what must be equal.

    Args:
        own: ``software_here`` of this process.
        there: Node -> ``software_here`` of it.
        used: Names of the entry points that the study needs.
    Raises:
        ResourceError: For the first difference of the first node.
    """
    needed = {f"plugin {name}" for name in used}
    for node, software in sorted(there.items()):
        for name, parts in EQUAL.items():
            if _leading(software.get(name, ""), parts) != _leading(own[name], parts):
                raise _differs(node, name, software.get(name, ""), own[name], _IMAGE)
        if software["code"] != own["code"]:
            raise ResourceError(
                f"{node} runs other code as {software['dpsweep']} than this process, "
                f"which runs {own['dpsweep']}",
                because=f"files differ: SHA-256 {software['code'][:12]}, here {own['code'][:12]}",
                fix="join it by `dpsweep run` in a process of its own, which ships this code; or "
                "install the same dpsweep there",
            )
        for name in sorted(needed & set(own)):
            if not _is_same_plugin(software.get(name, ""), own[name]):
                label = f"the package with {name.removeprefix('plugin ')!r}"
                raise _differs(node, label, software.get(name, ""), own[name], _PLUGIN)


_IMAGE = "use one image for all nodes (Dockerfile, constraints.txt), or install that version there"
_PLUGIN = "install the same package on every node, or in the image; dpsweep ships itself alone"


def _differs(node: str, label: str, there: str, here: str, fix: str) -> ResourceError:
    return ResourceError(
        f"{node} has {there or 'none'} for {label}, and this process {here}",
        because="trials run there, and what they compute and charge must not depend on the node",
        fix=fix,
    )


def other_software(own: Mapping[str, str], there: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a line for each package that differs on some nodes and may.

    Args:
        own: ``software_here`` of this process.
        there: Node -> ``software_here`` of it.
    """
    lines = []
    for name, version in own.items():
        if name in ("code", "dpsweep") or not version:
            continue  # what this process has not, no trial of it was checked with
        others: dict[str, list[str]] = {}
        for node, software in sorted(there.items()):
            is_plugin = name.startswith("plugin ")
            same = _is_same_plugin if is_plugin else str.__eq__
            if not same(software.get(name, ""), version):
                others.setdefault(software.get(name, ""), []).append(node)
        for found_version, nodes in sorted(others.items()):
            effect = "scores may differ" if found_version else "trials that need it fail there"
            lines.append(
                f"{', '.join(nodes)}: {name} is {found_version or 'missing'} there and {version} "
                f"here; {effect}"
            )
    return lines


def _is_same_plugin(there: str, here: str) -> bool:
    """Compare what ``software_here`` says of an entry point; a commit counts where both know it."""
    commits = [set(_COMMIT.findall(text)) for text in (there, here)]
    is_other_commit = all(commits) and commits[0] != commits[1]
    return not is_other_commit and _COMMIT.sub("", there) == _COMMIT.sub("", here)


def _leading(version: str, parts: int | None) -> tuple[str, ...]:
    """Return the parts of a version that count; what follows a + says how it was built.

    >>> _leading("2.15.0+cu128", None), _leading("3.11.2", 2)
    (('2', '15', '0'), ('3', '11'))
    """
    return tuple(version.partition("+")[0].split(".")[:parts])
