"""Figure of accuracy against epsilon, from the JSON of ``dpsweep report`` (see epsilons.yaml).

python docs/pictures/draw.py report.json accuracy.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from matplotlib.figure import Figure


def terms(row: dict) -> str:
    """Return what the epsilon of a row means nothing without."""
    names = ("privacy_unit", "neighboring_relation", "sampling", "accountant", "accounting")
    return f"delta {row['delta']:g}, {', '.join(row[name] for name in names)}"


def draw(rows: list[dict], path: Path) -> None:
    """Write a line of mean test accuracy for each network, with its standard deviation."""
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for name in sorted({row["model.name"] for row in rows}):
        own = sorted(
            (row for row in rows if row["model.name"] == name),
            key=lambda row: row["noise.target_epsilon"],
        )
        axes.errorbar(
            [row["noise.target_epsilon"] for row in own],
            [row["test/accuracy"] for row in own],
            yerr=[row["test/accuracy std"] or 0 for row in own],
            marker="o",
            capsize=3,
            label=name,
        )
    axes.set_xscale("log", base=2)
    epsilons = sorted({row["noise.target_epsilon"] for row in rows})
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    (shared,) = {terms(row) for row in rows}  # else one label would not do
    axes.set_xlabel(f"epsilon of one trial\n({shared})")
    axes.set_ylabel("test accuracy")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
