"""Modes' preconditions: rules for the other sections of a spec.

A mode is a theorem, and a theorem holds under conditions:

    composed     a Renyi filter over everything that is released (Feldman & Zrnic 2021,
                 https://arxiv.org/abs/2008.11193), or so many events of each noise, declared before
                 the first: every access to private records is a private mechanism, so exact scores
                 and non-private methods are out
    select       repeat and select (Papernot & Steinke 2022, https://arxiv.org/abs/2110.03620): a
                 random number of independent trials, of which only the best is released
    public       the search reads public records only; one private run follows
    unaccounted  no claim about the search, hence no condition
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dpsweep.foundation.errors import Mistake
from dpsweep.privacy.modes import UNDECIDED, Mode
from dpsweep.spec.base import dotted, given, maybe_number, peek, peek_mode, peek_word
from dpsweep.spec.data.public import declares_public
from dpsweep.spec.search.scheduler import FOREIGN_SCHEDULERS
from dpsweep.spec.search.section import INDEPENDENT_SAMPLERS, SearchSpec


def mode_rules(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield what no single section of a spec can see; ``raw`` may hold anything."""
    mode = peek_mode(raw, "privacy", "accounting")
    if mode.is_filtered or mode.is_sealed:
        yield from _no_exact_scores(raw, mode)
    if mode.is_sealed:
        yield from _select_rules(raw)
    if mode.is_public_search:
        yield from _public_rules(raw)
    yield from _accountant_rules(raw, mode)
    yield from _noisy_rules(raw)
    yield from _rung_rules(raw)
    yield from _prefix_rules(raw, mode)


def _no_exact_scores(raw: Mapping[str, Any], mode: Mode) -> Iterator[Mistake]:
    if peek_word(raw, "data", "validation", "visibility") == "exact":
        yield Mistake(
            "data.validation.visibility",
            "exact scores of private records have no finite epsilon, so "
            f"{mode.name} cannot cover them",
            "use noisy or public; or accounting: unaccounted",
        )


