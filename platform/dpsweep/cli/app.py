"""The command line: parses, calls the library, prints. Data on stdout, talk on stderr."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console

from dpsweep.cli.base import Explain, Output, Root, Sets, Spec, load_checked, say, stage
from dpsweep.cli.completion import study_names
from dpsweep.cli.output import Format, print_records
from dpsweep.cli.verbs.account import account
from dpsweep.cli.verbs.describe import describe
from dpsweep.cli.verbs.init import init
from dpsweep.cli.verbs.layers import layers
from dpsweep.cli.verbs.machine import doctor, ui
from dpsweep.cli.verbs.plan import plan
from dpsweep.cli.verbs.report import report
from dpsweep.cli.verbs.simulate import simulate
from dpsweep.cluster.private_directory import remove_left_behind
from dpsweep.foundation.errors import (
    OF_STORAGE,
    BadInputError,
    NothingWithinBudgetError,
    RayLostError,
    SpecError,
    SweepError,
)
from dpsweep.foundation.version import __version__
from dpsweep.foundation.words import counted
from dpsweep.running.termination import EXIT_CODE, sigterm_as_interrupt
from dpsweep.study.journal import on_test_records

if TYPE_CHECKING:
    from dpsweep.planning.preflight import Preflight
    from dpsweep.results.study import SweepResult, TrialResult

UsageError: Any = typer.BadParameter.__bases__[0]  # of the click that this typer has

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


_SCORES_ARE_OF = "Scores are of the model at `step`, which a trial delivers; `steps`: run, planned."


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"dpsweep {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Hyperparameter sweeps for differentially private training, with an honest ledger."""
    remove_left_behind()


app.add_typer(account, name="account")
app.command()(init)
app.command()(plan)
app.command()(simulate)
app.command()(report)
app.command()(layers)
app.command()(ui)
app.command()(doctor)

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the study.", autocompletion=study_names),
]


@app.command()
def methods(output: Output = Format.TABLE) -> None:
    """List the training methods."""
    from dpsweep.trainables import TRAINABLES

    rows = [
        {
            "method": name,
            "private": method.is_private,
            "hyperparameters": len(method.hyperparameters),
            "about": (method.__doc__ or "no description").strip().splitlines()[0],
        }
        for name, method in TRAINABLES.loadable().items()
    ]
    print_records(rows, output)


app.command()(describe)


@app.command()
def validate(spec: Spec, sets: Sets = None) -> None:
    """Check a spec completely; starts nothing, reads no private record."""
    from dpsweep.planning.pretrain import plan_pretraining
    from dpsweep.spec.facts import terms

    checked = load_checked(spec, sets)
    checked.check_some_plan()
    checked.choose_filter()
    checked.check_dataset_budget(checked.choose_selection())
    file = "stdin" if spec == "-" else spec
    say(f"{file}: valid; study {checked.spec.name!r}, {_num_trials(checked)}")
    if checked.spec.pretrain is not None:
        say(f"  pretrain: {plan_pretraining(checked.spec)}")
    if checked.start is not None:
        say(f"  start, before the others: {checked.start} ({terms(checked.spec)})")


def _num_trials(checked: Preflight) -> str:
    """Say how many trials a spec may run."""
    if checked.spec.privacy.mode.is_sealed:
        return "a random number of trials"
    return f"at most {counted(checked.num_trials, 'trial')}"


