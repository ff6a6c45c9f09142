from __future__ import annotations

import subprocess
import sys

import pytest

from dpsweep.foundation.errors import BadInputError
from dpsweep.tracking import TRACKERS
from dpsweep.tracking.memory import MemoryTracker


def test_trackers_by_name() -> None:
    assert set(TRACKERS) == {"memory", "mlflow"}
    assert TRACKERS["memory"] is MemoryTracker
    with pytest.raises(BadInputError, match="unknown tracker 'mlfow'"):
        TRACKERS["mlfow"]


def test_importing_the_room_loads_no_tracking_store() -> None:
    code = (
        "import sys, dpsweep.tracking, dpsweep.tracking.mlflow\n"
        "print(sorted({'mlflow', 'torch', 'ray', 'sqlalchemy'} & set(sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout.strip() == "[]"
