"""The version, the changelog and the bounds of dependencies say one thing."""

import re
import runpy
import tomllib

import pytest
from import_graph import ROOT

import dpsweep

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
SECTIONS = ["Privacy fixes", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def versions():
    """Return the heading of each version -> its part of the changelog, newest first."""
    parts = re.split(r"^## (.+)$", CHANGELOG, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def test_the_version_is_written_once():
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    module, _, name = PROJECT["tool"]["setuptools"]["dynamic"]["version"]["attr"].rpartition(".")
    assert (module, name) == ("dpsweep.foundation.version", "__version__")
    path = ROOT / "platform" / (module.replace(".", "/") + ".py")
    assert runpy.run_path(str(path))[name] == dpsweep.__version__


def test_the_changelog_has_this_version():
    first, second, *_ = versions()
    assert first == "[Unreleased]"
    version, day = re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", second).groups()
    assert version == dpsweep.__version__
    assert day >= "2026-11-23"


@pytest.mark.parametrize("version", versions())
def test_privacy_fixes_come_first_and_sections_in_order(version):
    sections = re.findall(r"^### (.+)$", versions()[version], re.MULTILINE)
    assert sections == [name for name in SECTIONS if name in sections]
    lines = [line for line in versions()[version].splitlines() if line.strip()]
    assert [line for line in lines if not line.startswith(("- ", "### "))] == []


def test_each_dependency_has_a_lowest_version_that_was_run_and_an_upper_bound():
    lowest = runpy.run_path(str(ROOT / ".ci" / "lowest.py"))["lowest"]
    own = PROJECT["project"]["dependencies"]
    assert len(lowest(own)) == len(own)
    assert [each for each in own if ",<" not in each] == []
    pinned = dict(
        re.findall(
            r"^([\w.-]+)==([\d.]+\d)(?:\.post\d+)?$", (ROOT / "constraints.txt").read_text(), re.M
        )
    )
    pinned = {name.lower(): number(version) for name, version in pinned.items()}
    for bound in lowest(own):
        name, version = bound.split("==")
        assert number(version) <= pinned[name.lower()], bound


def number(version):
    return [int(part) for part in version.split(".")]
