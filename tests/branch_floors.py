"""Say how many branches of each room the tests took, and fail below a floor.

python tests/branch_floors.py coverage.json: `make coverage` writes that file.
"""

import json
import sys
from collections import Counter
from pathlib import Path

#: Room -> least share of branches, in per cent.
FLOORS = {"dpsweep/privacy": 95.0, "dpsweep/ledgers": 95.0}


def shares(report):
    """Return the share of branches taken in each room of ``FLOORS``, in per cent."""
    total, taken = Counter(), Counter()
    for path, file in report["files"].items():
        for room in FLOORS:
            if f"/{room}/" in f"/{path}":
                total[room] += file["summary"]["num_branches"]
                taken[room] += file["summary"]["covered_branches"]
    return {room: 100 * taken[room] / total[room] if total[room] else 0.0 for room in FLOORS}


def main(path):
    """Print the shares and the branches that are missing; return 1 below a floor."""
    report = json.loads(Path(path).read_text())
    for name, file in report["files"].items():
        for first, then in file["missing_branches"]:
            print(f"{name}:{first} never goes to {'its end' if then < 0 else then}")
    taken = shares(report)
    for room, share in taken.items():
        print(f"{room}: {share:.1f}% of branches, at least {FLOORS[room]:g}%")
    return int(any(share < FLOORS[room] for room, share in taken.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