@app.command()
def run(
    spec: Spec, sets: Sets = None, output: Output = Format.TABLE, explain: Explain = False
) -> None:
    """Run a sweep, or continue it: the same command resumes."""
    if sys.stderr.isatty():  # elsewhere nobody waits for a line, and mistakes stand alone
        say(stage(f"checking {'stdin' if spec == '-' else spec}"))
    from dpsweep.cli.progress import ProgressDisplay
    from dpsweep.results.advice import advice

    checked = load_checked(spec, sets)
    say(stage(f"spec ok: study {checked.spec.name!r}, {_num_trials(checked)}; loading Ray"))
    from dpsweep.sweep import run_checked  # loads ray: only once the spec is known to be good

    options = "".join(f" --set {shlex.quote(item)}" for item in sets or [])
    again = f"to continue, run the same command again: dpsweep run {spec}{options}"
    with (
        sigterm_as_interrupt(again) as termination,
        ProgressDisplay(checked.spec, checked.total_trials, Console(stderr=True)) as display,
    ):
        try:
            result = run_checked(checked, observer=display, termination=termination)
            is_interrupted = result.state == "interrupted"
        except (KeyboardInterrupt, RayLostError):
            if not termination.is_asked:
                raise
            is_interrupted = True  # Ray's processes have had the signal too
    if is_interrupted:
        say(f"{'terminated' if termination.is_asked else 'interrupted'}; {again}")
        raise typer.Exit(EXIT_CODE if termination.is_asked else 130)
    _print_trials(result, output, explain=explain)
    for line in advice(result):
        say(line)
    best = result.best()
    has_episodes = checked.spec.episodes is not None
    what = "best configuration, on its first episode" if has_episodes else "best"
    scores = ", ".join(
        f"{name}={best.metrics[name]:.4f}"
        for name in (best.metric, on_test_records(best.metric))
        if name in best.metrics
    )
    say(f"{what}: trial {best.trial_id}, {scores}, {_in_short(best)}")
    root = checked.spec.storage.path
    if has_episodes:
        say(f"  mean and 95%:  dpsweep report {result.name} --root {root}")
    say(f"  configuration: dpsweep best {result.name} --root {root} -f json")
    say(f"  as a spec:     dpsweep best {result.name} --root {root} --as-spec > best.yaml")
    if checked.spec.search.objectives:
        say(f"  front:         dpsweep pareto {result.name} --root {root}")
    say(f"  browse:        dpsweep ui {result.name} --root {root}")


def _in_short(trial: TrialResult) -> str:
    """Return a trial's epsilon with its terms and the first words of what it covers."""
    from dpsweep.privacy.statement import shown_epsilon

    statement = trial.statement
    covers = statement.released.partition(":")[0].partition(";")[0].partition(",")[0]
    return f"epsilon={shown_epsilon(statement.epsilon)} ({covers}; {statement.line()})"


def _print_trials(
    result: SweepResult,
    output: Format,
    trials: Sequence[TrialResult] | None = None,
    *,
    explain: bool = False,
) -> None:
    rows = []
    is_public = result.spec.privacy.mode.is_public_search
    best = _best_id(result) if output is Format.TABLE else None
    test = on_test_records(result.spec.search.metric)
    is_tested = result.spec.data.test.visibility == "public"
    for trial in result.trials if trials is None else trials:
        statement = trial.statement
        rows.append(
            {
                **({"": "*" if trial.trial_id == best else ""} if best is not None else {}),
                "trial": trial.trial_id,
                "state": result.state_of(trial),
                **({"records": result.view.trials[trial.trial_id].records} if is_public else {}),
                "method": trial.config.get("method"),
                trial.metric: trial.value,
                **({test: trial.metrics.get(test)} if is_tested else {}),
                **_epsilon_cells(
                    result,
                    trial.epsilon,
                    statement.sampling,
                    statement.released,
                    output,
                ),
                "step": trial.step,
                "steps": f"{trial.steps_run}/{trial.num_steps}",
                **{key: trial.config[key] for key in result.varied if key in trial.config},
            }
        )
    shown = {row["trial"] for row in rows}
    caption = f"{_caption(result, explain, shown)}\n{_SCORES_ARE_OF}"
    if best is not None:
        caption = f"* the best. {caption}"
    print_records(rows, output, caption=caption, collapsible={"method", *result.varied})
    for line in result.score_notes():
        say(line)


def _best_id(result: SweepResult) -> int | None:
    """Return the number of the best trial, or None while there is none."""
    try:
        return result.best().trial_id
    except NothingWithinBudgetError:
        return None


