"""What an honest search loses against knowing the best value: regret at one total epsilon.

Every strategy costs the same (epsilon, delta), its search included, and delivers one model. Its
regret is the test accuracy of the best fixed value at that epsilon, as a grid that costs nothing
finds it, less that of its own model, both as means over seeds, with the standard error of that
difference. The reference is the best of several means, so it is a little too good. Single results
are written down as they come, so a bench that was killed goes on where it was.

    python tests/benchmarks/bench_regret.py tests/benchmarks/regret_digits.yaml --epsilon 3 --seeds 5
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dpsweep.foundation.errors import SweepError
from dpsweep.planning.reading import read_spec
from dpsweep.planning.strategies import STRATEGIES, default_value, oracle, searched_range
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.results.study import SweepResult, load_sweep
from dpsweep.results.trial import TrialResult
from dpsweep.spec.study import SweepSpec
from dpsweep.study.trial import TrialState
from dpsweep.sweep import run_sweep

ORACLE = "oracle"
#: The oracle's grid ends this factor from the value that is taken without a search, either way.
FACTOR = 4.0


@dataclass(frozen=True)
class Job:
    """One study: a strategy (or the oracle) at an epsilon, with a seed."""

    epsilon: float
    strategy: str
    seed: int
    spec: SweepSpec

    @property
    def key(self) -> tuple[float, str, int]:
        """What tells its result from others."""
        return self.epsilon, self.strategy, self.seed

    @property
    def size(self) -> float:
        """About how many whole runs it is."""
        if self.spec.privacy.mode.is_sealed:
            return self.spec.privacy.selection.mean
        if self.spec.final_trial is not None:
            return self.spec.final_trial + 1
        is_halved = self.spec.scheduler.type == "epsilon_halving"
        return self.spec.search.num_trials * (0.3 if is_halved else 1)


@dataclass(frozen=True)
class Single:
    """The result of one study.

    Attributes:
        epsilon: Of everything.
        strategy: Its name, or ``oracle``.
        seed: Of the study.
        trial_epsilon: Of the delivered run alone, by privacy loss distributions.
        tests: Value that was searched and test accuracy: of the delivered model; of the oracle, one
            pair a point.
        trials: Number of trials that the study has run, where it may say so.
        seconds: Wall time.
    """

    epsilon: float
    strategy: str
    seed: int
    trial_epsilon: float
    tests: Sequence[tuple[float, float]]
    trials: int | None
    seconds: float

    @property
    def key(self) -> tuple[float, str, int]:
        """What tells it from others."""
        return self.epsilon, self.strategy, self.seed


def as_read_today(about: dict[str, object]) -> dict[str, object]:
    """Give a stored spec the keys that came since it was written, which had no other meaning then."""
    spec = SweepSpec.model_validate(about["base"])
    return {**about, "base": json.loads(json.dumps(spec.to_dict()))}


class Results:
    """All single results of a bench, on disk after each."""

    def __init__(self, path: Path | None, about: dict[str, object]) -> None:
        self.path, self.about = path, about
        self.singles: dict[tuple[float, str, int], Single] = {}
        if path is None or not path.exists():
            return
        stored = json.loads(path.read_text())
        if as_read_today(stored["about"]) != json.loads(json.dumps(about)):
            sys.exit(f"{path} has results of another spec or grid; give another --out")
        for fields in stored["singles"]:
            single = Single(**fields | {"tests": [tuple(pair) for pair in fields["tests"]]})
            self.singles[single.key] = single

    def add(self, single: Single) -> None:
        """Keep a result, and write all of them down."""
        self.singles[single.key] = single
        if self.path is None:
            return
        text = {"about": self.about, "singles": [asdict(one) for one in self.singles.values()]}
        draft = self.path.with_suffix(".part")
        draft.write_text(json.dumps(text, indent=1) + "\n")
        draft.replace(self.path)

    def of(self, epsilon: float, strategy: str) -> list[Single]:
        """Return the results of a strategy at an epsilon."""
        return [s for s in self.singles.values() if (s.epsilon, s.strategy) == (epsilon, strategy)]


def run(job: Job, root: Path) -> Single:
    """Run one study and return its result; of the study nothing stays on disk.

    Args:
        job: The study.
        root: Keeps features and pre-trained weights, which all studies share.
    """
    storage = job.spec.storage.model_copy(update={"path": str(root)})
    name = f"{job.spec.name[:40]}-{job.epsilon:g}-{job.seed}".replace(".", "_")
    spec = job.spec.model_copy(update={"storage": storage, "name": name})
    shutil.rmtree(root / name, ignore_errors=True)  # of a bench that was killed
    started = time.monotonic()
    try:
        run_sweep(spec)
        seconds = time.monotonic() - started
        result = load_sweep(name, root=root)
        if job.strategy == ORACLE:
            delivered = [r for r in result.results if r.state is TrialState.FINISHED]
        else:
            delivered = [result.best()]
        is_sealed = spec.privacy.mode.is_sealed
        return Single(
            *job.key,
            trial_epsilon=_alone(result, delivered[0]),
            tests=[(_value(job.spec, r), r.metrics["test/accuracy"]) for r in delivered],
            trials=None if is_sealed else len(result.results),
            seconds=seconds,
        )
    finally:
        shutil.rmtree(root / name, ignore_errors=True)


def _alone(result: SweepResult, trial: TrialResult) -> float:
    plan = result.task(trial.trial_id).full_plan
    return epsilon_of(plan, delta=result.spec.privacy.delta, accountant="pld")


def _value(spec: SweepSpec, trial: TrialResult) -> float:
    names = [name for name in ("optim.noise_scale", "optim.noise_lr") if name in spec.search.space]
    return float(trial.config[names[0]])


@contextlib.contextmanager
def shared_ray(num_cpus: int | None) -> Iterator[None]:
    """Keep one Ray for all studies that may share one: to start it takes seconds."""
    import ray

    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    ray.init(
        address="local",
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}},
    )
    try:
        yield
    finally:
        ray.shutdown()


def jobs_of(
    base: SweepSpec, options: argparse.Namespace, grid: tuple[float, float]
) -> tuple[list[Job], dict[tuple[float, str], str]]:
    """Return all studies to run, and why a strategy cannot be had, by epsilon and name.

    Those that start a Ray of their own come last.
    """
    jobs, refused = [], {}
    for epsilon in options.epsilon:
        seeds = options.oracle_seeds or options.seeds
        studies = oracle(
            base, epsilon=epsilon, points=options.oracle_points, seeds=seeds, bounds=grid
        )
        jobs += [Job(epsilon, ORACLE, seed, spec) for seed, spec in enumerate(studies)]
        for strategy in STRATEGIES:
            if options.strategies and strategy.name not in options.strategies:
                continue
            try:
                spec = strategy.spec(base, epsilon=epsilon)
            except SweepError as error:
                refused[epsilon, strategy.name] = _brief(error)
                continue
            jobs += [
                Job(
                    epsilon, strategy.name, seed, spec.model_copy(update={"seed": base.seed + seed})
                )
                for seed in range(options.seeds)
            ]
    return sorted(jobs, key=lambda job: job.spec.privacy.mode.is_sealed), refused


def _brief(error: SweepError) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(lines)[:300]


def run_all(
    jobs: Sequence[Job], results: Results, num_cpus: int | None, root: Path
) -> dict[tuple[float, str], str]:
    """Run what has no result yet, with progress; return which strategies failed, and why."""
    todo = [job for job in jobs if job.key not in results.singles]
    left, worked = sum(job.size for job in todo), 0.0
    failed: dict[tuple[float, str], str] = {}
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        for number, job in enumerate(todo, start=1):
            left -= job.size
            if job.key[:2] in failed:
                continue
            if job.spec.privacy.mode.is_sealed:
                stack.close()
            elif number == 1:
                stack.enter_context(shared_ray(num_cpus))
            try:
                single = run(job, root)
            except SweepError as error:
                failed[job.key[:2]] = _brief(error)
                print(f"{job.strategy} at {job.epsilon:g}: {_brief(error)}", flush=True)
                continue
            results.add(single)
            worked += job.size
            eta = left * (time.monotonic() - started) / worked
            print(
                f"[{number}/{len(todo)}, {eta / 60:.0f} min left] {job.strategy} at "
                f"{job.epsilon:g}, seed {job.seed}: {max(t for _, t in single.tests):.4f}, "
                f"{single.seconds:.0f} s",
                flush=True,
            )
    return failed


def reference(results: Results, epsilon: float) -> tuple[float, list[float]] | None:
    """Return the oracle's value, the best by its mean over seeds, and its test accuracies."""
    by_value: dict[float, list[float]] = {}
    for single in results.of(epsilon, ORACLE):
        for value, test in single.tests:
            by_value.setdefault(value, []).append(test)
    if not by_value:
        return None
    best = max(by_value, key=lambda value: statistics.mean(by_value[value]))
    return best, by_value[best]


