"""The verb ``simulate``: schedulers under a made-up clock, and what they would cost."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsweep.cli.base import Json, Output, Sets, Spec, load_checked, say
from dpsweep.cli.output import Format, print_records
from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.registry import did_you_mean
from dpsweep.foundation.words import counted, exact
from dpsweep.planning.costs.dataset import (
    DatasetLeft,
    dataset_left_of,
    ledger_columns,
    left_or_why,
)
from dpsweep.planning.simulation.curves import SyntheticCurves, TableCurves, read_curves
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import shown_delta
from dpsweep.results.coverage import caveats_of, noise_of_scores
from dpsweep.results.study import load_sweep
from dpsweep.schedulers import POLICIES
from dpsweep.spec.facts import without_exact

if TYPE_CHECKING:
    from dpsweep.planning.preflight import Preflight
    from dpsweep.planning.simulation.policy_run import PolicyRun

DEFAULT_POLICIES = "fifo,median,epsilon_halving"
_OF_THE_REST = ", all that is declared once its final run (bounded by {}) has run"
LINE_EVERY_S = 5.0  # of progress, where stderr is no terminal


@dataclass(frozen=True)
class _Scores:
    """Where the scores of a simulation come from.

    Attributes:
        curves: The file, or ``study:NAME``; None: they are made up.
        about: Whose they are, and that no epsilon of the simulation covers them.
        notes: Further sentences on them.
    """

    curves: str | None = None
    about: str = "made up"
    notes: tuple[str, ...] = ()


_MADE_UP = _Scores()


def simulate(
    spec: Spec,
    sets: Sets = None,
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Most trials; default: the spec's.")
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(
            help=f"Schedulers to compare; default: {DEFAULT_POLICIES}; or noisy_prefix or fifo "
            "alone, where the spec has it or allows no other."
        ),
    ] = None,
    curves: Annotated[
        str | None,
        typer.Option(help="JSON lines of recorded curves, or study:NAME; default: made up."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 1, help="Default: the spec's.")
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Trials at once.")] = 8,
    output: Output = Format.TABLE,
    as_json: Json = False,
) -> None:
    """Compare schedulers under a simulated clock: the spec's search and budgets, no training."""
    from dpsweep.planning.simulation.simulate import simulate as run

    checked = load_checked(spec, sets)
    scores = _scores(curves, checked)
    if seed is not None:
        reseeded = checked.spec.model_copy(update={"seed": seed})
        checked = dataclasses.replace(checked, spec=reseeded)
    names = _policies(policies, checked)
    progress = _Progress(names)
    outcomes = run(
        checked,
        _curves(curves, checked),
        policies=names,
        num_trials=trials,
        slots=slots,
        progress=progress,
    )
    progress.close()
    for outcome in outcomes:
        say(f"{outcome.policy}: {counted(outcome.started, 'trial')} in {outcome.seconds:.1f} s")
    left = left_or_why(lambda: dataset_left_of(checked))
    rows = [_simulated_row(outcome, checked, output, scores, left) for outcome in outcomes]
    caption = _simulated_caption(checked, outcomes, scores)
    print_records(rows, output, caption=f"{caption}\n{left}" if left else caption)


