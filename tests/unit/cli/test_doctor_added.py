"""`dpsweep doctor` lists what installed packages add."""

from __future__ import annotations

import json

import pytest
from outside import install
from typer.testing import CliRunner

from dpsweep.cli import app as cli
from dpsweep.cluster import TARGETS
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.methods.dp_sgd import DPSGD


class Mine(DPSGD):
    """A method of another package."""

    name = "mine"


def rows() -> dict[str, tuple[str, str]]:
    done = CliRunner().invoke(cli.app, ["doctor", "-f", "json"])
    return {row["check"]: (row["status"], row["detail"]) for row in json.loads(done.stdout)}


def test_what_packages_add_is_listed_by_kind_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows()
    places = {"mine": f"{__name__}:Mine", "broken": f"{__name__}:Absent", "dp_sgd": "a:b"}
    install(monkeypatch, "dpsweep.trainables", TRAINABLES, **places)
    install(monkeypatch, "dpsweep.cluster", TARGETS, hut="dpsweep.cluster.local:LocalTarget")
    found = rows()
    added = {check: row for check, row in found.items() if check not in before}
    assert {check: status for check, (status, _) in added.items()} == {
        "method mine": "ok",
        "method broken": "broken",
        "method dp_sgd": "note",
        "cluster target hut": "ok",
    }
    assert added["method mine"][1] == "an unknown package"
    assert "AttributeError" in added["method broken"][1]
    assert "dpsweep's own is used" in added["method dp_sgd"][1]


def test_methods_of_packages_are_listed_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "dpsweep.trainables", TRAINABLES, mine=f"{__name__}:Mine")
    done = CliRunner().invoke(cli.app, ["methods", "-f", "json"])
    found = {row["method"]: row["about"] for row in json.loads(done.stdout)}
    assert found["mine"] == "A method of another package."
    assert "dp_sgd" in found
