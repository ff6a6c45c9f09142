"""Log of the decisions of a small seeded simulation, under each scheduler.

Write it anew (python tests/golden/simulate/make_decisions.py) only where a change is meant to decide
otherwise; the difference then belongs into the commit.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any
from unittest import mock

from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import read_spec
from dpsweep.planning.simulation import simulate as simulation
from dpsweep.planning.simulation.curves import SyntheticCurves
from dpsweep.schedulers import POLICIES

FOLDER = Path(__file__).parent
LOG = FOLDER / "decisions.csv"
COLUMNS = ["policy", "trial", "step", "epsilon", "rung", "score", "decision", "judged_at", "cutoff"]
#: Schedulers, as ``--set`` takes them.
SCHEDULERS = {
    "fifo": "{type: fifo}",
    "median": "{type: median, rungs: [0.8, 1.3], min_trials: 3}",
    "epsilon_halving": "{type: epsilon_halving, rungs: [0.8, 1.3], reduction_factor: 3}",
}


def decisions(**changes: Any) -> str:
    """Return a CSV line for each report of a simulated trial, with what the policy answered.

    Args:
        changes: Keys of the spec, with ``__`` for dots, and their other values.
    """
    sets = [f"{key.replace('__', '.')}={value}" for key, value in changes.items()]
    lines = io.StringIO()
    rows = csv.writer(lines, lineterminator="\n")
    rows.writerow(COLUMNS)
    for name, scheduler in SCHEDULERS.items():
        overrides = [f"scheduler={scheduler}", *sets]
        checked = preflight(read_spec(FOLDER / "spec.yaml", overrides=overrides))
        policy = POLICIES[name]
        ask = policy.on_report

        def on_report(self: Any, report: Any, ask: Any = ask, name: str = name) -> Any:
            verdict = ask(self, report)
            score = next(iter(report.metrics.values()))
            cutoff = "" if verdict.cutoff is None else f"{verdict.cutoff:.6f}"
            rows.writerow(
                [
                    name, report.trial, report.step, f"{report.epsilon:.4f}", report.rung,
                    f"{score:.6f}", verdict.decision.value, verdict.rung, cutoff,
                ]
            )  # fmt: skip
            return verdict

        curves = SyntheticCurves(checked.space.parameters, seed=checked.spec.seed, maximize=True)
        with mock.patch.object(policy, "on_report", on_report):
            simulation.simulate(checked, curves, policies=[name], slots=3)
    return lines.getvalue()


if __name__ == "__main__":
    LOG.write_text(decisions())
