"""The privacy card: what a study's epsilon covers, and what it does not, on one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.words import counted
from dpsweep.privacy.modes import CLAIMS, MODES
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import SAMPLINGS, SINGLE_RUN, shown_delta
from dpsweep.results.card_facts import check_claim, is_number_secret, missing_facts
from dpsweep.results.not_covered import not_covered
from dpsweep.tracking.schema import finite

_RELATIONS = {"add_or_remove_one": "add or remove one record"}
_VALIDATION = {
    "public": "on records declared public",
    "noisy": "on private records, released with accounted noise",
    "exact": "on private records, without noise",
}
_TEST = {
    "public": "on records declared public",
    "private": "none; the test records are declared private, and no score on them is released",
}
_NO_TEST = "none: no records are kept for testing"
_STATES = ("finished", "running", "paused", "pruned", "failed", "interrupted", "infeasible")


def privacy_card(facts: Mapping[str, Any]) -> str:
    """Return the privacy card of a study as Markdown.

    Guarantees:
        No epsilon appears without delta, unit, neighboring relation, sampling, accountant and
        accounting mode behind it: a card with one of them missing is refused. The sentence on what
        the epsilon covers is the accounting mode's own, and only a mode that makes a claim for the
        study shows one. Under ``select`` nothing is shown from which the number of trials could be
        read, whatever the facts hold.

    Args:
        facts: Required keys: ``REQUIRED``, and ``study`` (the study's own claim, a
            ``PrivacyStatement.to_json``) in every mode but ``unaccounted``, which has
            ``composed`` instead: the statement over every trial ever run, infinite or None where a
            trial is not private. ``public`` may lack the first before its final run, a study that
            was downgraded from ``select`` the second. ``methods`` is a list of names.

            Optional: ``num_records`` (declared number of records), ``has_test`` (False: there are
            no test records), ``trials`` (state to number), ``best`` (record of the best trial, with
            its statement), ``sampling`` (of the trials; default: of the statements above),
            ``composition`` (``title``, ``about``, ``accountant`` and ``spent_epsilon``),
            ``selection`` (``mean``, ``shape``), ``dataset_ledger`` (``path``, ``epsilon``,
            ``delta``, ``cap_epsilon``, ``cap_delta``, ``studies``, a number or a list, and
            ``broken`` once it bounds nothing), ``downgrade`` (why the label is not the one that was
            asked for), ``accounting_asked`` (that one), ``episodes`` (``number``, ``ways``,
            ``shots``), ``classes`` (names of the private task's, where the dataset has others),
            ``public`` (``about`` records that are declared public, ``labels``, and ``is_file``:
            some are those of another file), ``start`` (``runs``, ``epsilons`` that they release
            within, ``sampling``, None before the first), ``split`` (``searched`` and ``rest``,
            declared records of the search and of the final run, and ``accountant`` of the latter),
            ``pretrained`` (``about``, ``address``, ``is_trained``: by this study and not read from
            a file), ``audits`` (``study_card.audits``), ``version``.
    Raises:
        BadInputError: A required fact is missing, the accounting mode is unknown, or a claim is
            made that the mode does not allow.
    """
    mode = facts.get("accounting")
    if mode is not None and mode not in CLAIMS:
        raise BadInputError(f"unknown accounting mode {mode!r}", fix=f"known: {', '.join(CLAIMS)}")
    missing = missing_facts(facts)
    if missing:
        raise BadInputError(f"a privacy card cannot be written without {', '.join(missing)}")
    check_claim(facts)
    sections = [
        f"## Privacy card: {facts['name']}",
        _headline(facts),
        _protected(facts),
        _search(facts),
        not_covered(facts),
        _reproduce(facts),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _up(epsilon: float) -> str:
    """Show an epsilon, rounded up, without zeros at its end.

    >>> _up(2.0), _up(123.45601), _up(1e-10)
    ('2', '123.4561', '1.00e-10')
    """
    shown = shown_epsilon(epsilon)
    return shown if "e" in shown else shown.rstrip("0").rstrip(".")


def _number(value: float) -> str:
    return f"{value:g}"


def _epsilon(
    relation: str,
    value: float,
    facts: Mapping[str, Any],
    statement: Mapping[str, Any],
    mode: str | None = None,
) -> str:
    """Write an epsilon with its six terms; what ``statement`` lacks is the study's.

    The mode is always the study's present one: a statement may be older than a downgrade.
    """
    terms = {**facts, **{key: value for key, value in statement.items() if value is not None}}
    neighbors, sampling = terms["neighboring_relation"], terms["sampling"]
    how = SAMPLINGS.get(sampling, sampling.removeprefix("sampling "))
    return (
        f"epsilon {relation} {_up(value)} at delta = {shown_delta(terms['delta'])} "
        f"(unit: one {terms['privacy_unit']}; neighboring data sets: "
        f"{_RELATIONS.get(neighbors, neighbors)}; batch sampling: {how}; "
        f"accountant: {terms['accountant']}; "
        f"accounting mode: {mode or '`' + facts['accounting'] + '`'})"
    )


def _sampling(facts: Mapping[str, Any]) -> str | None:
    """Return how the trials sample, or None where nothing is known of any."""
    sources = (facts, *(facts.get(key) or {} for key in ("study", "composed", "best")))
    return next((source["sampling"] for source in sources if source.get("sampling")), None)


def _headline(facts: Mapping[str, Any]) -> str:
    mode, study = MODES[facts["accounting"]], facts.get("study")
    lines = []
    if study is not None:  # first, as the MLflow UI folds all but a few lines
        claim = _epsilon("<=", study["epsilon"], facts, study)
        lines += [f"The study: **{claim}**. It covers the release of: {study['released']}.", ""]
    lines += [f"> **{mode.claim}.** (accounting mode: `{mode.name}`)"]
    if facts.get("downgrade"):
        asked = f" from `{facts['accounting_asked']}`" if facts.get("accounting_asked") else ""
        lines += [">", f"> Downgraded{asked} to `{mode.name}`: {facts['downgrade']}"]
    sampling = _sampling(facts)
    if mode.is_public_search and study is None:
        lines += ["", "The final run has not been started; no private record was used so far."]
    elif set(facts["methods"]) == set(facts["unbounded_methods"]):
        lines += ["", "No trial is private: **epsilon is infinite**."]
    elif (
        not mode.is_public_search and sampling is not None
    ):  # in public the study is one private trial
        each = "One trial of the search" if mode.is_sealed else "Each private trial"
        each = "Each private trial of the search" if facts.get("split") else each
        cap = _epsilon("<=", facts["trial_epsilon"], facts, {"sampling": sampling})
        caveat = _exact(facts)
        lines += ["", f"{each} alone: {cap if study else f'**{cap}**'}{caveat}."]
    return "\n".join(lines)


def _points(title: str, rows: Sequence[tuple[str, str]]) -> str:
    # A list, not a table: MLflow draws tables without any space between their columns.
    return f"**{title}**\n\n" + "\n".join(f"- {key}: {value}" for key, value in rows)


def _protected(facts: Mapping[str, Any]) -> str:
    records = facts.get("num_records")
    validation, test = facts["validation_visibility"], facts["test_visibility"]
    tested = _TEST.get(test, test) if facts.get("has_test", True) else _NO_TEST
    rows = [
        (
            "Data",
            facts["dataset"] + (f", {counted(records, 'declared record')}" if records else ""),
        ),
        ("Methods", ", ".join(f"`{method}`" for method in facts["methods"])),
        ("Validation scores", _VALIDATION.get(validation, validation)),
        ("Test scores", tested),
    ]
    if facts.get("public"):
        rows.insert(1, _public(facts["public"]))
    if facts.get("classes"):
        rows.insert(1, ("Classes", ", ".join(facts["classes"]) + ": records of no others"))
    if facts.get("start"):
        rows.append(("Starts from private models", _start(facts["start"], facts)))
    if facts.get("pretrained"):
        rows.append(_pretrained(facts["pretrained"]))
    if facts.get("episodes"):
        rows.insert(1, ("Episodes", _episodes(facts["episodes"])))
    rows += [
        (f"Trials of `{method}`", "epsilon infinite: no privacy claim at all")
        for method in facts["unbounded_methods"]
    ]
    return _points("What is protected", rows)


def _start(start: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    runs, (*smaller, largest) = start["runs"], start["epsilons"]
    shown = counted(runs, "run")
    if start["sampling"] is None:
        return f"{shown} of `{start['method']}`, which come first and have not begun"
    also = f", and {' and '.join(_up(epsilon) for epsilon in smaller)} on the same terms"
    return (
        f"{shown} of `{start['method']}`, charged once each; they release models within "
        f"{_epsilon('<=', largest, facts, start)}{also if smaller else ''}"
    )


_LABELS = {
    "known": "with their labels",
    "bought": "whose labels are bought one by one",
    "hidden": "without their labels",
}


def _public(public: Mapping[str, Any]) -> tuple[str, str]:
    return "Declared public", f"{public['about']}, {_LABELS[public['labels']]}; not protected"


def _pretrained(weights: Mapping[str, Any]) -> tuple[str, str]:
    address = weights.get("address")
    place = f" ({address})" if address else " (not done yet)"
    if weights["is_trained"]:
        return "Starts from weights trained on public records", weights["about"] + place
    return "Starts from weights declared public", weights["about"] + (place if address else "")


def _episodes(episodes: Mapping[str, int]) -> str:
    return (
        f"{episodes['number']}, drawn from these records: "
        f"{counted(episodes['ways'], 'class')} with "
        f"{counted(episodes['shots'], 'record')} each are the whole private data set of a trial"
    )


def _search(facts: Mapping[str, Any]) -> str:
    mode = MODES[facts["accounting"]]
    rows = []
    trials = facts.get("trials") or {}
    is_secret = is_number_secret(facts)
    if any(trials.values()) and not is_secret:
        by_state = [f"{trials[state]} {state}" for state in _STATES if trials.get(state)]
        rows.append(("Configurations", f"{sum(trials.values())} ({', '.join(by_state)})"))
    if facts.get("probes"):
        rows.append(("Strategy", _probes(facts["probes"])))
    if not mode.is_accounted and facts.get("composed") and not is_secret:
        which = "All trials of one episode" if facts.get("episodes") else "All trials"
        rows.append((f"{which} composed", _composed(facts)))
    if mode.is_filtered and facts.get("composition"):
        rows += _composition(facts)
    if facts.get("split") and facts.get("study"):
        rows += _split(facts["split"], facts)
    if mode.is_sealed and facts.get("selection"):
        rows.append(("Number of trials", _selection(facts["selection"])))
    if facts.get("subset"):
        rows += _subset(facts["subset"])
    if mode.is_public_search:
        rows.append(("Cost of the search", "none: it ran on records declared public"))
    if facts.get("dataset_ledger"):
        rows += _dataset_ledger(facts)
    rows += [("Audit", _audit(entry, facts)) for entry in facts.get("audits") or ()]
    if facts.get("best"):
        name = "Released winner" if mode.is_sealed else "Best trial"
        name = "Final run" if facts.get("split") or facts.get("subset") else name
        if facts.get("episodes"):
            name = "Best configuration, on its first episode"
        rows.append((name, _best(facts)))
    return _points("The search", rows) if rows else ""


def _audit(entry: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    if entry.get("claim") is None:
        return f"{entry['of']}: {entry['finding']}"
    # Of a selection's winner, what its own steps cost is no claim of the study.
    mode = f"`{SINGLE_RUN}`" if MODES[facts["accounting"]].is_sealed else None
    claim = _epsilon("<=", entry["claim"]["epsilon"], facts, entry["claim"], mode)
    return f"{entry['of']}: {entry['lead']} {claim}, for {entry['over']}: {entry['finding']}"


def _composed(facts: Mapping[str, Any]) -> str:
    composed = facts["composed"]
    epsilon = finite(composed.get("epsilon"))
    if composed["sampling"] == "none" and epsilon == 0:
        return "no private step has been run yet"
    if epsilon is None:
        return "epsilon infinite: some trials are not private"
    return f"{_epsilon('=', epsilon, facts, composed)}: an indication, **not a guarantee**"


def _composition(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    composition = facts["composition"]
    rows = [(composition["title"], f"{composition['about']}, fixed before it began")]
    spent = finite(composition.get("spent_epsilon"))
    if spent is not None and composition.get("accountant"):
        how = {"accountant": composition["accountant"], "sampling": _sampling(facts)}
        text = _epsilon("=", spent, facts, how)
        rows.append(("Committed so far", f"{text}: informational, the claim is the study's above"))
    return rows


def _probes(probes: Mapping[str, Any]) -> str:
    spares = f", at most {probes['spares']} more where an end was best" if probes["spares"] else ""
    return (
        f"{probes['number']} noisy probes{spares}, then one final run, which is delivered whatever "
        "it scores"
    )


def _split(split: Mapping[str, Any], facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return which records the search has read and which the final run, and what each may cost."""
    final = {"accountant": split["accountant"], "sampling": _sampling(facts)}
    cap = _epsilon("<=", facts["study"]["epsilon"], facts, final)
    searched, rest = counted(split["searched"], "declared record"), split["rest"]
    return [
        ("Records of the search", f"{searched}, a part that is fixed by their positions alone"),
        ("Records of the final run", f"the other {rest}, which the search does not read: {cap}"),
        ("Both together", "a record is in one of the two, so the larger epsilon counts, no sum"),
    ]


def _subset(subset: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return which records the search has read and which the final run, and what both cost."""
    rate, records = _number(subset["rate"]), counted(subset["records"], "declared private record")
    return [
        ("Records of the search", f"each of {records} with probability {rate}, drawn in secret"),
        ("Records of the final run", "all of them"),
        ("Both together", "cost the epsilon of the study; nothing else of the search is released"),
    ]


def _selection(selection: Mapping[str, Any]) -> str:
    shape, mean = selection["shape"], f"mean {_number(selection['mean'])}"
    if shape == "poisson":
        law = f"the Poisson distribution of {mean}"
    else:
        law = f"the truncated negative binomial distribution of {mean} and shape {_number(shape)}"
    return f"secret; drawn once from {law}, before private data was opened"


def _dataset_ledger(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    entry = facts["dataset_ledger"]
    of = f"`{entry['path']}`"
    if facts.get("downgrade") or entry.get("broken"):
        which = "this study" if facts.get("downgrade") else "a study of these data"
        return [("Dataset ledger", f"{of}, whose sum bounds nothing since {which} lost its claim")]
    count = entry["studies"] if isinstance(entry["studies"], int) else len(entry["studies"])
    own = "each study's own"
    terms = {"accountant": "basic composition of what the studies declared", "sampling": own}
    spent = _epsilon("=", entry["epsilon"], facts, {**terms, "delta": entry["delta"]}, own)
    limits = {**terms, "delta": entry["cap_delta"]}
    cap = _epsilon("<=", entry["cap_epsilon"], facts, limits, own)
    studies = counted(count, "study")
    return [
        ("Dataset ledger", f"{of}, {studies} of these data so far: {spent}"),
        ("Cap of the dataset", cap),
    ]


def _best(facts: Mapping[str, Any]) -> str:
    best = facts["best"]
    score = f"{best['metric']} = {best['value']:.4g}"
    if facts["accounting"] == "select":
        return f"{score}, at the epsilon of the study"
    text = score if is_number_secret(facts) else f"trial {best['trial_id']}: {score}"
    epsilon = finite(best.get("epsilon"))
    if epsilon is None:
        return f"{text}, not private"
    return f"{text}, {_epsilon('=', epsilon, facts, best)} for it alone{_exact(facts)}"


def _exact(facts: Mapping[str, Any]) -> str:
    """Return what must stand beside an epsilon where exact private scores are released."""
    if facts["validation_visibility"] != "exact":
        return ""
    return "; exact private validation scores, and choices by them, have no epsilon"


def _reproduce(facts: Mapping[str, Any]) -> str:
    version = f" (dpsweep {facts['version']})" if facts.get("version") else ""
    return (
        f"**Reproduce**: `dpsweep run sweep.yaml` with the artifact `sweep.yaml`{version}. Privacy "
        "noise is drawn anew each time and never stored, so scores differ a little. A repetition "
        "is a study of its own, and its epsilon adds to this one."
    )