def _policies(given: str | None, checked: Preflight) -> list[str]:
    """Return the schedulers to compare, each once, in the order given."""
    if given is None:
        spec = checked.spec
        if spec.scheduler.type == "noisy_prefix":
            return [spec.scheduler.type]
        only_fifo = spec.privacy.mode.is_sealed or spec.privacy.accountant == "pld"
        only_fifo = only_fifo or spec.episodes is not None or spec.final_trial is not None
        return ["fifo"] if only_fifo else DEFAULT_POLICIES.split(",")
    names = list(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    for name in names:
        if name not in POLICIES:
            hint = did_you_mean(name, list(POLICIES))
            raise BadInputError(
                f"no scheduler {name!r}", fix=hint or f"known: {', '.join(POLICIES)}"
            )
    return names


def _curves(source: str | None, checked: Preflight) -> Any:
    spec = checked.spec
    noise = spec.data.validation.noise_std or 0.0
    if source is None:
        maximize = spec.search.mode == "max"
        return SyntheticCurves(
            checked.space.parameters, seed=spec.seed, maximize=maximize, noise=noise
        )
    parameters, root = checked.space.parameters, spec.storage.root
    rows = read_curves(source, metric=spec.search.metric, root=root, parameters=parameters)
    return TableCurves(rows, parameters, seed=spec.seed, noise=noise)


def _scores(source: str | None, checked: Preflight) -> _Scores:
    """Say where scores come from; of a study also what no epsilon of its own covers."""
    if source is None:
        return _MADE_UP
    if not source.startswith("study:"):
        return _Scores(source, f"recorded ones of {source}, which no epsilon here covers")
    name = source.removeprefix("study:")
    study = load_sweep(name, root=checked.spec.storage.root)
    terms = [
        f"accounting={study.claims.accounting}",
        f"{study.spec.data.validation.visibility} validation scores",
        *caveats_of(study.spec),
    ]
    about = f"recorded ones of study {name!r} ({'; '.join(terms)}), which no epsilon here covers"
    return _Scores(source, about, tuple(noise_of_scores(study.spec)))


def _simulated_row(
    outcome: PolicyRun,
    checked: Preflight,
    output: Format,
    scores: _Scores = _MADE_UP,
    left: DatasetLeft | str | None = None,
) -> dict[str, Any]:
    spec, epsilon = checked.spec, outcome.composed_epsilon
    counts = {
        key: getattr(outcome, key)
        for key in ("policy", "started", "finished", "stopped", "infeasible", "steps")
    }
    if output is Format.TABLE:
        return {
            **counts,
            "epsilon": shown_epsilon(epsilon),
            "simulated s": outcome.hours * 3600,
            "best": outcome.best,
            "full length": outcome.full_score,
            "regret": outcome.regret,
            "ended because": outcome.end_reason,
        }
    return {
        **counts,
        "composed_epsilon": epsilon,
        "composed_epsilon_is": _meaning(checked),
        "study_epsilon": spec.privacy.study_epsilon,
        **spec.privacy_terms(outcome.sampling, accountant=outcome.accountant).columns(),
        "simulated_hours": outcome.hours,
        "metric": spec.search.metric,
        "objectives": list(spec.search.compared_by),
        "curves": scores.curves,
        "scores_are": scores.about,
        "best": outcome.best,
        "full_length": outcome.full_score,
        "best_full_length_drawn": outcome.best_full,
        "regret": outcome.regret,
        "ended_because": outcome.end_reason,
        "seed": spec.seed,
        **ledger_columns(left),
    }


def _meaning(checked: Preflight) -> str:
    privacy = checked.spec.privacy
    if privacy.mode.is_public_search:
        return (
            "that of the final run, after a search on public records, which costs nothing: at most "
            f"trial_epsilon={exact(privacy.trial_epsilon)}"
        )
    if privacy.mode.is_filtered:
        final = "" if checked.rest is None else _OF_THE_REST.format(privacy.accountant)
        return (
            f"what the study has committed{final}, for information: the study's guarantee is "
            f"study_epsilon={exact(privacy.study_epsilon)}"
        )
    but = without_exact(checked.spec.data.validation.visibility)
    return f"everything that was run, composed{but}: an indication, no guarantee"


def _simulated_caption(
    checked: Preflight, outcomes: Sequence[PolicyRun], scores: _Scores = _MADE_UP
) -> str:
    spec = checked.spec
    samplings = ", ".join(sorted({outcome.sampling for outcome in outcomes}))
    accountants = ", ".join(sorted({outcome.accountant for outcome in outcomes}))
    if scores.curves is None:
        opening, at_end = "no figure but the costs is about real training", "without noise"
    else:
        opening, at_end = f"no training. Scores are {scores.about}", "as recorded"
    notes = "".join(f"{note} " for note in scores.notes)
    if spec.search.max_time is not None:
        notes += "search.max_time is held against simulated seconds. "
    also = " and ".join(spec.search.objectives)
    metric = f"{spec.search.metric} (objectives: {also})" if also else spec.search.metric
    of, who = ("", "the best finished trial")
    if spec.has_final_run:
        of, who = (", the final run too", "the final run")
    return (
        f"Simulated, seed {spec.seed}: {opening}. {notes}steps: of all trials, stopped ones "
        f"included{of}. epsilon: {_meaning(checked)}; delta {shown_delta(spec.privacy.delta)}, "
        f"unit {spec.privacy_unit}, {spec.privacy.neighboring_relation}, {samplings} sampling, "
        f"{accountants}, accounting {spec.privacy.accounting}. best: {metric} as {who} reported "
        f"it; full length: its score at the end {at_end}; regret: its distance from the best "
        "configuration that any of these policies drew."
    )


class _Progress:
    """One line on stderr that says how far a long simulation is."""

    def __init__(self, policies: list[str]) -> None:
        self._policies, self._started = policies, time.monotonic()
        self._is_terminal = sys.stderr.isatty()
        self._shown = False
        self._said = self._started

    def __call__(self, policy: str, ended: int, share: float) -> None:
        """Show the share of all policies that is done, and when the rest will be."""
        if not self._is_terminal and time.monotonic() - self._said < LINE_EVERY_S:
            return
        self._said = time.monotonic()
        index = self._policies.index(policy)
        done = (index + min(share, 1.0)) / len(self._policies)
        spent = time.monotonic() - self._started
        left = f"{int(spent * (1 - done) / done)} s" if done > 0.01 else "..."
        text = f"{policy}: {counted(ended, 'trial')} ended | {done:.0%} | ETA {left}"
        self._shown = True
        if self._is_terminal:
            print(f"\r{text:<70}", end="", file=sys.stderr, flush=True)
        else:
            say(text)

    def close(self) -> None:
        """End the line."""
        if self._shown and self._is_terminal:
            say("")