def _caption(
    result: SweepResult,
    explain: bool,
    shown: Collection[int] | None = None,
    *,
    is_so_far: bool = False,
) -> str:
    told = result.claims.caption if explain else result.claims.brief
    return told(shown, is_so_far=is_so_far)


def _epsilon_cells(
    result: SweepResult, epsilon: float, sampling: str, released: str, output: Format
) -> dict[str, Any]:
    """Return an epsilon for one row: a table has a caption, a record carries its terms itself."""
    from dpsweep.privacy.statement import shown_epsilon

    if output is Format.TABLE:
        return {"epsilon": shown_epsilon(epsilon)}
    terms = result.claims.epsilon_terms()
    return {"epsilon": epsilon, "sampling": sampling, **terms, "released": released}


@app.command()
def status(
    name: Name,
    sort: Annotated[
        Literal["trial", "score", "epsilon"],
        typer.Option("--sort", help="Order of the rows: by number, best first, cheapest first."),
    ] = "trial",
    root: Root = None,
    output: Output = Format.TABLE,
    explain: Explain = False,
) -> None:
    """Show a study's trials, running or not."""
    from dpsweep.results.advice import advice
    from dpsweep.results.study import load_sweep

    result = load_sweep(name, root=root)
    say(result.status_line())
    trials = result.trials
    if sort == "epsilon":
        trials.sort(key=lambda trial: (trial.epsilon, trial.trial_id))
    elif sort == "score":
        sign = -1.0 if result.is_maximized else 1.0
        scored = [trial for trial in trials if trial.value is not None]
        unscored = [trial for trial in trials if trial.value is None]
        trials = sorted(scored, key=lambda trial: sign * (trial.value or 0.0)) + unscored
    _print_trials(result, output, trials, explain=explain)
    for line in advice(result):
        say(line)


@app.command()
def logs(
    name: Name,
    trial: Annotated[int | None, typer.Option(help="Only this trial.")] = None,
    root: Root = None,
    output: Output = Format.TABLE,
    explain: Explain = False,
) -> None:
    """Show what happened in a study, in order."""
    from dpsweep.results.claims import SO_FAR
    from dpsweep.results.study import load_sweep

    result = load_sweep(name, root=root)
    if trial is not None and trial not in result.view.trials:
        known = ", ".join(map(str, sorted(result.view.trials))) or "none"
        raise BadInputError(f"study {name!r} has no trial {trial}", fix=f"trials: {known}")
    rows = []
    history = result.history(trial)
    same_day = len({row["time"][:10] for row in history}) == 1
    for row in history:
        if row["epsilon"] is not None:
            sampling = result.view.trials[row["trial"]].sampling
            row.update(_epsilon_cells(result, row["epsilon"], sampling, SO_FAR, output))
        if output is Format.TABLE:
            moment = row["time"][:23].replace("T", " ")
            row = {"time (UTC)": moment[11:] if same_day else moment, **row}
            del row["time"]
        rows.append(row)
    print_records(rows, output, caption=_caption(result, explain, is_so_far=True))


@app.command()
def best(
    name: Name,
    max_epsilon: Annotated[
        float | None,
        typer.Option("--max-epsilon", help="Largest epsilon of the trial, not of the study."),
    ] = None,
    as_spec: Annotated[
        bool,
        typer.Option("--as-spec", help="Print a spec that runs this configuration once more."),
    ] = False,
    root: Root = None,
    output: Output = Format.TABLE,
    explain: Explain = False,
) -> None:
    """Show the best configuration within a budget; exit 3 if there is none."""
    from dpsweep.results.study import load_sweep

    if max_epsilon is not None and not max_epsilon >= 0:
        raise BadInputError(f"--max-epsilon must be >= 0, got {max_epsilon:g}")
    if as_spec and output not in (Format.TABLE, Format.YAML):
        raise BadInputError(f"--as-spec prints YAML, not {output.value}", fix="leave -f out")
    result = load_sweep(name, root=root)
    found = result.best(max_epsilon=max_epsilon)
    if as_spec:
        from dpsweep.cli.best_spec import spec_text

        print(spec_text(result, found), end="")
        return
    damage = result.model_damage(found)
    if damage:
        say(f"note: {damage}; its score and its configuration are in the journal")
    if result.view.trials[found.trial_id].is_tested_elsewhere:
        say("\n".join(result.score_notes()))
    if output is not Format.TABLE:
        print_records(found.to_dict(), output)
        say(_in_short(found))
        return
    print_records(_best_cells(result, found), output)
    names = sorted(found.config, key=lambda key: key not in result.varied)
    print("\nconfiguration, what was searched first:")
    caption = _caption(result, explain, {found.trial_id})
    print_records({key: found.config[key] for key in names}, output, caption=caption)


