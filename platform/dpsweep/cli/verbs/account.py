"""The verbs of the privacy calculator: ``dpsweep account ...``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from dpsweep.cli.base import Json, Output
from dpsweep.cli.output import Format, print_records, read_json
from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy import calculator

if TYPE_CHECKING:
    from dpsweep.privacy.terms import AccountantName

account = typer.Typer(no_args_is_help=True, help="Privacy calculator; nothing is run.")

Accountant = Annotated[str, typer.Option("--accountant", help="rdp | pld")]
Delta = Annotated[float, typer.Option("--delta")]


@account.command("epsilon")
def account_epsilon(
    delta: Delta,
    events: Annotated[
        str | None, typer.Option("--events", help="JSON list of segments, or - for stdin.")
    ] = None,
    sample_rate: Annotated[
        float | None, typer.Option("--sample-rate", help="Of Poisson batches, for one segment.")
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option("--noise-multiplier", help="Of that segment.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Of that segment.")] = None,
    accountant: Accountant = "rdp",
    output: Output = Format.TABLE,
    as_json: Json = False,
) -> None:
    """Print the epsilon of a list of privacy events, or of steps of DP-SGD."""
    flags = {
        "sample_rate": sample_rate, "noise_multiplier": noise_multiplier, "steps": steps,
    }  # fmt: skip
    missing = [f"--{name.replace('_', '-')}" for name, value in flags.items() if value is None]
    if events is None and missing:
        raise BadInputError(
            f"{', '.join(missing)} missing", fix="give all three of one segment, or --events"
        )
    if events is not None and len(missing) < len(flags):
        raise BadInputError("--events and a segment exclude each other", fix="give one of them")
    listed = read_json(events) if events is not None else [{"event": "poisson_gaussian", **flags}]
    result = calculator.account_epsilon(
        listed, delta=delta, accountant=cast("AccountantName", accountant)
    )
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
    result = calculator.account_steps(
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
    result = calculator.account_noise(
        sample_rate=sample_rate,
        steps=steps,
        epsilon=epsilon,
        delta=delta,
        shape=shape,
        end_ratio=end_ratio,
        accountant=cast("AccountantName", accountant),
    )
    print_records(result, Format.JSON if as_json else output)
