"""What the journal says of a study and its trials, for the tracking store and the privacy card."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dpsweep import __version__
from dpsweep.privacy.ledger import STUDY_FILE, trial_file
from dpsweep.results import SweepResult
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec import SweepSpec
from dpsweep.study import StudyFiles, TrialTask
from dpsweep.tracking.card import privacy_card
from dpsweep.trainables.data import describe_dataset
from dpsweep.trial import TrialState


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


def study_started(spec: SweepSpec, files: StudyFiles) -> dict[str, Any]:
    """Return the entry of a launch."""
    tree = without_password(spec).to_dict()
    space = tree["search"].pop("space")
    params = {name: value for name, value in flat(tree) if value is not None and value != []}
    for name, choice in space.items():
        params[f"search.space.{name}"] = _short(choice)
    return {
        "name": spec.name,
        "spec_yaml": without_password(spec).to_yaml(),
        "params": params,
        "tags": {**privacy_tags(spec), "dpsweep.version": __version__},
        "card": card(files),
    }


def without_password(spec: SweepSpec) -> SweepSpec:
    """Return the spec with the password of its tracking URI blotted out, to be shown to others."""
    if spec.tracking.uri is None:
        return spec
    hidden = re.sub(r"(://[^/:@]*:)[^@/]*@", r"\1***@", spec.tracking.uri)
    tracking = spec.tracking.model_copy(update={"uri": hidden})
    return spec.model_copy(update={"tracking": tracking})


def _short(choice: Any) -> Any:
    """Write one parameter of a space in a line: ``loguniform [0.01, 8]``."""
    if not isinstance(choice, Mapping):
        return choice
    return ", ".join(f"{key} {value}" for key, value in choice.items() if value is not None)


def privacy_tags(spec: SweepSpec) -> dict[str, Any]:
    """Return the tags without which no epsilon is shown."""
    privacy = spec.privacy
    return {
        "dp.unit": spec.data.privacy_unit,
        "dp.adjacency": privacy.neighboring_relation,
        "dp.accountant": privacy.accountant,
        "dp.accounting": privacy.accounting,
        "dp.delta": privacy.delta,
        "dp.trial_epsilon": privacy.trial_epsilon,
        "dp.validation": spec.data.validation.visibility,
        "dp.test": spec.data.test.visibility,
    }


def trial_started(spec: SweepSpec, task: TrialTask) -> dict[str, Any]:
    """Return the entry of a trial's launch or continuation."""
    sigmas = [
        run.event.noise_multiplier
        for run in task.plan.runs
        if hasattr(run.event, "noise_multiplier")
    ]
    rates = [run.event.sample_rate for run in task.plan.runs if hasattr(run.event, "sample_rate")]
    # None: there is no finite one.
    epsilon = task.planned_epsilon if task.is_private else None
    plan: dict[str, Any] = {"steps": len(task.plan), "epsilon": epsilon}
    if sigmas:
        plan |= {"noise_multiplier": sigmas[0], "noise_multiplier_end": sigmas[-1]}
    if rates:
        plan["sample_rate"] = rates[0]
    hparams = {key: value for key, value in task.hparams.items() if value is not None}
    return {
        "trial": task.trial,
        "hparams": {"method": task.method, **hparams},
        "plan": plan,
        "tags": {"dp.sampling": task.plan.sampling, "dpsweep.method": task.method},
    }


def artifacts(files: StudyFiles, trial: int) -> list[str]:
    """Return the files a trial's run keeps: its ledger and its plan."""
    paths = [trial_file(files.ledger, trial), files.trial(trial) / "trial.json"]
    return [str(path) for path in paths if path.exists()]


def study_ended(files: StudyFiles, state: str) -> dict[str, Any]:
    """Return the entry of a study's end, with its final card."""
    composed = SweepResult(files).composed()
    metrics = {"dp/composed_epsilon": composed.epsilon} if math.isfinite(composed.epsilon) else {}
    return {
        "state": state,
        "card": card(files),
        "metrics": metrics,
        "tags": {"dp.sampling": composed.sampling, "dp.composed_accountant": composed.accountant},
        "artifacts": [str(files.ledger / STUDY_FILE)],
    }


def card(files: StudyFiles) -> str:
    """Return the study's privacy card as it stands, in Markdown."""
    result = SweepResult(files)
    spec, privacy = result.spec, result.spec.privacy
    info = describe_dataset(spec.data)
    has_best = any(result.view.finished())
    composed = result.composed()
    return privacy_card(
        {
            "name": result.name,
            "methods": SearchSpace.from_spec(spec.search.space).values()["method"],
            "dataset": info.name,
            "num_records": info.num_private,
            "privacy_unit": spec.data.privacy_unit,
            "neighboring_relation": privacy.neighboring_relation,
            "accountant": privacy.accountant,
            "accounting": privacy.accounting,
            "delta": privacy.delta,
            "trial_epsilon": privacy.trial_epsilon,
            "validation_visibility": spec.data.validation.visibility,
            "test_visibility": spec.data.test.visibility,
            "trials": {state.value: result.view.count(state) for state in TrialState},
            "best": result.best().to_dict() if has_best else None,
            "composed": {**composed.to_json(), "epsilon": composed.epsilon},
            "version": __version__,
        }
    )
