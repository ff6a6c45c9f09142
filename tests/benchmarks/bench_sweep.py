"""Whole sweeps, from the key press to the prompt, against the same work wired by hand.

Ours keeps its ledger, its scheduler and its journal in every row; rows say what else is on. The
commands take turns; printed are medians of wall seconds, the load of the machine beside them.

python tests/benchmarks/bench_sweep.py [--trials 8 32] [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tables import Table, show, times

from dpsweep.results.study import load_sweep
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.loading import load_records
from dpsweep.trainables.method import RunContext

HERE = Path(__file__).parent
OURS = [str(Path(sys.executable).with_name("dpsweep")), "run", str(HERE / "sweep.yaml")]
PEER = [sys.executable, str(HERE / "peer_sweep.py"), "--out", "."]
REUSE, STOCK = "peer, reuse_actors, no MLflow", "peer, stock"
TRACKED, UNTRACKED = "dpsweep run", "dpsweep run, no tracking"
COMMANDS = {
    TRACKED: OURS,
    "dpsweep run, no pictures": [*OURS, "--set", "tracking.pictures=false"],
    UNTRACKED: [*OURS, "--set", "tracking.uri=null"],
    REUSE: [*PEER, "--reuse-actors", "--no-mlflow"],
    STOCK: PEER,
}
#: Command -> its row.
ROWS = {
    TRACKED: "`dpsweep run` (MLflow, its model, pictures)",
    "dpsweep run, no pictures": "without pictures",
    UNTRACKED: "without tracking",
    REUSE: "peer, `reuse_actors`, no MLflow",
    STOCK: "peer, stock",
}
SLOTS = 2  # trials at a time, of both
MOST_OVERHEAD = 0.25  # slot-seconds of a trial beside its training


def seconds(command: list[str], folder: Path | None = None) -> float:
    """Return the wall time of a command in a folder; None: a new one, which is not kept."""
    if folder is None:
        with tempfile.TemporaryDirectory() as new:
            return seconds(command, Path(new))
    environment = {**os.environ, "RAY_worker_niceness": "0"}
    begin = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    taken = time.perf_counter() - begin
    if done.returncode:
        print(done.stderr, file=sys.stderr)
    done.check_returncode()
    return taken


def training_seconds(folder: Path) -> float:
    """Return the mean seconds of what the trials of a study in a folder trained, without all else.

    Their models, steps and scores once more, one after the other in this process on one thread:
    no Ray, ledger, journal or checkpoint.
    """
    torch.set_num_threads(1)
    result = load_sweep("sweep", root=folder / "studies")
    data, taken = load_records(result.spec), []
    for number, trial in result.view.trials.items():
        task = result.files.task(number)
        context = RunContext(result.spec.seed, number)
        begin = time.perf_counter()
        method = TRAINABLES[task.method]()
        method.prepare(data, task.hparams, task.plan, context)
        steps = [0, *(point["step"] for point in trial.reports)]
        for before, after in itertools.pairwise(steps):
            method.run(before, after)
            method.evaluate("validation")
        taken.append(time.perf_counter() - begin)
    return statistics.mean(taken[1:])  # the first one pays for what is loaded once


@dataclass(frozen=True)
class Timed:
    """Commands with one number of trials.

    Attributes:
        trials: The number.
        seconds: Wall seconds of each turn, by command.
        loads: Of the machine at the start of each command.
        training: Mean seconds of what a trial trains, of the last turn without tracking.
    """

    trials: int
    seconds: dict[str, list[float]]
    loads: list[float]
    training: float

    @property
    def medians(self) -> dict[str, float]:
        """Median seconds by command."""
        return {name: statistics.median(values) for name, values in self.seconds.items()}


def measure(trials: int, rounds: int) -> Timed:
    """Run all commands in turns."""
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    loads, training = [], 0.0
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            ours = command[0] == OURS[0]
            more = ["--set", f"search.num_trials={trials}"] if ours else ["--trials", str(trials)]
            loads.append(os.getloadavg()[0])
            with tempfile.TemporaryDirectory() as folder:
                taken[name].append(seconds([*command, *more], Path(folder)))
                if name == UNTRACKED:
                    training = training_seconds(Path(folder))
    return Timed(trials, taken, loads, training)


def table(sizes: Sequence[Timed]) -> Table:
    """Return medians and their ratios to both peers, for each number of trials."""
    heads, rows, turns = [""], [[ROWS[name]] for name in COMMANDS], []
    for size in sizes:
        rounds, low, high = len(size.seconds[STOCK]), min(size.loads), max(size.loads)
        often = "one round" if rounds == 1 else f"{rounds} rounds"
        turns.append(f"{size.trials} trials in {often} at a load of {low:.1f} to {high:.1f}")
        heads += [f"{size.trials} trials, s", "of stock", "of reused"]
        for row, (name, value) in zip(rows, size.medians.items(), strict=True):
            row.append(f"{value:.1f}")
            row += [
                "1" if name == peer else "" if name in (STOCK, REUSE) else times(value / own)
                for peer, own in ((STOCK, size.medians[STOCK]), (REUSE, size.medians[REUSE]))
            ]
    return Table(
        tuple(heads),
        tuple(tuple(row) for row in rows),
        "2,000 images of Fashion-MNIST, a linear model, 3 epochs, two trials at a time, whole "
        "commands from the key press to the prompt; medians of wall seconds, commands in turns, "
        f"{', '.join(turns)}.",
        _note(sizes),
    )


def _note(sizes: Sequence[Timed]) -> str:
    first, last = sizes[0], sizes[-1]
    with_it, without = first.medians[TRACKED], first.medians[UNTRACKED]
    note = f"Tracking adds {with_it - without:.1f} s to {first.trials} trials."
    if last.trials > first.trials:
        more = last.medians[UNTRACKED] - without
        each = SLOTS * more / (last.trials - first.trials)
        rest = each - last.training
        note = (
            f"Each trial more takes {each:.2f} slot-seconds (without tracking), of which "
            f"{last.training:.2f} s are its training alone, without Ray, ledger and checkpoints: "
            f"{rest:.2f} are overhead (goal <= {MOST_OVERHEAD}, "
            f"{'held' if rest <= MOST_OVERHEAD else 'missed'}). {note}"
        )
    return note


def main() -> None:
    """Run all in turns and print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = [measure(trials, options.rounds) for trials in sorted(options.trials)]
    show([table(sizes)], {"sizes": [asdict(size) for size in sizes]}, as_json=options.json)


if __name__ == "__main__":
    main()
