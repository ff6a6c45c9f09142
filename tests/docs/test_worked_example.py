"""The prices of twenty trials come out of the commands that stand beside them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / f"search_{name}.md" for name in ("cost", "strategies")]
TEXT = "\n".join(page.read_text() for page in PAGES)
PRICED = re.findall(r"^\$ (.*dpsweep account .*?)   # epsilon ([\d.]+)$", TEXT, re.M)


def test_the_worked_example_is_there():
    assert len(PRICED) == 9


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("command", "epsilon"), PRICED)
def test_the_worked_example(command, epsilon):
    folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert re.search(rf"epsilon +{re.escape(epsilon)}\b", done.stdout), done.stdout
