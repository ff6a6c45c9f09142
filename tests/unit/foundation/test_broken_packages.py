"""A package that does not load breaks what asks for it by name, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from outside import install

from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.registry import Registry


def table(**places: str) -> Registry:
    return Registry("thing", {"join": "posixpath:join"}, group="dpsweep.test_things", **places)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def thing(:\n", "SyntaxError"),
        ("import no_such_package_at_all\n", "ModuleNotFoundError"),
        ("1 / 0\n", "ZeroDivisionError"),
        ("other = 1\n", "AttributeError"),
        (
            "import abc\nclass thing(abc.ABC):\n    @abc.abstractmethod\n    def export(self): ...\n",
            "AttributeError: wrong_package_of_a_test:thing has no export",
        ),
    ],
)
def test_whatever_a_package_does_wrong(
    source: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrong_package_of_a_test.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "wrong_package_of_a_test", raising=False)
    things = table()
    places = {"mine": "wrong_package_of_a_test:thing", "exists": "posixpath:exists"}
    install(monkeypatch, "dpsweep.test_things", things, **places)
    with pytest.raises(BadInputError, match="thing 'mine' of an unknown package") as caught:
        things["mine"]
    assert caught.value.because.startswith(reason)
    assert list(things.broken()) == ["mine"]
    assert sorted(things.loadable()) == ["exists", "join"]
    assert "mine" in things


def test_what_lacks_what_it_needs_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    things = table(needs=("plan",))  # type: ignore[arg-type]
    install(monkeypatch, "dpsweep.test_things", things, mine="posixpath:exists")
    assert "posixpath:exists has no plan" in things.broken()["mine"].because


def test_what_no_check_lets_through_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    things = table(check="operator:index")  # raises at what is no whole number
    install(monkeypatch, "dpsweep.test_things", things, mine="posixpath:exists")
    assert things.broken()["mine"].because.startswith("TypeError: 'function' object cannot be")
    assert things["join"]  # ours are not asked


def test_a_name_whose_package_may_be_gone_is_told_so() -> None:
    with pytest.raises(BadInputError) as told:
        table()["fern"]
    assert told.value.fix == (
        "known: join; one that a package brings is known where that package is installed"
    )
    with pytest.raises(BadInputError) as near:
        table()["joint"]
    assert near.value.fix == "did you mean 'join'? known: join"
    with pytest.raises(BadInputError) as ours:
        Registry("thing", {"join": "posixpath:join"})["fern"]
    assert ours.value.fix == "known: join"
