"""The verb ``advise``: which strategy to search by, on a noise model of learning curves."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsweep.cli.base import Json, Output, Sets, Spec, load_checked, say, stage
from dpsweep.cli.completion import strategy_names
from dpsweep.cli.output import Format, print_records
from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.registry import did_you_mean
from dpsweep.planning.costs.dataset import (
    DatasetLeft,
    dataset_left,
    ledger_columns,
    left_or_why,
)
from dpsweep.planning.preflight import preflight
from dpsweep.planning.strategies import STRATEGIES, Strategy
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import shown_delta
from dpsweep.spec.search.probe import PROBE

if TYPE_CHECKING:
    from dpsweep.planning.strategies.advice import Advice, PlayedStrategy

DEFAULT_REPLICATES = 40


def advise(
    spec: Spec,
    sets: Sets = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Of everything, search included; default: privacy.study_epsilon."),
    ] = None,
    replicates: Annotated[
        int, typer.Option(min=20, help="How often each strategy is played.")
    ] = DEFAULT_REPLICATES,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 1, help="Default: the spec's.")
    ] = None,
    as_spec: Annotated[
        str | None,
        typer.Option(
            metavar="STRATEGY",
            help="Print the spec that searches by a strategy, and play none: probe, halving, ..",
            autocompletion=strategy_names,
        ),
    ] = None,
    output: Output = Format.TABLE,
    as_json: Json = False,
) -> None:
    """Say by which strategy to search one range: all are priced, and played on a noise model.

    Costs are those that a study would declare; regrets are a model's, and nothing is trained.
    """
    base = load_checked(spec, sets).spec
    epsilon = base.privacy.study_epsilon if epsilon is None else epsilon
    if epsilon is None:
        raise BadInputError(
            f"{spec} has no privacy.study_epsilon: what may the search and its result cost?",
            fix="--epsilon 2, for instance",
        )
    if as_spec is not None:
        print(_strategy(as_spec).spec(base, epsilon=epsilon).to_yaml(), end="")
        return
    from dpsweep.planning.strategies.advice import advise as play

    advice = play(
        base,
        epsilon=epsilon,
        replicates=replicates,
        seed=base.seed if seed is None else seed,
        tell=lambda title: say(stage(f"pricing and playing {title}")),
    )
    command = _command(spec, sets, advice)
    if output is Format.CSV:
        print_records([played.to_dict() for played in advice.played], output)
        return
    if output is not Format.TABLE:
        print_records(_record(advice, command, _left(advice)), output)
        return
    rows = [_shown_row(advice, played) for played in advice.played]
    print_records(rows, output, caption=_caption(advice))
    print()
    print("\n".join(_sentences(advice, command)))
    if left := _left(advice):
        print(left)


def _strategy(name: str) -> Strategy:
    """Return the strategy of a name.

    Raises:
        BadInputError: There is none.
    """
    by_name = {strategy.name: strategy for strategy in STRATEGIES}
    if name not in by_name:
        hint = did_you_mean(name, list(by_name))
        raise BadInputError(f"no strategy {name!r}", fix=hint or f"known: {', '.join(by_name)}")
    return by_name[name]


def _left(advice: Advice) -> DatasetLeft | str | None:
    """Return what the dataset's ledger has left for the choice at the epsilon that was asked."""
    spec = advice.base if advice.is_taken else advice.choice.spec
    if spec.privacy.dataset_ledger is None:
        return None
    return left_or_why(lambda: dataset_left(preflight(spec), advice.epsilon))


def _record(advice: Advice, command: str, left: DatasetLeft | str | None) -> dict[str, Any]:
    terms = advice.choice.terms.columns()
    common = ("delta", "privacy_unit", "neighboring_relation", "sampling")
    return {
        "study_epsilon": advice.epsilon,
        **{key: terms[key] for key in common},
        "study_epsilon_is": "of everything, search included, by each row's accountant and mode",
        "replicates": advice.replicates,
        "seed": advice.seed,
        "take": advice.choice.strategy.name,
        "command": command,
        "figures_are": "of a noise model of learning curves; no measurement",
        "strategies": [played.to_dict() for played in advice.played],
        "not_possible": [
            {"strategy": strategy.name, "because": reason} for strategy, reason in advice.refused
        ],
        **ledger_columns(left),
    }