def regret_of(results: Results, epsilon: float, strategy: str) -> tuple[float, float] | None:
    """Return a strategy's regret in points and its standard error; None if there is none.

    The error is that of the difference of two means; NaN with one seed of either.
    """
    against = reference(results, epsilon)
    scores = [test for single in results.of(epsilon, strategy) for _, test in single.tests]
    if against is None or not scores:
        return None
    _, tests = against
    regret = 100 * (statistics.mean(tests) - statistics.mean(scores))
    if min(len(scores), len(tests)) < 2:
        return regret, math.nan
    return regret, 100 * math.hypot(_standard_error(scores), _standard_error(tests))


def print_table(
    results: Results, epsilon: float, names: Sequence[str], reasons: dict[tuple[float, str], str]
) -> None:
    """Print one row a strategy."""
    print(f"\nepsilon {epsilon:g} for everything")
    against = reference(results, epsilon)
    if against is None:
        print(f"no reference: {reasons.get((epsilon, ORACLE), 'nothing was run')}")
        return
    value, tests = against
    values = sorted({value for single in results.of(epsilon, ORACLE) for value, _ in single.tests})
    is_end = value in (values[0], values[-1])
    print(
        f"reference: {statistics.mean(tests):.4f} at {value:.3g}, the best of "
        f"{', '.join(f'{v:.3g}' for v in values)} over {len(tests)} seeds"
        + ("; IT IS AN END OF THE GRID: widen --oracle-range" if is_end else "")
    )
    print(
        f"{'strategy':16} {'run alone':>9} {'trials':>6} {'test':>7} {'regret, points':>16} "
        f"{'seconds':>8}  seeds"
    )
    for name in names:
        singles = results.of(epsilon, name)
        if not singles:
            print(f"{name:16} {reasons.get((epsilon, name), 'nothing was run')}")
            continue
        scores = [test for single in singles for _, test in single.tests]
        points, error = regret_of(results, epsilon, name) or (math.nan, math.nan)
        regret = f"{points:.2f}" + ("" if math.isnan(error) else f" +- {error:.2f}")
        alone = statistics.mean(single.trial_epsilon for single in singles)
        counts = [single.trials for single in singles if single.trials is not None]
        trials = f"{statistics.mean(counts):.1f}" if counts else "secret"
        seconds = statistics.mean(single.seconds for single in singles)
        print(
            f"{name:16} {alone:9.3f} {trials:>6} {statistics.mean(scores):7.4f} "
            f"{regret:>16} {seconds:8.1f}  {len(singles)}"
        )


