"""The command line: parses, calls the library, prints. Data on stdout, talk on stderr."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console

from dpsweep.errors import BadInputError, SpecError, SweepError
from dpsweep.output import Format, print_records

if TYPE_CHECKING:
    from dpsweep.preflight import Preflight
    from dpsweep.privacy.accountants import AccountantName

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Hyperparameter sweeps for differentially private training, with an honest ledger.",
)
account = typer.Typer(no_args_is_help=True, help="Privacy calculator; nothing is run.")
app.add_typer(account, name="account")

Spec = Annotated[str, typer.Argument(metavar="SPEC", help="Spec file (YAML), or - for stdin.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the spec; repeatable."),
]
Output = Annotated[Format, typer.Option("-f", "--format", help="How to print data.")]
Json = Annotated[bool, typer.Option("--json", help="Same as -f json.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the study.")]
Root = Annotated[
    Path | None,
    typer.Option("--root", help="Folder of studies; default: $DPSWEEP_STUDIES or studies/."),
]
Accountant = Annotated[str, typer.Option("--accountant", help="rdp | pld")]
Delta = Annotated[float, typer.Option("--delta")]


def say(text: str) -> None:
    """Write talk to stderr."""
    print(text, file=sys.stderr, flush=True)


def _load(spec: str, sets: list[str] | None) -> Preflight:
    """Read and check a spec whole: its own mistakes and those that its methods know."""
    from dpsweep.preflight import preflight, read_spec

    source = sys.stdin.read() if spec == "-" else Path(spec)
    return preflight(read_spec(source, overrides=sets or []))


@app.command()
def init(
    path: Annotated[Path | None, typer.Argument(help="File to write; default: stdout.")] = None,
    dataset: Annotated[str, typer.Option(help="digits | fashion_mnist | npz | image_folder")] = (
        "digits"
    ),
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema.")] = False,
) -> None:
    """Write a starter spec, every key explained."""
    import json

    from dpsweep.search_spaces import starter_spec
    from dpsweep.spec import SweepSpec

    if schema:
        text = json.dumps(SweepSpec.json_schema(), indent=2) + "\n"
    else:
        text = starter_spec(dataset)
    if path is None:
        print(text, end="")
        return
    if path.exists():
        raise BadInputError(f"{path} exists already", fix="choose another name, or remove it")
    path.write_text(text)
    say(f"wrote {path}; next: dpsweep plan {path}")


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


@app.command()
def describe(
    method: Annotated[str, typer.Argument(help="Name of a method; see `dpsweep methods`.")],
    output: Output = Format.TABLE,
    as_json: Json = False,
) -> None:
    """List the hyperparameters of a method: types, defaults, bounds, privacy effect."""
    from dpsweep.trainables import TRAINABLES

    rows = [
        {
            "name": p.name,
            "type": p.kind,
            "default": p.default,
            "allowed": ", ".join(p.choices) if p.choices else _bounds(p),
            "changes_privacy": p.changes_privacy,
            "about": p.doc,
        }
        for p in TRAINABLES[method].hyperparameters
    ]
    print_records(rows, Format.JSON if as_json else output)


def _bounds(parameter: Any) -> str:
    low = (
        "" if parameter.low is None else f"{'>' if parameter.open_low else '>='} {parameter.low:g}"
    )
    high = "" if parameter.high is None else f"<= {parameter.high:g}"
    return ", ".join(part for part in (low, high) if part)


@app.command()
def validate(spec: Spec, sets: Sets = None) -> None:
    """Check a spec completely; starts nothing, reads no record."""
    checked = _load(spec, sets)
    say(f"{spec}: valid; study {checked.spec.name!r}, {checked.num_trials} trials")


@app.command()
def plan(
    spec: Spec, sets: Sets = None, output: Output = Format.TABLE, as_json: Json = False
) -> None:
    """Show what a sweep will do and cost, before anything starts."""
    from dpsweep.preflight import summarize_plan

    summary = summarize_plan(_load(spec, sets)).to_dict()
    if not as_json and output is Format.TABLE:
        summary = {key: _rounded_up(key, value) for key, value in summary.items()}
    print_records(summary, Format.JSON if as_json else output)


def _rounded_up(key: str, value: Any) -> Any:
    """Show the epsilons of a plan as every epsilon is shown: rounded up."""
    from dpsweep.privacy.accountants import shown_epsilon

    if not key.startswith(("epsilon", "composed_epsilon")) or value is None:
        return value
    return [shown_epsilon(v) for v in value] if isinstance(value, list) else shown_epsilon(value)


@app.command()
def run(spec: Spec, sets: Sets = None, output: Output = Format.TABLE) -> None:
    """Run a sweep, or continue it: the same command resumes."""
    from dpsweep.progress import ProgressDisplay

    checked = _load(spec, sets)
    from dpsweep.sweep import run_sweep  # loads ray: only once the spec is known to be good

    with ProgressDisplay(checked.spec, checked.num_trials, Console(stderr=True)) as display:
        result = run_sweep(checked.spec, observer=display)
    if result.state == "interrupted":
        say(f"interrupted; to continue, run the same command again: dpsweep run {spec}")
        raise typer.Exit(130)
    _print_trials(result, output)
    if any(result.view.finished()):
        best = result.best()
        say(
            f"best: trial {best.trial_id}, {best.metric}={best.value:.4f}, "
            f"{best.statement.one_line()}"
        )
        root = checked.spec.storage.path
        say(f"  configuration: dpsweep best {result.name} --root {root} -f json")
        say(f"  browse:        dpsweep ui {result.name} --root {root}")


def _print_trials(result: Any, output: Format) -> None:
    rows = []
    for trial in result.trials:
        rows.append(
            {
                "trial": trial.trial_id,
                "state": result.state_of(trial),
                "method": trial.config.get("method"),
                trial.metric: trial.value,
                **_epsilon_cells(result, trial.epsilon, trial.statement.sampling, output),
                "steps": f"{trial.step}/{trial.num_steps}",
                **{key: trial.config[key] for key in result.varied if key in trial.config},
            }
        )
    print_records(rows, output, caption=result.caption())


def _epsilon_cells(result: Any, epsilon: float, sampling: str, output: Format) -> dict[str, Any]:
    """Return an epsilon for one row: a table has a caption, a record carries its terms itself."""
    from dpsweep.privacy.accountants import shown_epsilon

    if output is Format.TABLE:
        return {"epsilon": shown_epsilon(epsilon)}
    return {"epsilon": epsilon, "sampling": sampling, **result.epsilon_terms()}


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
    from dpsweep.results import load_sweep

    result = load_sweep(name, root=root)
    if trial is not None and trial not in result.view.trials:
        known = ", ".join(map(str, sorted(result.view.trials))) or "none"
        raise BadInputError(f"study {name!r} has no trial {trial}", fix=f"trials: {known}")
    rows = []
    for row in result.history(trial):
        if row["epsilon"] is not None:
            sampling = result.view.trials[row["trial"]].sampling
            row.update(_epsilon_cells(result, row["epsilon"], sampling, output))
        rows.append(row)
    print_records(rows, output, caption=result.caption())


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

    result = load_sweep(name, root=root)
    found = result.best(max_epsilon=max_epsilon)
    print_records(found.to_dict(), output)
    say(found.statement.one_line())


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
    if uri.startswith(("http://", "https://")):
        print(uri)
        return
    say(f"MLflow UI on http://{host}:{port} (Ctrl-C ends it)")
    command = ["mlflow", "ui", "--backend-store-uri", uri, "--host", host, "--port", str(port)]
    raise typer.Exit(subprocess.run([sys.executable, "-m", *command], check=False).returncode)


@app.command()
def doctor(output: Output = Format.TABLE) -> None:
    """Check this installation and machine; exit 1 if something is broken."""
    from dpsweep.doctor import diagnose

    rows = diagnose()
    print_records(rows, output)
    if any(row["status"] == "broken" for row in rows):
        raise typer.Exit(1)


@account.command("epsilon")
def account_epsilon(
    events: Annotated[str, typer.Option("--events", help="JSON list of segments, or - for stdin.")],
    delta: Delta,
    accountant: Accountant = "rdp",
    output: Output = Format.TABLE,
    as_json: Json = False,
) -> None:
    """Print the epsilon of a list of privacy events."""
    from dpsweep.account import account_epsilon as compute
    from dpsweep.output import read_json

    result = compute(read_json(events), delta=delta, accountant=cast("AccountantName", accountant))
    print_records(result, Format.JSON if as_json else output)


@account.command("steps")
def account_steps(
    sample_rate: Annotated[float, typer.Option("--sample-rate")],
    noise_multiplier: Annotated[float, typer.Option("--noise-multiplier")],
    epsilon: Annotated[float, typer.Option("--epsilon")],
    delta: Delta,
    accountant: Accountant = "rdp",
    output: Output = Format.TABLE,
    as_json: Json = False,
) -> None:
    """Print the last step that a budget allows."""
    from dpsweep.account import account_steps as compute

    result = compute(
        sample_rate=sample_rate,
        noise_multiplier=noise_multiplier,
        epsilon=epsilon,
        delta=delta,
        accountant=cast("AccountantName", accountant),
    )
    print_records(result, Format.JSON if as_json else output)


@account.command("noise")
def account_noise(
    sample_rate: Annotated[float, typer.Option("--sample-rate")],
    steps: Annotated[int, typer.Option("--steps")],
    epsilon: Annotated[float, typer.Option("--epsilon")],
    delta: Delta,
    shape: Annotated[
        str, typer.Option("--shape", help="constant | linear | cosine | exponential | step")
    ] = "constant",
    end_ratio: Annotated[float, typer.Option("--end-ratio", help="Last value / start.")] = 1.0,
    accountant: Accountant = "rdp",
    output: Output = Format.TABLE,
    as_json: Json = False,
) -> None:
    """Print the smallest start of a noise schedule that keeps a budget."""
    from dpsweep.account import account_noise as compute

    result = compute(
        sample_rate=sample_rate,
        steps=steps,
        epsilon=epsilon,
        delta=delta,
        shape=shape,
        end_ratio=end_ratio,
        accountant=cast("AccountantName", accountant),
    )
    print_records(result, Format.JSON if as_json else output)


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
