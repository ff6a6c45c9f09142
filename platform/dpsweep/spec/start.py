"""The start section of a spec: one private training run whose releases many trials start from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field

from dpsweep.foundation.errors import Mistake
from dpsweep.spec.base import (
    AS_WHOLE,
    Part,
    Positive,
    dotted,
    maybe_number,
    peek,
    peek_mode,
    peek_word,
)
from dpsweep.spec.space.parameters import DOMAINS

_WHICH = "say at which epsilons a run releases its model, ascending, for instance [2.2, 3.2]"


class StartSpec(Part):
    """A model trained privately before the search; its releases are charged once, not per trial.

    ``method`` trains a network with fixed hyperparameters until the largest of ``epsilons``; the
    models at the last steps within each of them are released, and a trial of a method that starts
    from one names it by ``start.epsilon`` (and ``start.run``). Each run is a trial of the study,
    with a ledger, a report and a number of its own: the first ones.

    Guarantees:
        What a run releases is a DP output, so however many trials start from it, the study pays
        for it once. The epsilon of each of these trials alone covers the run's events up to its
        release and the trial's own.
    """

    epsilons: tuple[Positive, ...] = Field(default=(), description=_WHICH)
    method: Annotated[str, Field(min_length=1)] = Field(
        default="dp_sgd",
        description="The method that trains it: a private one that trains a whole network.",
    )
    runs: Annotated[int, Field(ge=0), AS_WHOLE] = Field(
        default=1,
        description="Independent runs; each is charged. 0: nothing is trained, and trials take "
        "from here what their network is.",
    )
    hyperparameters: dict[str, Any] = Field(
        default_factory=dict,
        description="Of its method, one value each: model.name, optim.lr, train.epochs, ...",
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Check the order of the releases, and what fixes the noise."""
        epsilons = raw.get("epsilons")
        if maybe_number(raw.get("runs")) == 0:
            if epsilons:
                yield Mistake("epsilons", "start.runs is 0, so nothing is released", "remove it")
        elif epsilons is None:
            yield Mistake("epsilons", "is missing", _WHICH)
        elif isinstance(epsilons, (list, tuple)):
            if not epsilons:
                yield Mistake("epsilons", "is empty", "give one epsilon at least")
            numbers = [maybe_number(epsilon) for epsilon in epsilons]
            for index, (before, epsilon) in enumerate(pairwise(numbers), start=1):
                if before is not None and epsilon is not None and before >= epsilon:
                    problem = f"must ascend, got {epsilon:g} after {before:g}"
                    yield Mistake(f"epsilons[{index}]", problem, "write them in ascending order")
        hyperparameters = raw.get("hyperparameters")
        if not isinstance(hyperparameters, Mapping):
            return
        for name, value in hyperparameters.items():
            below = [key for key in value if key not in DOMAINS] if _is_section(value) else []
            if below:
                problem = "is a mapping, and hyperparameters have dotted names"
                yield Mistake(
                    dotted(("hyperparameters", name)), problem, f"write `{name}.{below[0]}:`"
                )
            elif isinstance(value, (Mapping, list, tuple)):
                problem = "is searched over, and a start has one value of each"
                yield Mistake(dotted(("hyperparameters", name)), problem, "give one value")
        for name, problem in _INSTEAD.items():
            if name in hyperparameters:
                yield Mistake(dotted(("hyperparameters", name)), problem, "remove it")


def _is_section(value: Any) -> bool:
    """Say whether a value is a mapping of keys, and no domain of a search."""
    return isinstance(value, Mapping) and not set(value) & set(DOMAINS)


_INSTEAD = {
    "noise.target_epsilon": "the last of start.epsilons says it",
    "train.repeat": "start.runs says it",
    "method": "start.method says it",
}


def methods_named(space: Mapping[str, Any], start: StartSpec | None) -> set[str]:
    """Return the methods of a study's trials, that of its start among them; none if unknown.

    Args:
        space: Search space, as written; its mistakes are told elsewhere.
        start: The study's.
    """
    named = space.get("method")
    if isinstance(named, Mapping):
        named = named.get("choice")
    each = [named] if isinstance(named, str) else named
    if not isinstance(each, (list, tuple)) or not all(isinstance(name, str) for name in each):
        return set()
    return {*each} if start is None or not start.runs else {*each, start.method}


def start_rules(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield what a start demands of the other sections of a spec; ``raw`` may hold anything."""
    if raw.get("start") is None:
        return
    mode = peek_mode(raw, "privacy", "accounting")
    if mode.is_sealed or mode.is_public_search:
        reason = "searches on public records alone, and a start is trained on private ones"
        if mode.is_sealed:
            reason = "keeps all but its best trial secret, and a start is released before"
        yield Mistake("privacy.accounting", f"{mode.name} {reason}", "use composed or unaccounted")
    if raw.get("episodes") is not None:
        problem = "has one private dataset, and episodes have one each"
        yield Mistake("start", problem, "remove `episodes:` or `start:`")
    scheduler = peek_word(raw, "scheduler", "type", default="fifo")
    if scheduler in ("median", "epsilon_halving", "noisy_prefix"):
        yield Mistake(
            "scheduler.type",
            f"{scheduler} compares trials on their way to epsilons that a start has passed already",
            "use fifo",
        )
    cap = maybe_number(peek(raw, "privacy", "trial_epsilon"))
    epsilons = peek(raw, "start", "epsilons", default=())
    for index, entry in enumerate(epsilons if isinstance(epsilons, (list, tuple)) else ()):
        epsilon = maybe_number(entry)
        if cap is not None and epsilon is not None and epsilon > cap:
            yield Mistake(
                dotted(("start", "epsilons", index)),
                f"must be at most privacy.trial_epsilon, got {epsilon:g} > {cap:g}",
                "lower it, or raise privacy.trial_epsilon",
            )