def _standard_error(scores: Sequence[float]) -> float:
    """Return that of the mean of two scores or more."""
    return statistics.stdev(scores) / math.sqrt(len(scores))


def main() -> None:
    """Run the bench and print one table an epsilon."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("spec", type=Path, help="base spec: one range of optim.noise_scale or _lr")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--epsilon", type=float, action="append", required=True)
    parser.add_argument("--seeds", type=int, default=5)
    names = [strategy.name for strategy in STRATEGIES]
    parser.add_argument("--strategies", type=lambda text: text.split(","), help=",".join(names))
    parser.add_argument("--oracle-points", type=int, default=5)
    parser.add_argument("--oracle-seeds", type=int, help="default: as many as --seeds")
    parser.add_argument("--oracle-range", type=float, nargs=2, metavar=("LOW", "HIGH"))
    parser.add_argument("--out", type=Path, help="JSON file of single results; goes on with it")
    parser.add_argument("--root", type=Path, help="keeps features and pre-trained weights")
    parser.add_argument("--cpus", type=int, help="trials at once; default: all cores")
    options = parser.parse_args()
    unknown = set(options.strategies or ()) - set(names)
    if unknown:
        parser.error(f"no strategy {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    base = read_spec(options.spec, overrides=options.set)
    if base.data.test.visibility != "public":
        parser.error("regret is of test accuracy: set data.test.visibility to public")
    middle, searched = default_value(base), searched_range(base)
    low, high = options.oracle_range or (middle / FACTOR, middle * FACTOR)
    grid = max(low, searched.low), min(high, searched.high)
    about = {"base": base.to_dict(), "grid": [*grid, options.oracle_points]}
    results = Results(options.out, about)
    jobs, reasons = jobs_of(base, options, grid)
    with contextlib.ExitStack() as stack:
        folder = options.root or stack.enter_context(tempfile.TemporaryDirectory(prefix="regret-"))
        reasons |= run_all(jobs, results, options.cpus, Path(folder))
    for epsilon in options.epsilon:
        print_table(results, epsilon, options.strategies or names, reasons)


if __name__ == "__main__":
    main()
