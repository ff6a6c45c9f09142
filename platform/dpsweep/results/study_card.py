"""The privacy card of a study as it stands."""

from __future__ import annotations

import contextlib
from typing import Any

from dpsweep.foundation.errors import NothingWithinBudgetError, StudyError
from dpsweep.foundation.version import __version__
from dpsweep.foundation.words import counted
from dpsweep.ledgers.dataset import read_dataset_ledger
from dpsweep.results.card import privacy_card
from dpsweep.results.origins import reading_data
from dpsweep.results.study import SweepResult
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.facts import describe_all_public, describe_pretraining, public_files
from dpsweep.study.audits import AuditRecord, read_audits
from dpsweep.study.trial import TrialState
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import split_sizes
from dpsweep.trainables.data.loading import describe_dataset


def card(result: SweepResult) -> str:
    """Return the study's privacy card as it stands, in Markdown."""
    spec, privacy, account = result.spec, result.spec.privacy, result.claims.account
    with reading_data(spec):
        info = describe_dataset(spec.data)
    methods = SearchSpace.from_spec(spec.search.space).values()["method"]
    facts: dict[str, Any] = {
        "name": result.name,
        "methods": methods,
        "unbounded_methods": [name for name in methods if not TRAINABLES[name].is_private],
        "dataset": info.name,
        "num_records": info.num_private,
        **result.claims.epsilon_terms(),
        "trial_epsilon": privacy.trial_epsilon,
        "validation_visibility": spec.data.validation.visibility,
        "test_visibility": spec.data.test.visibility,
        "has_test": info.has_own_test or info.num_test > 0,
        "trials": {state.value: _configurations(result, state) for state in TrialState},
        "version": __version__,
    }
    if spec.episodes is not None:
        facts["episodes"] = spec.episodes.model_dump()
    if spec.data.classes is not None:
        facts["classes"] = list(info.class_names)
    if about := describe_all_public(spec.data):
        public = spec.data.public
        facts["public"] = {
            "about": about,
            "labels": public.labels,
            "is_file": bool(public_files(spec.data)),
            "is_by_class": public.per_class is not None and not public.is_of_file,
        }
    if spec.final_trial is not None:
        probe = spec.search.probe
        facts["probes"] = {"number": probe.num_probes, "spares": probe.spares}
    if spec.num_starts and spec.start is not None:
        first = result.view.trials.get(0)
        facts["start"] = {
            "method": spec.start.method,
            "runs": spec.num_starts,
            "epsilons": list(spec.start.epsilons),
            "sampling": first.sampling if first is not None else None,
        }
    if spec.searched_share is not None:
        searched, rest = split_sizes(info.num_private, spec.searched_share)
        facts["split"] = {"searched": searched, "rest": rest, "accountant": privacy.accountant}
    if spec.pretrain is not None:
        facts["pretrained"] = {
            "about": describe_pretraining(spec),
            "address": (result.view.pretrained or {}).get("address"),
            "is_trained": spec.pretrain.checkpoint is None,
        }
    if result.claims.downgraded:
        facts |= {"downgrade": result.claims.downgraded, "accounting_asked": privacy.accounting}
    shown = audits(result)
    if shown:
        facts["audits"] = shown
    with contextlib.suppress(NothingWithinBudgetError):
        facts["best"] = result.best().to_dict()
    study, composed = result.study_statement(), result.claims.composed()
    if study is not None:
        facts["study"] = study.to_json()
    if composed is not None:
        facts["composed"] = {**composed.to_json(), "epsilon": composed.epsilon}
    if account.composition is not None:
        composition = account.composition
        facts["composition"] = {
            "title": composition.title,
            "about": composition.about(),
            "accountant": composition.spent_accountant,
            "spent_epsilon": composition.spent_epsilon(account.committed),
        }
    if privacy.mode.is_sealed:
        facts["selection"] = {"mean": privacy.selection.mean, "shape": privacy.selection.shape}
        if spec.subset_rate is not None:
            facts["subset"] = {"rate": spec.subset_rate, "records": info.num_private}
        del facts["trials"]
    if privacy.dataset_ledger is not None:
        dataset = read_dataset_ledger(privacy.dataset_ledger)
        facts["dataset_ledger"] = {
            "path": privacy.dataset_ledger,
            "epsilon": dataset.epsilon,
            "delta": dataset.delta,
            "cap_epsilon": dataset.cap_epsilon,
            "cap_delta": dataset.cap_delta,
            "studies": len(dataset.studies),
            "broken": dataset.broken,
        }
    return privacy_card(facts)


def _configurations(result: SweepResult, state: TrialState) -> int:
    """Return how many configurations are in a state; runs of the start are none."""
    states = [trial.state for n, trial in result.view.trials.items() if n < result.spec.num_starts]
    return result.view.count(state) - states.count(state)


def audits(result: SweepResult) -> list[dict[str, Any]]:
    """Return what the card says of the audits of the trials that a study shows.

    Under ``select`` that is the winner's alone, without its number; so it is after a downgrade.

    Returns:
        For each ``of`` (which trial), ``lead``, ``claim`` (a statement as JSON, or None),
        ``over`` (which positions) and ``finding``.
    """
    try:
        records = read_audits(result.files.path)
    except StudyError as error:
        return [{"of": "unreadable", "claim": None, "finding": error.message}]
    if result.spec.privacy.mode.is_sealed:
        winner = None
        with contextlib.suppress(NothingWithinBudgetError):
            winner = result.best().trial_id
        return [_shown(record, "the winner") for record in records if record.trial == winner]
    return [
        _shown(record, f"trial {record.trial}")
        for record in records
        if record.trial in result.view.trials
    ]


def _shown(record: AuditRecord, trial: str) -> dict[str, Any]:
    if record.claim is None:
        return {"of": trial, "claim": None, "finding": record.sentence()}
    return {
        "of": trial,
        "lead": record.lead,
        "claim": record.claim.to_json(),
        "over": f"{record.positions} of {counted(record.planned, 'position')}",
        "finding": record.finding,
    }
