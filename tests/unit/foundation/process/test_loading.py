"""An import that fails once is a whole one the next time."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from dpsweep.foundation.process.loading import loaded_whole


def test_the_second_try_finds_nothing_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "fails_once"
    package.mkdir()
    (package / "store.py").write_text("")
    (package / "__init__.py").write_text(
        "from fails_once import store as _\n"
        "import fails_once, sys\n"
        "if not hasattr(sys, 'fails_once'):\n"
        "    sys.fails_once = True\n"
        "    raise SystemError('a broken moment')\n"
        "fails_once.store\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        with pytest.raises(SystemError), loaded_whole("fails_once"):
            importlib.import_module("fails_once")
        assert not [name for name in sys.modules if name.startswith("fails_once")]
        with loaded_whole("fails_once"):
            assert importlib.import_module("fails_once").store is not None
    finally:
        vars(sys).pop("fails_once", None)
        for name in ("fails_once", "fails_once.store"):
            sys.modules.pop(name, None)
