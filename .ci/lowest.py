"""Lowest versions that a pyproject.toml allows, as constraints for pip."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path


def lowest(requirements: Iterable[str]) -> list[str]:
    """Return ``name==bound`` for each requirement that has a lower bound.

    >>> lowest(["ray[tune]>=2.60,<3", "dpsweep[test]", "mypy"])
    ['ray==2.60']
    """
    bounds = (re.match(r"([\w.-]+)(?:\[[^\]]*\])?>=([\w.]+)", each) for each in requirements)
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound]


if __name__ == "__main__":
    project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
    extras = project["optional-dependencies"].values()
    print(
        *lowest([*project["dependencies"], *(each for extra in extras for each in extra)]), sep="\n"
    )
