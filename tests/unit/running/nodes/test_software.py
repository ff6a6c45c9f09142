"""Nodes with other software are refused, or told of, before anything is spent."""

import json
import subprocess
import sys
from importlib.metadata import PathDistribution
from types import SimpleNamespace

import pytest

from dpsweep.foundation.errors import ResourceError
from dpsweep.running.nodes import software
from dpsweep.running.nodes.software import (
    ALIKE,
    EQUAL,
    check_software,
    other_software,
    plugin_points,
    refuse_other_software,
    software_here,
)

OWN = {
    "python": "3.11.2",
    "ray": "2.60.0",
    "numpy": "2.4.1",
    "torch": "2.15.0+cu128",
    "opacus": "1.6.0",
    "dp-accounting": "0.6.0",
    "timm": "1.0.31",
    "kymatio": "",
    "dpsweep": "dpsweep 0.1.0 (commit 0123456789ab)",
    "code": "aa" * 32,
    "plugin pebbles": "heaps 2.0 (commit 111111111111), heaps.method abcabcabcabc",
}


@pytest.mark.parametrize(
    "changes",
    [
        {"python": "3.11.9"},
        {"numpy": "2.1.0"},
        {"torch": "2.15.0+cpu"},
        {"timm": ""},
        {"dpsweep": "dpsweep 0.1.0"},
        {"plugin pebbles": "heaps 2.0, heaps.method abcabcabcabc"},
    ],
)
def test_what_may_differ_is_not_refused(changes):
    refuse_other_software(OWN, {"node1": OWN, "node2": OWN | changes}, used={"pebbles"})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"python": "3.12.2"}, "node2 has 3.12.2 for python, and this process 3.11.2"),
        ({"ray": "2.61.0"}, "node2 has 2.61.0 for ray, and this process 2.60.0"),
        ({"numpy": "1.26.4"}, "node2 has 1.26.4 for numpy, and this process 2.4.1"),
        ({"torch": "2.16.0"}, "node2 has 2.16.0 for torch, and this process 2.15.0"),
        ({"opacus": ""}, "node2 has none for opacus, and this process 1.6.0"),
        ({"dp-accounting": "0.6.1"}, "node2 has 0.6.1 for dp-accounting"),
        ({"code": "bb" * 32}, "node2 runs other code as dpsweep 0.1.0 (commit 0123456789ab)"),
        ({"plugin pebbles": ""}, "node2 has none for the package with 'pebbles'"),
        (
            {"plugin pebbles": "heaps 2.1, heaps.method abcabcabcabc"},
            "node2 has heaps 2.1, heaps.method abcabcabcabc for the package with 'pebbles'",
        ),
        ({"plugin pebbles": "heaps 2.0, heaps.method 000000000000"}, "heaps.method 000000000000"),
        (
            {"plugin pebbles": OWN["plugin pebbles"].replace("1111)", "2222)")},
            "(commit 111111112222)",
        ),
    ],
)
def test_what_must_be_equal_is_named_with_both_versions(changes, says):
    with pytest.raises(ResourceError) as caught:
        refuse_other_software(OWN, {"node1": OWN, "node2": OWN | changes}, used={"pebbles"})
    assert says in caught.value.message
    assert "install" in str(caught.value)


def test_a_package_that_the_study_does_not_need_is_told_of():
    there = {"node1": OWN, "node2": OWN | {"plugin pebbles": ""}}
    refuse_other_software(OWN, there, used={"dp_sgd"})
    (line,) = other_software(OWN, there)
    assert line.startswith("node2: plugin pebbles is missing there and heaps 2.0")


def test_a_line_names_all_nodes_that_differ_alike():
    old = OWN | {"timm": "1.0.20"}
    lines = other_software(OWN, {"a": old, "b": OWN, "c": old, "d": OWN | {"timm": ""}})
    assert lines == [
        "d: timm is missing there and 1.0.31 here; trials that need it fail there",
        "a, c: timm is 1.0.20 there and 1.0.31 here; scores may differ",
    ]
    assert other_software(OWN, {"a": OWN}) == []


def test_this_process_has_what_must_be_equal():
    found = software_here([*EQUAL, *ALIKE, "no-such-package"])
    assert all(found[name] for name in EQUAL)
    assert found["no-such-package"] == ""
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["dpsweep"].startswith("dpsweep 0.1.0")
    assert found == software_here([*EQUAL, *ALIKE, "no-such-package"])


def plugin(folder, monkeypatch, *, text="", direct=None):
    (folder / "quartzes.py").write_text(text)
    info = folder / "quartzes-1.2.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: quartzes\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[dpsweep.events]\nquartz = quartzes:Quartz\n")
    if direct is not None:
        (info / "direct_url.json").write_text(json.dumps(direct))
    monkeypatch.syspath_prepend(str(folder))
    return PathDistribution(info)


def test_a_package_is_known_by_its_version_and_its_file(tmp_path, monkeypatch):
    plugin(tmp_path, monkeypatch)
    points = plugin_points()
    assert ("quartz", "quartzes") in points
    before = software_here([], points)["plugin quartz"]
    assert before.startswith("quartzes 1.2, quartzes ")
    plugin(tmp_path, monkeypatch, text="changed = True\n")
    after = software_here([], points)["plugin quartz"]
    assert after.startswith("quartzes 1.2, quartzes ")
    assert after != before
    assert software_here([], [("opal", "opals")])["plugin opal"] == ""


def test_a_commit_is_what_pip_has_noted_or_that_of_the_checkout(tmp_path, monkeypatch):
    noted = {"vcs_info": {"vcs": "git", "commit_id": "cafe" * 10}, "url": "https://git.example/q"}
    plugin(tmp_path, monkeypatch, direct=noted)
    here = software_here([], [("quartz", "quartzes")])["plugin quartz"]
    assert here.startswith("quartzes 1.2 (commit cafecafecafe), quartzes ")

    (tmp_path / "quartzes-1.2.dist-info" / "direct_url.json").unlink()

    def git(*arguments):
        named = ["-c", "user.name=n", "-c", "user.email=n@mail.example"]
        subprocess.run(["git", "-C", tmp_path, *named, *arguments], check=True, capture_output=True)

    git("init")
    assert "commit" not in software_here([], [("quartz", "quartzes")])["plugin quartz"]
    git("add", "quartzes.py")
    git("commit", "-m", "first")
    assert "(commit " in software_here([], [("quartz", "quartzes")])["plugin quartz"]
    (tmp_path / "quartzes.py").write_text("x = 1\n")
    assert ", changed)" in software_here([], [("quartz", "quartzes")])["plugin quartz"]


def test_the_processes_of_a_ray_of_our_own_are_not_asked():
    def refuse(*_):
        raise AssertionError

    check_software(None, SimpleNamespace(joined="", on_each_node=refuse), None)


def test_nodes_are_asked_and_told_of(monkeypatch):
    said = []
    monkeypatch.setattr(software, "software_here", lambda *_: OWN)
    target = SimpleNamespace(
        joined="joined it", on_each_node=lambda *_: {"a": OWN, "b": OWN | {"timm": ""}}
    )
    checked = SimpleNamespace(
        methods={"dp_sgd": None}, spec=SimpleNamespace(data=SimpleNamespace(dataset="digits"))
    )
    check_software(checked, target, SimpleNamespace(on_message=said.append))
    assert said[0].startswith("2 nodes of the cluster: dpsweep 0.1.0 (commit 0123456789ab), the")
    assert said[1].startswith("b: timm is missing")
