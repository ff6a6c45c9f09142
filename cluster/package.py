"""This package without its dependencies, so that cluster nodes run the driver's version."""

from __future__ import annotations

import hashlib
from importlib import import_module
from pathlib import Path

#: Packages that may lie outside the folder of their parent, in a checkout.
_ROOTS = ("dpsweep", "dpsweep.cluster", "dpsweep.search_spaces", "dpsweep.trainables")


def write_package(directory: Path) -> Path:
    """Write the installed modules as a folder ``dpsweep`` and return its path.

    A folder and not a wheel: Ray unpacks it under the hash of what it holds, and installs nothing.
    A node that two trials reach at once would install a wheel twice, the second time over the
    first, and would be of no use from then on. torch, opacus and ray belong in the cluster's image.
    """
    for name, content in _modules().items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return directory / "dpsweep"


def code_digest() -> str:
    """Return the SHA-256 of this package's modules, in hexadecimal: equal code gives equal ones."""
    total = hashlib.sha256()
    for name, content in sorted(_modules().items()):
        total.update(f"{name} {hashlib.sha256(content).hexdigest()}\n".encode())
    return total.hexdigest()


def _modules() -> dict[str, bytes]:
    """Return the files of this package as it is installed: path in a folder -> content."""
    files: dict[str, bytes] = {}
    for root in _ROOTS:
        source = Path(next(iter(import_module(root).__path__)))
        for path in sorted(source.rglob("*")):
            if path.suffix in {".py", ".yaml"} or path.name == "py.typed":
                name = f"{root.replace('.', '/')}/{path.relative_to(source).as_posix()}"
                files[name] = path.read_bytes()
    return files
