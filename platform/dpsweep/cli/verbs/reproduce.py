"""The verb ``reproduce``: a trial of a study once more, at its own cost."""

from __future__ import annotations

from typing import Annotated

import typer

from dpsweep.cli.base import Name, Root, say
from dpsweep.cli.best_spec import cost_text, spec_of_trial, spec_text
from dpsweep.cli.verbs.run import launch
from dpsweep.foundation.file_paths import FilePath
from dpsweep.planning.costs.dataset import dataset_left_of, left_or_why
from dpsweep.planning.preflight import preflight
from dpsweep.results.study import load_sweep
from dpsweep.spec.study import SweepSpec
from dpsweep.study.launched import refuse_other_spec
from dpsweep.trainables.networks.own_models import refuse_changed


def reproduce(
    name: Name,
    trial: Annotated[int, typer.Argument(help="Number of the trial.")],
    seeds: Annotated[
        int, typer.Option(min=1, help="Run it so often, with new noise and batches each time.")
    ] = 1,
    new_name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the new study; default: NAME-trial-NUMBER."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the spec, and start nothing.")
    ] = False,
    root: Root = None,
) -> None:
    """Run a trial's configuration once more, or several times; this spends privacy again."""
    result = load_sweep(name, root=root)
    result.refuse_unknown(trial)
    task = result.files.task(trial)
    refuse_changed(task.hparams, task.code)
    suffix = f"-trial-{trial}" + (f"-x{seeds}" if seeds > 1 else "")
    spec = spec_of_trial(result, trial, runs=seeds, suffix=suffix)
    if new_name is not None:
        spec = SweepSpec(**{**spec.to_dict(), "name": new_name})
    checked = preflight(spec)
    refuse_other_spec(spec)
    command = _command(name, trial, seeds, new_name, root)
    if dry_run:
        words = command.removeprefix("dpsweep ")
        print(spec_text(result, result.trial(trial), spec, command=words), end="")
        if left := left_or_why(lambda: dataset_left_of(checked)):
            say(str(left))
        say("nothing is started, and nothing is spent")
        return
    say(cost_text(result, spec, task))
    launch(checked, command)


def _command(name: str, trial: int, seeds: int, new_name: str | None, root: FilePath | None) -> str:
    """Return the command line that does the same."""
    options = {"--seeds": seeds if seeds > 1 else None, "--name": new_name, "--root": root}
    options_set = [f"{option} {value}" for option, value in options.items() if value is not None]
    return " ".join(["dpsweep reproduce", name, str(trial), *options_set])
