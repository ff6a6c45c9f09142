"""Regret against epsilon, one line a strategy and one panel a setting, from BENCHMARKS.md's table.

python tests/benchmarks/draw_regret.py BENCHMARKS.md regret.png
"""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpsweep.planning.strategies import STRATEGIES

#: Below it the axis of regret is linear, above it logarithmic, in points of accuracy.
LINEAR = 1.0
#: Head of a column of the table -> name of a strategy.
COLUMNS = {
    "no search": "default",
    "`probe`": "probe",
    "`epsilon_halving`, filter": "halving",
    "8 trials, filter": "fifo",
    "`select`": "select",
    "`select` by profiles": "select_profiles",
    "one random value": "random",
}
_FIRST = "| setting | epsilon | oracle"
_CELL = re.compile(r"(-?[\d.]+)(?: ±([\d.]+))? \(\d+\)")

#: (Epsilon, strategy) -> regret and its standard error in points; the error of one seed is NaN.
Regrets = dict[tuple[float, str], tuple[float, float]]


def settings_of(text: str) -> dict[str, Regrets]:
    """Return the regrets of each setting of the one such table in a page."""
    lines = text.splitlines()
    (start,) = [number for number, line in enumerate(lines) if line.startswith(_FIRST)]
    _, _, _, *heads = _cells(lines[start])
    read: dict[str, Regrets] = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        setting, epsilon, _, *cells = _cells(line)
        for head, cell in zip(heads, cells, strict=True):
            if match := _CELL.fullmatch(cell):
                regret = float(match[1]), float(match[2] or math.nan)
                read.setdefault(setting, {})[float(epsilon), COLUMNS[head]] = regret
            elif cell:
                raise SystemExit(f"{setting} at {epsilon}: cannot read {cell!r}")
    return read


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def panel(axes: Axes, name: str, regrets: Regrets) -> None:
    """Draw the strategies of one setting, a little apart so that none hides another."""
    epsilons = sorted({epsilon for epsilon, _ in regrets})
    for number, strategy in enumerate(STRATEGIES):
        rows = [
            (epsilon * 1.02 ** (number - len(STRATEGIES) / 2), *regrets[epsilon, strategy.name])
            for epsilon in epsilons
            if (epsilon, strategy.name) in regrets
        ]
        if rows:
            where, means, errors = zip(*rows)
            axes.errorbar(
                where,
                means,
                yerr=errors,
                marker="o",
                ms=4,
                capsize=2,
                label=strategy.title,
                color=f"C{number}",  # the same in each panel
            )
    axes.axhline(0, color="black", lw=0.8)
    axes.axhline(0.5, color="black", lw=0.8, ls=":")
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=LINEAR)
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.set_xticks([], minor=True)
    ticks = [-1, -0.5, 0, 0.5, 1, 2, 5, 10, 20]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.grid(alpha=0.3)
    axes.set_title(name.replace("`", ""), fontsize=10)


def main() -> None:
    """Draw all settings side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="BENCHMARKS.md")
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    settings = settings_of(options.page.read_text())
    figure = Figure(figsize=(1.5 + 3.2 * len(settings), 4.2), layout="constrained")
    panels = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
    for axes, (name, regrets) in zip(panels, settings.items()):
        panel(axes, name, regrets)
    panels[0].set_ylabel("regret, points of test accuracy")
    figure.supxlabel(
        "epsilon of everything, search included\n(delta 1e-5, unit example, add-or-remove-one;\n"
        "accounting composed, or select for the two of its name)",
        fontsize=9,
    )
    shown = {}
    for axes in panels:
        shown |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels())}
    figure.legend(shown.values(), shown.keys(), loc="outside right upper", fontsize=8)
    figure.savefig(options.picture, dpi=110)


if __name__ == "__main__":
    main()
