"""The verbs ``run`` and ``validate``: a sweep from its spec, and a spec alone."""

from __future__ import annotations

import contextlib
import shlex
import sys
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from dpsweep.cli.base import Explain, Json, Output, Sets, Spec, load_checked, say, stage
from dpsweep.cli.output import Format
from dpsweep.cli.progress import ProgressDisplay
from dpsweep.cli.trials import in_short, print_trials
from dpsweep.cluster.early import refuse_early
from dpsweep.foundation.errors import RayLostError, StudyError, described
from dpsweep.foundation.process.garbage import loading
from dpsweep.foundation.process.interrupts import answering
from dpsweep.foundation.words import counted
from dpsweep.planning.costs.composition import choose_composition
from dpsweep.planning.costs.selection import choose_selection
from dpsweep.planning.places import make_places
from dpsweep.planning.pretrain import plan_pretraining
from dpsweep.results.advice import advice
from dpsweep.running.termination import EXIT_CODE, sigterm_as_interrupt
from dpsweep.spec.facts import terms
from dpsweep.study.journal import on_test_records
from dpsweep.study.launched import refuse_launch, refuse_other_spec

if TYPE_CHECKING:
    from dpsweep.planning.preflight import Preflight


def validate(spec: Spec, sets: Sets = None) -> None:
    """Check a spec completely; starts nothing.

    No private record is read but a labels.csv, and of texts the validation and test files of their
    own.
    """
    _say_checking(spec)
    checked = load_checked(spec, sets)
    refuse_other_spec(checked.spec)
    refuse_early(checked.spec.cluster, checked.spec.resources)
    checked.check_some_plan()
    choose_composition(checked)
    checked.check_dataset_budget(choose_selection(checked))
    file = "stdin" if spec == "-" else spec
    say(f"{file}: valid; study {checked.spec.name!r}, {_num_trials(checked)}")
    if checked.spec.pretrain is not None:
        say(f"  pretrain: {plan_pretraining(checked.spec)}")
    if checked.start is not None:
        say(f"  start, before the others: {checked.start} ({terms(checked.spec)})")


def _say_checking(spec: str) -> None:
    """Say that a spec is read, where somebody waits for a line; elsewhere mistakes stand alone."""
    if sys.stderr.isatty():
        say(stage(f"checking {'stdin' if spec == '-' else spec}"))


def _num_trials(checked: Preflight) -> str:
    """Say how many trials a spec may run."""
    if checked.spec.privacy.mode.is_sealed:
        return "a random number of trials"
    return f"at most {counted(checked.num_trials, 'trial')}"


def run(
    spec: Spec,
    sets: Sets = None,
    output: Output = Format.TABLE,
    as_json: Json = False,
    explain: Explain = False,
) -> None:
    """Run a sweep, or continue it: the same command resumes."""
    _say_checking(spec)
    options = "".join(f" --set {shlex.quote(item)}" for item in sets or [])
    launch(load_checked(spec, sets), f"dpsweep run {spec}{options}", output, explain=explain)


def launch(
    checked: Preflight, command: str, output: Format = Format.TABLE, *, explain: bool = False
) -> None:
    """Run a checked sweep, show its progress and its end; Ctrl-C says how to continue.

    Args:
        checked: The spec.
        command: The command line that continues it.
        output: Form of the table of trials.
        explain: Say at length what its epsilons cover.
    """
    make_places(checked.spec)  # before Ray is loaded, which takes longer than asking a server
    refuse_launch(checked.spec)
    checked.check_some_plan()
    say(stage(f"spec ok: study {checked.spec.name!r}, {_num_trials(checked)}; loading Ray"))
    again = f"to continue, run the same command again: {command}"
    with (
        sigterm_as_interrupt(again) as termination,
        answering("interrupted; what has been started ends first; Ctrl-C again: at once"),
        contextlib.ExitStack() as stack,
        ProgressDisplay(checked.spec, checked.total_trials, Console(stderr=True)) as display,
    ):
        try:
            # These load Ray: only once the spec is known to be good, and Ray's processes start
            # meanwhile.
            with loading():
                from dpsweep.running.nodes.cluster import LaunchCluster

                cluster = stack.enter_context(contextlib.closing(LaunchCluster(checked)))
                cluster.refuse_early()
                cluster.begin()
                from dpsweep.sweep import run_checked

            result = run_checked(
                checked, observer=display, termination=termination, cluster=cluster
            )
            is_interrupted = result.state == "interrupted"
        except (KeyboardInterrupt, RayLostError):
            if not termination.is_asked:
                raise
            is_interrupted = True  # Ray's processes have had the signal too
        except SystemExit as error:  # a library's, which would end the command without a word
            raise StudyError(
                "a library has ended this command", because=described(error), fix=again
            ) from error
    if is_interrupted:
        say(f"{'terminated' if termination.is_asked else 'interrupted'}; {again}")
        raise typer.Exit(EXIT_CODE if termination.is_asked else 130)
    print_trials(result, output, explain=explain)
    for line in advice(result):
        say(line)
    best = result.best()
    has_episodes = checked.spec.episodes is not None
    title = "best configuration, on its first episode" if has_episodes else "best"
    scores = ", ".join(
        f"{name}={best.metrics[name]:.4f}"
        for name in (best.metric, on_test_records(best.metric))
        if name in best.metrics
    )
    say(f"{title}: trial {best.trial_id}, {scores}, {in_short(result, best)}")
    root = checked.spec.storage.path
    if has_episodes:
        say(f"  mean and 95%:  dpsweep report {result.name} --root {root}")
    say(f"  configuration: dpsweep best {result.name} --root {root} -f json")
    say(f"  as a spec:     dpsweep best {result.name} --root {root} --as-spec > best.yaml")
    if checked.spec.search.objectives:
        say(f"  front:         dpsweep pareto {result.name} --root {root}")
    say(f"  browse:        dpsweep ui {result.name} --root {root}")
