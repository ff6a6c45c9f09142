"""Regret against epsilon, one line a strategy and one panel a setting, from what the bench measured.

python tests/benchmarks/draw_regret.py regret.png build/regret_pixels.json build/regret_lite0.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench_regret import Results, as_read_today, regret_of
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpsweep.planning.strategies import STRATEGIES

#: Below it the axis of regret is linear, above it logarithmic, in points of accuracy.
LINEAR = 1.0


def settings_of(paths: list[Path]) -> dict[str, Results]:
    """Return the results of each setting; one setting may lie in several files."""
    found: dict[str, Results] = {}
    for path in paths:
        about = as_read_today(json.loads(path.read_text())["about"])
        results = Results(path, about)
        known = found.setdefault(about["base"]["name"], results)
        known.singles |= results.singles
    return found


def panel(axes: Axes, name: str, results: Results) -> None:
    """Draw the strategies of one setting, a little apart so that none hides another."""
    epsilons = sorted({epsilon for epsilon, _, _ in results.singles})
    for number, strategy in enumerate(STRATEGIES):
        rows = [
            (epsilon * 1.02 ** (number - len(STRATEGIES) / 2), *regret)
            for epsilon in epsilons
            if (regret := regret_of(results, epsilon, strategy.name)) is not None
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
    axes.set_title(name.removeprefix("regret-"), fontsize=10)


def main() -> None:
    """Draw all settings side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("results", type=Path, nargs="+", help="what bench_regret.py --out wrote")
    options = parser.parse_args()
    settings = settings_of(options.results)
    figure = Figure(figsize=(1.5 + 3.2 * len(settings), 4.2), layout="constrained")
    panels = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
    for axes, (name, results) in zip(panels, settings.items()):
        panel(axes, name, results)
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
