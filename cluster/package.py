"""This package as a wheel without dependencies, so that cluster nodes run the driver's version."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from importlib import import_module
from pathlib import Path

from dpsweep.foundation.version import __version__

#: Packages that may lie outside the folder of their parent, in a checkout.
_ROOTS = ("dpsweep", "dpsweep.cluster", "dpsweep.search_spaces", "dpsweep.trainables")


def build_wheel(directory: Path) -> Path:
    """Write ``dpsweep-<version>-py3-none-any.whl`` from the installed modules and return its path.

    The wheel declares no dependencies: Ray installs a shipped wheel with what it declares, and a
    node would fetch torch. torch, opacus and ray belong in the cluster's image.
    """
    files = _modules()
    info = f"dpsweep-{__version__}.dist-info"
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: dpsweep\nVersion: {__version__}\n"
    ).encode()
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: dpsweep\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    rows = [f"{name},{_digest(content)},{len(content)}" for name, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / f"dpsweep-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            # A fixed date: equal code makes an equal file, which Ray uploads once.
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), content)
    return wheel


def code_digest() -> str:
    """Return the SHA-256 of this package's modules, in hexadecimal: equal code gives equal ones."""
    total = hashlib.sha256()
    for name, content in sorted(_modules().items()):
        total.update(f"{name} {_digest(content)}\n".encode())
    return total.hexdigest()


def _modules() -> dict[str, bytes]:
    """Return the files of this package as it is installed: path in a wheel -> content."""
    files: dict[str, bytes] = {}
    for root in _ROOTS:
        source = Path(next(iter(import_module(root).__path__)))
        for path in sorted(source.rglob("*")):
            if path.suffix in {".py", ".yaml"} or path.name == "py.typed":
                name = f"{root.replace('.', '/')}/{path.relative_to(source).as_posix()}"
                files[name] = path.read_bytes()
    return files


def _digest(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"
