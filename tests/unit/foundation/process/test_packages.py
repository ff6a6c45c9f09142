"""Entry points are read once for a process, and are those that Python reads."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

from dpsweep.foundation.process.packages import scan_once


@pytest.fixture
def reads(monkeypatch):
    """How often all packages were read."""
    number, read = [], metadata.distributions
    monkeypatch.setattr(
        metadata, "distributions", lambda *a, **k: number.append(1) or read(*a, **k)
    )
    monkeypatch.setattr(metadata, "entry_points", metadata.entry_points)  # put back afterwards
    return number


def package(site, name, entry):
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[dpsweep.samplers]\n{entry} = nowhere:Thing\n")


def test_they_are_what_python_reads_and_are_read_once(reads):
    plain = metadata.entry_points
    groups = sorted(plain().groups)
    assert "pytest11" in groups
    scan_once()
    reads.clear()
    for group in groups:
        assert list(metadata.entry_points(group=group)) == list(plain(group=group))
    assert len(reads) == 1 + len(groups)  # of ours one, of Python's one for each
    assert sorted(metadata.entry_points().groups) == groups
    one = metadata.entry_points(group="pytest11")[plain(group="pytest11").names.copy().pop()]
    assert one.dist is not None
    assert list(metadata.entry_points(group="pytest11", name=one.name)) == [one]
    assert not metadata.entry_points(group="none.such")


def test_another_search_path_is_read_anew(reads, tmp_path, monkeypatch):
    scan_once()
    assert "odd" not in metadata.entry_points(group="dpsweep.samplers").names
    package(tmp_path, "later", "odd")
    monkeypatch.syspath_prepend(tmp_path)
    (odd,) = (e for e in metadata.entry_points(group="dpsweep.samplers") if e.name == "odd")
    assert odd.dist.name == "later"


COUNT = """
import runpy, sys, types
from importlib import metadata

read, number = metadata.distributions, []
metadata.distributions = lambda *a, **k: number.append(1) or read(*a, **k)

def main():
    number.clear()  # what the package above has read as it was imported
    for _ in range(3):
        metadata.entry_points(group="dpsweep.samplers")
    print(len(number))

stub = types.ModuleType(sys.argv[2])
stub.main = stub.command = main
sys.modules[sys.argv[2]] = stub
runpy.run_module(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("module", "work"),
    [
        ("dpsweep", "dpsweep.cli.app"),
        ("dpsweep.results.page", "dpsweep.results.page.drawing"),
        ("dpsweep.tracking.apart", "dpsweep.tracking.apart.serving"),
    ],
)
def test_our_processes_read_them_once(module, work):
    said = subprocess.check_output([sys.executable, "-c", COUNT, module, work], text=True)
    assert said in ("0\n", "1\n")


@pytest.mark.slow
def test_in_a_users_own_process_nothing_is_replaced():
    """A notebook may install a package and go on."""
    code = (
        "from importlib import metadata; import dpsweep; from dpsweep import load_sweep; "
        "import dpsweep.sweep; print(metadata.entry_points.__module__)"
    )
    assert (
        subprocess.check_output([sys.executable, "-c", code], text=True) == "importlib.metadata\n"
    )