def _select_rules(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """Trials are independent draws from one prior, their number is blind to everything."""
    sampler = peek_word(raw, "search", "sampler")
    if sampler and sampler not in INDEPENDENT_SAMPLERS:
        yield Mistake(
            "search.sampler",
            f"{sampler!r} learns from other trials, and select needs them independent",
            "use random; or accounting: composed",
        )
    if sampler == "grid":
        yield Mistake(
            "search.sampler",
            "'grid' runs every point once: that is a fixed number of trials, and select needs a "
            "random one",
            "use random; or accounting: composed",
        )
    if peek_word(raw, "cluster", "target", default="local") == "ray":
        yield Mistake(
            "cluster.target",
            "a shared cluster keeps traces of every trial, and select needs them secret",
            "use local; or accounting: composed",
        )
    scheduler = peek_word(raw, "scheduler", "type", default="fifo")
    if scheduler in ("epsilon_halving", "median", "noisy_prefix", *FOREIGN_SCHEDULERS):
        does = "copies weights between trials" if scheduler == "pbt" else "compares trials"
        yield Mistake(
            "scheduler.type",
            f"{scheduler!r} {does}, and select needs them independent, each run to its end",
            "use fifo; or accounting: composed with epsilon_halving",
        )
    for key, (problem, fix) in _NOT_IN_SELECT.items():
        if given(raw, "search", key):
            yield Mistake(dotted(("search", key)), problem, fix)


_NOT_IN_SELECT = {
    "num_trials": (
        "has no meaning for select: the number of trials is random and secret",
        "remove it, or set it to null; privacy.selection.mean is the expected number",
    ),
    "max_time": (
        "a wall-clock stop would cut the number of trials that select draws, and void its claim",
        "remove it; a smaller privacy.selection.mean takes less time",
    ),
    "points_to_evaluate": (
        "these points are not drawn from the prior that all trials of select share",
        "remove them, or narrow the space; or accounting: composed",
    ),
    "objectives": (
        "select releases one best trial, and a trade-off has several",
        "remove them; or accounting: composed",
    ),
}


def _public_rules(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    if not declares_public(peek(raw, "data")):
        yield Mistake(
            "data.public.fraction",
            "is 0, so there are no public records that the search could train on",
            "declare the share of all records that needs no protection, for instance 0.2",
        )
    labels = peek_word(raw, "data", "public", "labels", default="known")
    if labels != "known":
        problem = f"are {labels}, and a public search trains on them"
        yield Mistake("data.public.labels", problem, "use known; or accounting: composed")
    visibility = peek_word(raw, "data", "validation", "visibility")
    if visibility in ("noisy", "exact"):
        yield Mistake(
            "data.validation.visibility",
            f"{visibility} says that these records are private, and a public search reads no "
            "private record",
            "use public; or accounting: composed with noisy scores",
        )


def _accountant_rules(raw: Mapping[str, Any], mode: Mode) -> Iterator[Mistake]:
    """A plan that may be cut by what it showed is not fixed, so pld bounds no such trial alone."""
    scheduler = peek_word(raw, "scheduler", "type", default="fifo")
    is_pld = peek_word(raw, "privacy", "accountant") == "pld"
    is_declared = peek_word(raw, "privacy", "composition") == "declared"
    is_refused = mode.is_filtered and not is_declared  # with pld, whatever the scheduler
    is_refused = is_refused or mode.is_sealed
    if is_pld and not is_refused and scheduler in ("median", "epsilon_halving"):
        yield Mistake(
            "privacy.accountant",
            f"pld bounds plans that are fixed beforehand, and {scheduler} stops trials on the way",
            "use rdp, or scheduler: {type: fifo}",
        )


def _noisy_rules(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    is_noisy = peek_word(raw, "data", "validation", "visibility") == "noisy"
    if is_noisy and peek_word(raw, "search", "metric") == "validation/loss":
        yield Mistake(
            "search.metric",
            "'validation/loss' has no bound on what one record changes, so no noise covers it",
            "use validation/accuracy with mode: max",
        )


def _rung_rules(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    rungs = peek(raw, "scheduler", "rungs", default=())
    cap = maybe_number(peek(raw, "privacy", "trial_epsilon"))
    kind = peek_word(raw, "scheduler", "type", default="fifo")
    if cap is None or cap <= 0 or kind == "fifo" or not isinstance(rungs, (list, tuple)):
        return
    is_share = peek_word(raw, "scheduler", "rung_unit") == "share"
    most, name = (1.0, "1, a share of the whole plan") if is_share else (cap, "trial_epsilon")
    for index, rung in enumerate(rungs):
        epsilon = maybe_number(rung)
        if epsilon is not None and epsilon >= most:
            compared = f"{epsilon:g}" if is_share else f"{epsilon:g} >= {cap:g}"
            yield Mistake(
                dotted(("scheduler", "rungs", index)),
                f"must be smaller than {name}, got {compared}",
                "a trial ends there anyway; remove it",
            )


def _prefix_rules(raw: Mapping[str, Any], mode: Mode) -> Iterator[Mistake]:
    """What waits at a barrier holds what it may charge until then, which is declared beforehand."""
    if peek_word(raw, "scheduler", "type", default="fifo") != "noisy_prefix":
        return
    if not mode.is_filtered:
        if mode is not UNDECIDED and not mode.is_sealed:
            problem = f"noisy_prefix needs a declared budget of the study; {mode.name} has none"
            yield Mistake("scheduler.type", problem, "use accounting: composed, or another type")
    elif peek_word(raw, "privacy", "composition") != "declared":
        yield Mistake(
            "privacy.composition",
            "noisy_prefix declares how many steps come before its barrier and how many after it; a "
            "filter would let the first ones use up what the others need",
            "use declared",
        )
    keep = maybe_number(peek(raw, "scheduler", "keep"))
    num_trials = maybe_number(peek(raw, "search", "num_trials"))
    if keep is not None and keep >= (num_trials or SearchSpec.model_fields["num_trials"].default):
        problem = f"lets every trial go on, got {keep:g}"
        yield Mistake("scheduler.keep", problem, "keep fewer than search.num_trials")
