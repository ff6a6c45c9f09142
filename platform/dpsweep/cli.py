"""The command line: parses, calls the library, prints. Data on stdout, talk on stderr."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from dpsweep import __version__
from dpsweep.cli_account import account
from dpsweep.cli_base import Output, Root, Sets, Spec, load_checked, say
from dpsweep.cli_describe import describe
from dpsweep.cli_init import init
from dpsweep.cli_layers import layers
from dpsweep.cli_plan import plan, simulate
from dpsweep.cli_report import report
from dpsweep.errors import BadInputError, SpecError, SweepError
from dpsweep.output import Format, print_records

if TYPE_CHECKING:
    from dpsweep.results import SweepResult, TrialResult

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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


app.add_typer(account, name="account")
app.command()(init)
app.command()(plan)
app.command()(simulate)
app.command()(report)
app.command()(layers)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the study.")]


@app.command()
def methods(output: Output = Format.TABLE) -> None:
    """List the training methods."""
    from dpsweep.trainables import TRAINABLES

    rows = [
        {
            "method": name,
            "private": TRAINABLES[name].is_private,
            "hyperparameters": len(TRAINABLES[name].hyperparameters),
            "about": (TRAINABLES[name].__doc__ or "").strip().splitlines()[0],
        }
        for name in TRAINABLES
    ]
    print_records(rows, output)


app.command()(describe)


@app.command()
def validate(spec: Spec, sets: Sets = None) -> None:
    """Check a spec completely; starts nothing, reads no private record."""
    from dpsweep.entries import terms
    from dpsweep.pretrain import plan_pretraining

    checked = load_checked(spec, sets)
    checked.check_some_plan()
    checked.choose_filter()
    checked.check_dataset_budget(checked.choose_selection())
    is_random = checked.spec.privacy.accounting == "select"
    number = "a random number of" if is_random else f"at most {checked.num_trials}"
    say(f"{spec}: valid; study {checked.spec.name!r}, {number} trials")
    if checked.spec.pretrain is not None:
        say(f"  pretrain: {plan_pretraining(checked.spec)}")
    if checked.start is not None:
        say(f"  start, before the others: {checked.start} ({terms(checked.spec)})")


@app.command()
def run(spec: Spec, sets: Sets = None, output: Output = Format.TABLE) -> None:
    """Run a sweep, or continue it: the same command resumes."""
    from dpsweep.progress import ProgressDisplay

    checked = load_checked(spec, sets)
    from dpsweep.sweep import run_checked  # loads ray: only once the spec is known to be good

    with ProgressDisplay(checked.spec, checked.total_trials, Console(stderr=True)) as display:
        result = run_checked(checked, observer=display)
    if result.state == "interrupted":
        options = "".join(f" --set {shlex.quote(item)}" for item in sets or [])
        say(f"interrupted; to continue, run the same command again: dpsweep run {spec}{options}")
        raise typer.Exit(130)
    _print_trials(result, output)
    best = result.best()
    has_episodes = checked.spec.episodes is not None
    what = "best configuration, on its first episode" if has_episodes else "best"
    value = f"{best.metric}={best.value:.4f}"
    say(f"{what}: trial {best.trial_id}, {value}, {best.statement.one_line()}")
    root = checked.spec.storage.path
    if has_episodes:
        say(f"  mean and 95%:  dpsweep report {result.name} --root {root}")
    say(f"  configuration: dpsweep best {result.name} --root {root} -f json")
    if checked.spec.search.objectives:
        say(f"  front:         dpsweep pareto {result.name} --root {root}")
    say(f"  browse:        dpsweep ui {result.name} --root {root}")


def _print_trials(
    result: SweepResult, output: Format, trials: Sequence[TrialResult] | None = None
) -> None:
    rows = []
    is_public = result.spec.privacy.accounting == "public"
    for trial in result.trials if trials is None else trials:
        statement = trial.statement
        rows.append(
            {
                "trial": trial.trial_id,
                "state": result.state_of(trial),
                **({"records": result.view.trials[trial.trial_id].records} if is_public else {}),
                "method": trial.config.get("method"),
                trial.metric: trial.value,
                **_epsilon_cells(
                    result,
                    trial.epsilon,
                    statement.sampling,
                    statement.released,
                    output,
                ),
                "steps": f"{trial.step}/{trial.num_steps}",
                **{key: trial.config[key] for key in result.varied if key in trial.config},
            }
        )
    print_records(rows, output, caption=result.claims.caption())


def _epsilon_cells(
    result: SweepResult, epsilon: float, sampling: str, released: str, output: Format
) -> dict[str, Any]:
    """Return an epsilon for one row: a table has a caption, a record carries its terms itself."""
    from dpsweep.privacy.accountants import shown_epsilon

    if output is Format.TABLE:
        return {"epsilon": shown_epsilon(epsilon)}
    terms = result.claims.epsilon_terms()
    return {"epsilon": epsilon, "sampling": sampling, **terms, "released": released}


@app.command()
def status(name: Name, root: Root = None, output: Output = Format.TABLE) -> None:
    """Show a study's trials, running or not."""
    from dpsweep.results import load_sweep

    result = load_sweep(name, root=root)
    say(result.status_line())
    _print_trials(result, output)