def _best_cells(result: SweepResult, found: TrialResult) -> dict[str, Any]:
    """Return what people ask of the best trial first: scores, epsilons, where its model is."""
    cells: dict[str, Any] = {
        "trial": found.trial_id,
        found.metric: f"{found.value:.4f} at step {found.step} of {found.num_steps}",
    }
    for metric, value in found.metrics.items():
        if metric.startswith("test/"):
            cells[metric] = f"{value:.4f} of the same model"
    cells["epsilon"] = found.epsilon
    if found.study_statement is not None:
        cells["epsilon of the study"] = found.study_statement.epsilon
    return {**cells, "model": found.model_uri, "run": found.run_id}


@app.command()
def pareto(
    name: Name, root: Root = None, output: Output = Format.TABLE, explain: Explain = False
) -> None:
    """Show the trials that no other one beats in score at the same or less epsilon."""
    from dpsweep.results.study import load_sweep

    result = load_sweep(name, root=root)
    _print_trials(result, output, result.pareto(), explain=explain)


@app.command()
def decisions(
    name: Name, root: Root = None, output: Output = Format.TABLE, explain: Explain = False
) -> None:
    """Show why the scheduler stopped, paused or continued each trial."""
    from dpsweep.results.claims import SO_FAR
    from dpsweep.results.study import load_sweep

    result = load_sweep(name, root=root)
    rows = []
    if not result.decisions():
        say(f"no trial was judged so far; the scheduler is {result.spec.scheduler.type}")
    for row in result.decisions():
        epsilon = math.inf if row["epsilon"] is None else row["epsilon"]
        sampling = result.view.trials[row["trial"]].sampling
        cells = _epsilon_cells(result, epsilon, sampling, SO_FAR, output)
        rows.append({**row, **cells})
        if output is Format.TABLE and not explain:
            del rows[-1]["reason"]  # the columns before it, in words
    print_records(rows, output, caption=_caption(result, explain, is_so_far=True))


def _lines(error: SweepError) -> list[str]:
    """Return one line per mistake of a spec; other errors keep their own lines."""
    return [str(m) for m in error.mistakes] if isinstance(error, SpecError) else [str(error)]


_IN_OUR_WORDS = {
    r"Input should be a valid number.*": "must be a number",
    r"Input should be a valid integer.*": "must be a whole number",
    r"Value error, ": "",
}


def _refuse_usage(error: Any) -> NoReturn:
    """Say what is wrong with the words of a command, as with a spec; without any, show help."""
    command = error.ctx.command_path if error.ctx is not None else "dpsweep"
    message = error.format_message()
    if "\n" in message:
        error.show()
    else:
        for pattern, ours in _IN_OUR_WORDS.items():
            message = re.sub(pattern, ours, message)
        say(f"error: {message}\n  fix: {command} --help")
    sys.exit(error.exit_code)


def main() -> None:
    """Run the command line; errors are one readable paragraph and an exit code."""
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except UsageError as error:
        _refuse_usage(error)
    except SweepError as error:
        say("\n".join(f"error: {line}" for line in _lines(error)))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        say("interrupted; nothing is lost: run the same command again to continue")
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:
        if error.errno not in OF_STORAGE:
            raise
        say(f"error: cannot write {error.filename or 'a file'}: {error.strerror}")
        say("  fix: make room, and run the same command again; what was charged before is safe")
        sys.exit(1)
