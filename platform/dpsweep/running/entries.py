"""Entries of the journal that say what a study may claim, for the tracking store too."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import LedgerError, NothingWithinBudgetError
from dpsweep.foundation.logs import read_log
from dpsweep.foundation.registry import package_of
from dpsweep.foundation.version import __version__
from dpsweep.foundation.words import exact
from dpsweep.ledgers.trial import STUDY_FILE, trial_file
from dpsweep.planning.reading import platform_hyperparameters
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
from dpsweep.privacy.modes import UNACCOUNTED
from dpsweep.privacy.terms import OF_ITS_PLAN
from dpsweep.results.coverage import (
    CUT_SHORT,
    PUBLIC_MODEL,
    SO_FAR,
    records_of_trial,
    released_by_study,
    so_far,
    with_caveats,
)
from dpsweep.results.records import shown_hyperparameters
from dpsweep.results.study import OpenStudy, SweepResult
from dpsweep.results.study_card import audits, card
from dpsweep.running.gallery import draw_study, drawn, withdraw
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.data.places import kind_beside
from dpsweep.spec.facts import without_password
from dpsweep.spec.study import SweepSpec
from dpsweep.study.events import (
    CardRenewed,
    StudyDowngraded,
    StudyEnded,
    StudyStarted,
    TrialStarted,
)
from dpsweep.study.files import StudyFiles
from dpsweep.study.journal import TrialView
from dpsweep.study.study import Observer
from dpsweep.study.trial import TrialState, TrialTask, is_cut_short
from dpsweep.tracking.model_label import ModelLabel, label_model
from dpsweep.tracking.schema import BEST, BEST_OBJECTIVE
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import is_size_told
from dpsweep.trainables.data.loading import describe_dataset
from dpsweep.trainables.hooks import facts_of
from dpsweep.trainables.networks.pretrained.weights import PRETRAIN


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a nested mapping under dotted names; lists stay whole.

    >>> dict(flat({"a": {"b": 1}, "c": [2]}))
    {'a.b': 1, 'c': [2]}
    """
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def study_started(study: OpenStudy) -> StudyStarted:
    """Return the event of a launch."""
    spec, result = study.spec, SweepResult.of(study)
    tree = without_password(spec).to_dict()
    space = tree["search"].pop("space")
    params = {name: value for name, value in flat(tree) if value is not None and value != []}
    for name, choice in space.items():
        params[f"search.space.{name}"] = _short(choice)
    searched, constants = searched_columns(spec)
    return StudyStarted(
        name=spec.name,
        spec_yaml=without_password(spec).to_yaml(),
        params=params,
        tags={**privacy_tags(spec), **claim_tags(result), "dpsweep.version": __version__},
        card=card(result),
        searched=searched,
        constants=constants,
        datasets=declared_records(spec),
    )


def searched_columns(spec: SweepSpec) -> tuple[list[str], dict[str, Any]]:
    """Return the hyperparameters that may differ between trials, and the values of those that do
    not, whatever method they belong to."""
    parameters = SearchSpace.from_spec(spec.search.space).parameters
    choices: dict[str, list[Any]] = {}
    for parameter in parameters:
        is_fixed = parameter.kind == "fixed" and not parameter.when
        # One that waits for another has its default elsewhere.
        values = list(parameter.choices) if is_fixed else [None, *parameter.choices, None]
        choices.setdefault(parameter.name, []).extend(values)
    overrides = spec.search.probe.overrides if spec.final_trial is not None else {}
    searched = [name for name, values in choices.items() if len(values) > 1 or name in overrides]
    searched += [name for name in overrides if name not in searched]
    fixed = {name: values[0] for name, values in choices.items() if name not in searched}
    methods = [fixed["method"]] if "method" in fixed else choices["method"][1:-1]
    values_of: dict[str, list[Any]] = {}
    for method in methods:
        for declared in (*TRAINABLES[method].hyperparameters, *platform_hyperparameters(spec)):
            value = fixed.get(declared.name, declared.default)
            if value is not None and declared.name not in searched:
                values = values_of.setdefault(declared.name, [])
                value = declared.coerce(value)
                values += [value] if value not in values else []
    constants = {name: values[0] for name, values in values_of.items() if len(values) == 1}
    if "method" in fixed:
        constants["method"] = fixed["method"]
    return searched, constants


def declared_records(spec: SweepSpec) -> list[dict[str, Any]]:
    """Return what is declared of the records, part by part: neither their path nor a digest."""
    info, data = describe_dataset(spec.data), spec.data
    validation, test = data.validation.visibility, data.test.visibility
    other = kind_beside(data.public, data) if data.public.is_of_file else info.name
    parts = [
        ("training", "private", info.num_private),
        ("public", "public", info.num_public),
        ("validation", f"validation, {validation}", info.num_validation),
        ("test", f"test, {test}", info.num_test),
    ]
    return [
        {
            "name": f"{other if part == 'public' else info.name} {part}",
            "context": context,
            **({"records": size} if is_size_told(info, data, part) else {}),
        }
        for part, context, size in parts
        if size
    ]