def _shown_row(advice: Advice, played: PlayedStrategy) -> dict[str, Any]:
    return {
        "": "*" if played is advice.choice else "",
        "strategy": played.strategy.title,
        "epsilon": played.epsilon,
        "accountant": played.terms.accountant,
        "accounting": _accounting(played),
        "runs": f"{played.runs:.3g}",
        "compute": f"{played.compute:.3g}",
        "regret": f"{played.regret:.2f} +- {played.standard_error:.2f}",
    }


def _accounting(played: PlayedStrategy) -> str:
    privacy = played.spec.privacy
    if privacy.mode.is_filtered and privacy.composition is not None:
        return f"{privacy.accounting}, {privacy.composition}"
    return f"{privacy.accounting}"


def _caption(advice: Advice) -> str:
    terms = advice.choice.terms
    lines = [
        f"Each strategy costs at most epsilon={shown_epsilon(advice.epsilon)} in all, search "
        "included (under select that is of the winner, and nothing else may be shown). epsilon: of "
        "the run that is delivered, alone. Every epsilon: "
        f"delta={shown_delta(terms.delta)}, unit={terms.privacy_unit}, "
        f"{terms.neighboring_relation}, "
        f"sampling={terms.sampling}, accountant and accounting mode as in its row "
        "(of one run rdp states a larger epsilon than pld).",
        "runs: started, on average; compute: their steps over those of one full run; regret: "
        "points of accuracy below runs of all of epsilon at the best value, mean and standard "
        f"error of {advice.replicates} plays, seed {advice.seed}. * is advised.",
    ]
    lines += [f"{strategy.title}: not possible: {reason}" for strategy, reason in advice.refused]
    return "\n".join(lines)


def _sentences(advice: Advice, command: str) -> list[str]:
    """Return at most five lines: which one, why, how, on what assumptions, for what it is worth."""
    choice = advice.choice
    return [
        f"Take {choice.strategy.title}: {choice.strategy.about}.",
        f"Why: {_reason(advice)}",
        f"{'To run it' if advice.is_taken else 'Its spec'}: `{command}`{_starter(choice)}.",
        "The model assumes that the best value is the same at every epsilon and lies in the middle "
        "third of the range; its constants are of linear models on Fashion-MNIST.",
        "Costs are what a study would declare; regrets are a model's and no measurement: .1 point "
        "means nothing.",
    ]


def _reason(advice: Advice) -> str:
    choice, best = advice.choice, advice.best
    others = [one for one in advice.played if one is not choice]
    kept = f"its run has epsilon={shown_epsilon(choice.epsilon)} of {advice.epsilon:g}"
    text = f"{choice.regret:.2f} points of regret; {kept}"
    if best is not choice:
        return (
            f"{text}; {best.strategy.title} ({best.regret:.2f}) is hardly better and takes "
            f"{best.compute / choice.compute:.3g} times the compute."
        )
    if not others:
        return f"{text}; no other strategy is possible."
    second = min(others, key=lambda one: one.regret)
    return (
        f"{text}, compute {choice.compute:.3g} (one full run: 1); next is "
        f"{second.strategy.title} with {second.regret:.2f}, compute {second.compute:.3g}."
    )


def _starter(choice: PlayedStrategy) -> str:
    if choice.strategy.name != PROBE or choice.spec.search.space.get("method") != "dp_sgd":
        return ""
    dataset = choice.spec.data.dataset
    return f"; `dpsweep init --probe --dataset {dataset} FILE` writes one with every key explained"


def _command(spec: str, sets: Sequence[str] | None, advice: Advice) -> str:
    """Return what runs the choice, or writes its spec."""
    words = ["SPEC" if spec == "-" else spec]
    for setting in sets or ():
        words += ["--set", setting]
    if advice.is_taken:
        return shlex.join(["dpsweep", "run", *words])
    words += ["--epsilon", f"{advice.epsilon:.12g}", "--as-spec", advice.choice.strategy.name]
    return shlex.join(["dpsweep", "advise", *words]) + " > FILE"