@app.command()
def logs(
    name: Name,
    trial: Annotated[int | None, typer.Option(help="Only this trial.")] = None,
    root: Root = None,
    output: Output = Format.TABLE,
) -> None:
    """Show what happened in a study, in order."""
    from dpsweep.claims import SO_FAR
    from dpsweep.results import load_sweep

    result = load_sweep(name, root=root)
    if trial is not None and trial not in result.view.trials:
        known = ", ".join(map(str, sorted(result.view.trials))) or "none"
        raise BadInputError(f"study {name!r} has no trial {trial}", fix=f"trials: {known}")
    rows = []
    for row in result.history(trial):
        if row["epsilon"] is not None:
            sampling = result.view.trials[row["trial"]].sampling
            row.update(_epsilon_cells(result, row["epsilon"], sampling, SO_FAR, output))
        rows.append(row)
    print_records(rows, output, caption=result.claims.caption())


@app.command()
def best(
    name: Name,
    max_epsilon: Annotated[
        float | None, typer.Option("--max-epsilon", help="Largest epsilon of the trial.")
    ] = None,
    root: Root = None,
    output: Output = Format.TABLE,
) -> None:
    """Show the best configuration within a budget; exit 3 if there is none."""
    from dpsweep.results import load_sweep

    if max_epsilon is not None and not max_epsilon >= 0:
        raise BadInputError(f"--max-epsilon must be >= 0, got {max_epsilon:g}")
    result = load_sweep(name, root=root)
    found = result.best(max_epsilon=max_epsilon)
    print_records(found.to_dict(), output)
    say(found.statement.one_line())


@app.command()
def pareto(name: Name, root: Root = None, output: Output = Format.TABLE) -> None:
    """Show the trials that no other one beats in score at the same or less epsilon."""
    from dpsweep.results import load_sweep

    result = load_sweep(name, root=root)
    _print_trials(result, output, result.pareto())


@app.command()
def decisions(name: Name, root: Root = None, output: Output = Format.TABLE) -> None:
    """Show why the scheduler stopped, paused or continued each trial."""
    from dpsweep.claims import SO_FAR
    from dpsweep.results import load_sweep

    result = load_sweep(name, root=root)
    rows = []
    if not result.decisions():
        say(f"no trial was judged so far; the scheduler is {result.spec.scheduler.type}")
    for row in result.decisions():
        epsilon = math.inf if row["epsilon"] is None else row["epsilon"]
        sampling = result.view.trials[row["trial"]].sampling
        rows.append({**row, **_epsilon_cells(result, epsilon, sampling, SO_FAR, output)})
    print_records(rows, output, caption=result.claims.caption())


@app.command()
def ui(
    name: Annotated[str | None, typer.Argument(help="Name of a study.")] = None,
    root: Root = None,
    host: Annotated[str, typer.Option()] = "127.0.0.1",
    port: Annotated[int, typer.Option()] = 5000,
) -> None:
    """Open the MLflow UI on a study's tracking store, until Ctrl-C."""
    import subprocess

    from dpsweep.results import load_sweep
    from dpsweep.spec import TrackingSpec

    uri = load_sweep(name, root=root).spec.tracking.uri if name else TrackingSpec().uri
    if uri is None:
        raise BadInputError(f"study {name!r} has no tracking store", fix="set tracking.uri")
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        raise BadInputError(f"there is no database at {uri}", fix="name a study: dpsweep ui NAME")
    if uri.startswith(("http://", "https://")):
        print(uri)
        return
    say(f"MLflow UI on http://{host}:{port} (Ctrl-C ends it)")
    command = ["mlflow", "ui", "--backend-store-uri", uri, "--host", host, "--port", str(port)]
    raise typer.Exit(subprocess.run([sys.executable, "-m", *command], check=False).returncode)


@app.command()
def doctor(
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove frozen features that no study is using.")
    ] = False,
    root: Root = None,
    output: Output = Format.TABLE,
) -> None:
    """Check this installation and machine; exit 1 if something is broken."""
    from dpsweep.doctor import diagnose, feature_stores, whole_gib
    from dpsweep.results import default_root

    folder = root or default_root()
    if root is not None and not root.is_dir():
        raise BadInputError(f"no folder {root}", fix="give the folder that the studies are in")
    if clean:
        stores = feature_stores(folder)
        removed = [whole_gib(store.clean()) for store in stores]
        kept = [whole_gib(store.num_bytes()) for store in stores]
        rows = [
            {"features": str(store.root), "removed_gib": gone, "kept_gib": left}
            for store, gone, left in zip(stores, removed, kept)
        ]
        print_records(rows, output)
        if any(kept):
            say(f"at most {sum(kept)} GiB are in use and stay")
        return
    findings = diagnose(folder)
    print_records(findings, output)
    if any(finding["status"] == "broken" for finding in findings):
        raise typer.Exit(1)


def _lines(error: SweepError) -> list[str]:
    """Return one line per mistake of a spec; other errors keep their own lines."""
    return [str(m) for m in error.mistakes] if isinstance(error, SpecError) else [str(error)]


def main() -> None:
    """Run the command line; errors are one readable paragraph and an exit code."""
    try:
        app()
    except SweepError as error:
        say("\n".join(f"error: {line}" for line in _lines(error)))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        say("interrupted; nothing is lost: run the same command again to continue")
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