_NO_CLAIM = {"dp.accounting": UNACCOUNTED.name}


def _short(choice: Any) -> Any:
    """Write one parameter of a space in a line: ``loguniform [0.01, 8]``."""
    if not isinstance(choice, Mapping):
        return choice
    return ", ".join(f"{key} {value}" for key, value in choice.items() if value is not None)


def privacy_tags(spec: SweepSpec) -> dict[str, Any]:
    """Return the tags without which no epsilon is shown."""
    privacy = spec.privacy
    terms = spec.privacy_terms(OF_ITS_PLAN).tags()
    return {
        **{tag: value for tag, value in terms.items() if value != OF_ITS_PLAN},
        "dp.trial_epsilon": privacy.trial_epsilon,
        "dp.validation": spec.data.validation.visibility,
        "dp.test": spec.data.test.visibility,
    }


def claim_tags(result: SweepResult) -> dict[str, Any]:
    """Return the tags of what a study as a whole may claim now."""
    claims = result.claims
    tags: dict[str, Any] = {"dp.accounting": claims.accounting}
    if claims.downgraded:
        tags["dp.downgraded"] = claims.downgraded
    composition = claims.account.composition
    if composition is not None:
        tags["dp.composition"] = composition.choice
        if composition.searched_share is not None:
            tags["dp.searched_share"] = composition.searched_share
        if isinstance(composition.of_trials, RenyiFilter):
            tags["dp.filter_order"] = composition.of_trials.order
    if result.spec.subset_rate is not None:
        tags["dp.subset_rate"] = result.spec.subset_rate
    composed, study = claims.composed(), claims.study_statement()
    statement = study or composed
    if statement is not None:
        tags |= {"dp.sampling": statement.sampling, "dp.released": statement.released}
    if study is not None:
        tags |= {"dp.study_epsilon": study.epsilon, "dp.study_accountant": study.accountant}
    if composed is not None and not claims.mode.is_accounted:
        tags["dp.composed_accountant"] = composed.accountant
    return tags


def study_downgraded(study: OpenStudy, reason: str) -> StudyDowngraded:
    """Return the event of a claim that was given up."""
    had_pictures = study.files.page.exists()
    try:
        text = card(SweepResult.of(study))
    except LedgerError as error:
        return StudyDowngraded(reason, _lost_card(error), withdraw(study, reason))
    return StudyDowngraded(reason, text, draw_study(study) if had_pictures else ())


def card_renewed(study: OpenStudy, observer: Observer) -> CardRenewed | None:
    """Return the event of a card that tells of audits after the end; None if the last one does.

    Args:
        study: One that has finished.
        observer: Hears of pictures that cannot be drawn.
    """
    result = SweepResult.of(study)
    if not audits(result):
        return None
    text = card(result)
    written = [line["card"] for line in read_log(study.files.journal) if line.get("card")]
    if written[-1:] == [text]:
        return None
    return CardRenewed(text, draw_study(study, observer) if study.files.page.exists() else ())


def drawn_late(study: OpenStudy, observer: Observer) -> CardRenewed | None:
    """Draw the page of a study whose end was broken off there; None if it cannot be drawn.

    Args:
        study: One that has finished.
        observer: Hears why not.
    """
    files = draw_study(study, observer)
    return CardRenewed(card(SweepResult.of(study)), files) if study.files.page.exists() else None


def _lost_card(error: LedgerError) -> str:
    """Return the card of a study whose ledgers cannot be trusted: it claims nothing."""
    return f"# Privacy card\n\nNothing can be said of this study's privacy: {error.message}.\n"


def trial_started(
    spec: SweepSpec, task: TrialTask, pretrained: Mapping[str, str] | None = None
) -> TrialStarted:
    """Return the event of a trial's launch or continuation.

    Args:
        spec: Of the study.
        task: The trial.
        pretrained: Which weights ``model.checkpoint: pretrain`` means (``StudyView.pretrained``).
    """
    training = [run.event for run in task.plan.runs if run.phase == "train"]
    sigmas = [event.noise_multiplier for event in training if hasattr(event, "noise_multiplier")]
    rates = [event.sample_rate for event in training if hasattr(event, "sample_rate")]
    # None: there is no finite one.
    epsilon = task.planned_epsilon if task.is_private else None
    plan: dict[str, Any] = {"steps": len(task.plan), "epsilon": epsilon}
    plan |= facts_of(
        TRAINABLES[task.method],
        task.plan,
        task.inherited,
        delta=spec.privacy.delta,
        accountant=spec.privacy.accountant,
    )
    if sigmas:
        plan |= {"noise_multiplier": sigmas[0], "noise_multiplier_end": sigmas[-1]}
    if rates:
        plan["sample_rate"] = rates[0]
    hparams = shown_hyperparameters(task)
    started_from = {}
    if task.inherited:
        started_from["dp.inherited_events"] = str(len(task.inherited))
    if task.releases:
        started_from["dpsweep.releases"] = ", ".join(map(exact, task.releases))
    if hparams.get("model.checkpoint") == PRETRAIN and pretrained is not None:
        started_from["dpsweep.pretrained"] = pretrained["address"]
    if task.method in TRAINABLES.outside():
        started_from["dpsweep.package"] = package_of(TRAINABLES.outside()[task.method])
    if spec.run_of(task.trial):
        started_from["dpsweep.role"] = spec.run_of(task.trial)
    records = {"dp.records": task.records, "dp.released": released(spec, task.records)}
    tags = {"dp.sampling": task.sampling, **records, "dpsweep.method": task.method, **started_from}
    if task.records == "rest":  # its cap is the whole study's
        tags["dp.trial_epsilon"] = exact(spec.privacy.study_epsilon)
    return TrialStarted(task.trial, {"method": task.method, **hparams}, plan, tags)


