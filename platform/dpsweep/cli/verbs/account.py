"""The verbs of the privacy calculator: ``dpsweep account ...``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from dpsweep.cli.base import Json, Output
from dpsweep.cli.output import Format, print_records, read_json
from dpsweep.foundation.errors import BadInputError, Mistake, SpecError
from dpsweep.privacy import calculator

if TYPE_CHECKING:
    from dpsweep.privacy.terms import AccountantName

account = typer.Typer(no_args_is_help=True, help="Privacy calculator; nothing is run.")

Accountant = Annotated[str, typer.Option("--accountant", help="rdp | pld")]
Delta = Annotated[float, typer.Option("--delta")]
#: Option -> what holds of its number, and how to say so.
_RANGES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "--sample-rate": (lambda rate: 0 < rate <= 1, "must be above 0 and at most 1"),
    "--noise-multiplier": (lambda noise: 0 < noise < math.inf, "must be above 0"),
    "--steps": (lambda steps: steps >= 1, "must be at least 1"),
    "--epsilon": (lambda epsilon: 0 < epsilon < math.inf, "must be above 0"),
    "--delta": (lambda delta: 0 < delta < 1, "must be between 0 and 1"),
    "--end-ratio": (lambda ratio: 0 < ratio < math.inf, "must be above 0"),
}


def _refuse(**numbers: float | None) -> None:
    """Refuse numbers out of their range, all at once, by the names of their options.

    Raises:
        SpecError: With a line for each.
    """
    mistakes = []
    for name, number in numbers.items():
        option = f"--{name.replace('_', '-')}"
        holds, words = _RANGES[option]
        if number is not None and not holds(number):
            mistakes.append(Mistake(option, f"{words}, got {number:g}"))
    if mistakes:
        raise SpecError(mistakes)


def _print(answer: Mapping[str, Any], output: Format) -> None:
    """Print an answer; of an epsilon that does not exist it has the word ``inf``."""
    epsilon = math.inf if answer["epsilon"] == "inf" else answer["epsilon"]
    print_records({**answer, "epsilon": epsilon}, output)


@account.command("epsilon")
def account_epsilon(
    delta: Delta,
    events: Annotated[
        str | None,
        typer.Option("--events", help="JSON file with a list of segments, or - for stdin."),
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
    _refuse(**flags, delta=delta)
    listed = read_json(events) if events is not None else [{"event": "poisson_gaussian", **flags}]
    result = calculator.account_epsilon(
        listed, delta=delta, accountant=cast("AccountantName", accountant)
    )
    _print(result, output)


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
    _refuse(
        sample_rate=sample_rate, noise_multiplier=noise_multiplier, epsilon=epsilon, delta=delta
    )
    result = calculator.account_steps(
        sample_rate=sample_rate,
        noise_multiplier=noise_multiplier,
        epsilon=epsilon,
        delta=delta,
        accountant=cast("AccountantName", accountant),
    )
    _print(result, output)


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
    _refuse(sample_rate=sample_rate, steps=steps, epsilon=epsilon, delta=delta, end_ratio=end_ratio)
    result = calculator.account_noise(
        sample_rate=sample_rate,
        steps=steps,
        epsilon=epsilon,
        delta=delta,
        shape=shape,
        end_ratio=end_ratio,
        accountant=cast("AccountantName", accountant),
    )
    _print(result, output)
