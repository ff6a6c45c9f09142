"""Packages whose code runs when something of them is used."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from dpsweep.foundation.process.deferring import defer, parts_alone

CODE = """
import sys, time
sys.lazy_runs = getattr(sys, "lazy_runs", 0) + 1
time.sleep(0.05)
if getattr(sys, "lazy_breaks", False):
    raise RuntimeError("a broken moment")
from lazy.parts import own
VALUE = own.NUMBER + 1
__version__ = "3"
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package ``lazy``, and in it ``lazy.parts`` with ``own`` and ``other``."""
    parts = tmp_path / "lazy" / "parts"
    parts.mkdir(parents=True)
    (tmp_path / "lazy" / "__init__.py").write_text(CODE)
    (parts / "__init__.py").write_text("")
    (parts / "own.py").write_text("NUMBER = 1")
    (parts / "other.py").write_text("import lazy\nDOUBLE = 2 * lazy.VALUE")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "lazy"]:
        del sys.modules[name]
    for name in ("lazy_runs", "lazy_breaks"):
        vars(sys).pop(name, None)


def num_runs() -> int:
    return getattr(sys, "lazy_runs", 0)


def test_an_import_alone_runs_nothing_and_a_use_runs_all_once() -> None:
    defer("lazy")
    lazy = importlib.import_module("lazy")
    assert not hasattr(lazy, "__warningregistry__")
    assert importlib.util.find_spec("lazy") is not None
    assert num_runs() == 0
    assert (lazy.VALUE, lazy.parts.own.NUMBER, num_runs()) == (2, 1, 1)
    assert type(sys.modules["lazy"]) is ModuleType
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lazy.nothing  # noqa: B018


@pytest.mark.parametrize("use", ["import lazy.parts.other as m", "from lazy import parts as m"])
def test_a_part_is_imported_after_the_package(use: str) -> None:
    defer("lazy")
    found_here: dict[str, object] = {}
    exec(use, found_here)
    assert num_runs() == 1
    assert sys.modules["lazy"].VALUE == 2


def test_the_version_is_a_use() -> None:
    defer("lazy")
    assert importlib.import_module("lazy").__version__ == "3"


def test_parts_come_alone_within_and_with_the_package_afterwards() -> None:
    defer("lazy")
    with parts_alone("lazy"):
        importlib.import_module("lazy.parts.own")
    assert sys.modules["lazy.parts.own"].NUMBER == 1
    assert num_runs() == 0
    from lazy.parts import own  # type: ignore[import-not-found]

    assert (own.NUMBER, num_runs()) == (1, 0)
    other = importlib.import_module("lazy.parts.other")
    assert (other.DOUBLE, num_runs()) == (4, 1)
    assert sys.modules["lazy"].parts.own is own


def test_threads_wait_for_the_one_that_runs_it() -> None:
    defer("lazy")
    seen: list[int] = []
    threads = [
        threading.Thread(target=lambda: seen.append(sys.modules["lazy"].VALUE)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (seen, num_runs()) == ([2] * 8, 1)


def test_a_run_that_fails_is_tried_again() -> None:
    defer("lazy")
    sys.lazy_breaks = True  # type: ignore[attr-defined]
    lazy = sys.modules["lazy"]
    with pytest.raises(RuntimeError, match="a broken moment"):
        lazy.VALUE  # noqa: B018
    with pytest.raises(RuntimeError, match="a broken moment"):
        importlib.import_module("lazy.parts.own")
    sys.lazy_breaks = False  # type: ignore[attr-defined]
    assert importlib.import_module("lazy.parts.own").NUMBER == 1
    assert (lazy.VALUE, num_runs()) == (2, 3)


def test_what_is_set_stays_and_what_is_listed_is_there() -> None:
    defer("lazy")
    lazy = sys.modules["lazy"]
    lazy.VALUE = 5  # type: ignore[attr-defined]
    assert (lazy.VALUE, num_runs()) == (5, 1)
    del sys.modules["lazy"]
    defer("lazy")
    assert "VALUE" in dir(sys.modules["lazy"])


def test_one_that_is_reloaded_is_an_ordinary_module() -> None:
    defer("lazy")
    lazy = importlib.reload(sys.modules["lazy"])
    assert not hasattr(lazy, "nothing")
    assert (lazy.VALUE, num_runs(), type(lazy)) == (2, 1, ModuleType)


def test_two_threads_that_wait_for_each_other_end(tmp_path: Path) -> None:
    """One uses the package, whose code imports a part; one imports the part, which uses it."""
    (tmp_path / "lazy" / "parts" / "own.py").write_text(
        "import time, lazy\ntime.sleep(0.1)\nlazy.NOT_THERE_YET\nNUMBER = 1"
    )
    defer("lazy")

    def use() -> None:
        with suppress(Exception):
            sys.modules["lazy"].VALUE  # noqa: B018

    def import_part() -> None:
        time.sleep(0.02)
        with suppress(Exception):
            importlib.import_module("lazy.parts.own")

    threads = [threading.Thread(target=run, daemon=True) for run in (use, import_part)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


def test_what_is_loaded_or_missing_stays_as_it_is() -> None:
    lazy = importlib.import_module("lazy")
    defer("lazy")
    assert sys.modules["lazy"] is lazy
    with parts_alone("lazy"):
        assert lazy.__path__
    assert lazy.__path__
    defer("no_such_package_here")
    with parts_alone("no_such_package_here"):
        pass
    assert "no_such_package_here" not in sys.modules