def released(spec: SweepSpec, records: str, unless_whole: str = SO_FAR) -> str:
    """Say what the epsilon of a trial's run is about.

    Args:
        spec: Of the study.
        records: Whose records the trial trains on (``TrialTask.records``).
        unless_whole: Of a trial that has not run its whole plan; empty: it has.
    """
    mode = spec.privacy.mode
    extent = mode.run
    if records == "public":
        extent = PUBLIC_MODEL
    elif spec.subset_rate is not None:
        extent = released_by_study(spec, mode)
    elif not mode.is_sealed and unless_whole:
        extent = unless_whole
    elif where := records_of_trial(spec, records):
        extent = extent.replace("this trial alone", f"this trial alone, {where}")
    return with_caveats(spec, extent)


def released_in_the_end(
    spec: SweepSpec, view: TrialView, state: TrialState, reason: str, step: int
) -> str:
    """Say what the epsilon of a trial's run is about, which ends in this state at this step."""
    if state is not TrialState.FINISHED:
        return released(spec, view.records)
    is_cut = is_cut_short(reason, step, view.num_steps)
    return released(spec, view.records, CUT_SHORT if is_cut else "")


def artifacts(files: StudyFiles, trial: int) -> list[str]:
    """Return the files a trial's run keeps: its ledger and its plan."""
    paths = [trial_file(files.ledger, trial), files.trial(trial) / "trial.json"]
    return [str(path) for path in paths if path.exists()]


def study_ended(study: OpenStudy, state: str, reason: str) -> StudyEnded:
    """Return the event of a study's end, with its final card and decision log."""
    try:
        result = SweepResult.of(study)
    except LedgerError as error:  # why the study had to stop; that comes from elsewhere
        gone = withdraw(study, error.message)
        return StudyEnded(state, reason, _lost_card(error), tags=_NO_CLAIM, artifacts=gone)
    artifacts = [str(study.files.ledger / STUDY_FILE), *drawn(study)]
    metrics = {}
    composed = result.claims.composed()
    is_indication = composed is not None and not result.claims.mode.is_accounted
    if composed is not None and is_indication and math.isfinite(composed.epsilon):
        metrics["dp/composed_epsilon"] = composed.epsilon
    with contextlib.suppress(NothingWithinBudgetError):
        metrics |= _of_best(result)
    decisions = result.decisions()
    if decisions:
        path = study.files.path / "decisions.csv"
        write_atomically(path, csv_text([_with_terms(result, r) for r in decisions]))
        artifacts.append(str(path))
    return StudyEnded(state, reason, card(result), metrics, claim_tags(result), artifacts)


def _of_best(result: SweepResult) -> dict[str, float]:
    """Return which trial is the best, its epsilon, and the scores of the model that it delivers."""
    best = result.best()
    epsilon = {"best/epsilon": best.epsilon} if math.isfinite(best.epsilon) else {}
    scores = {f"{BEST}{name}": score for name, score in best.metrics.items()}
    # Under select it is always trial 0, which would look like a count of one.
    is_sealed = result.spec.privacy.mode.is_sealed
    number = {} if is_sealed else {"best/trial": float(best.trial_id)}
    value = {} if best.value is None else {BEST_OBJECTIVE: best.value}
    return {**scores, **epsilon, **number, **value}


def _with_terms(result: SweepResult, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of the decision log with all that its epsilon depends on."""
    sampling = result.view.trials[row["trial"]].sampling
    terms = result.claims.epsilon_terms()
    return {**row, "sampling": sampling, **terms, "released": so_far(result.spec)}


def label_of(result: SweepResult, trial: int) -> ModelLabel:
    """Return what a trial's model must carry wherever it goes, as the claims stand."""
    trial_result, claims = result.trial(trial), result.claims
    config = json.dumps(trial_result.config, sort_keys=True)
    facts = {
        "study": result.name,
        "trial": trial,
        "method": trial_result.config["method"],
        "version": __version__,
        "config_hash": hashlib.sha256(config.encode()).hexdigest(),
        "metric": trial_result.metric,
        "scores": trial_result.metrics,
        "step": trial_result.step,
        "num_steps": trial_result.num_steps,
        "claim": trial_result.study_statement,
        "alone": trial_result.statement,
        "asked": result.spec.privacy.accounting,
        "downgrade": claims.downgraded,
    }
    return label_model(facts, card(result))


def csv_text(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return records as CSV with a header, every record with the keys of the first."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue().encode()
