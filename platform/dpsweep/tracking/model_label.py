"""The label of a logged model: what its epsilon covers, for whoever gets the model alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpsweep.privacy.modes import CLAIMS
from dpsweep.privacy.statement import PrivacyStatement
from dpsweep.tracking.labels import UNACCOUNTED, downgraded_tags

#: Key of MLflow's model metadata that holds the label; it is in the file ``MLmodel``.
METADATA = "dpsweep"
#: File beside ``MLmodel``: the privacy card as it stood.
CARD_FILE = "privacy_card.md"
#: What is said in the place of a claim where there is none.
NO_CLAIM = "none: no epsilon covers the search that chose this model"
_AS_OF = (
    "when the model was logged; a study can lose its claim later, which the model's tag "
    "dp.downgraded in the tracking store and `dpsweep best` then say"
)


@dataclass(frozen=True)
class ModelLabel:
    """Label of a model: in the tracking store, and in its own directory.

    Attributes:
        tags: Tags of the logged model.
        description: Of the logged model, Markdown.
        metadata: What the model's own file ``MLmodel`` says, which goes wherever the model goes.
        card: The study's privacy card, a file beside it.
    """

    tags: Mapping[str, str]
    description: str
    metadata: Mapping[str, Any]
    card: str


def label_model(facts: Mapping[str, Any], card: str) -> ModelLabel:
    """Return the label of a model.

    Guarantees:
        The first epsilon that a reader meets is that of what the model's choice is covered by: the
        study's under ``composed``, the winner's under ``select``, the final run's under ``public``.
        Where there is none, the words say so first. The epsilon of the trial alone never stands
        without saying that it is not the claim, and no epsilon without its terms.

    Args:
        facts: ``study``, ``trial``, ``method``, ``version``, ``config_hash``; ``scores`` of the
            model by name, ``metric`` (the one it was chosen by), ``step``, ``num_steps``; ``claim``
            (the study's ``PrivacyStatement``, None where nothing is claimed), ``alone`` (the
            trial's), ``asked`` (the accounting mode of the spec) and ``downgrade`` (why it does not
            hold, or None).
        card: The study's privacy card.
    """
    claim: PrivacyStatement | None = facts["claim"]
    alone: PrivacyStatement = facts["alone"]
    stated = claim or alone
    terms = {tag: str(value) for tag, value in stated.tags().items()}
    tags = {
        "dp.claim": claim.one_line() if claim else NO_CLAIM,
        "dp.study_epsilon": str(claim.epsilon) if claim else NO_CLAIM,
        **terms,
    }
    if claim != alone:  # else it is the claim itself
        tags["dp.trial_alone_epsilon"] = f"{_shown(alone)}: this trial alone, not the claim"
    if facts["downgrade"]:
        tags |= downgraded_tags(facts["downgrade"])
    identity = {
        "dpsweep.study": facts["study"],
        "dpsweep.trial": str(facts["trial"]),
        "dpsweep.method": facts["method"],
        "dpsweep.step": str(facts["step"]),
        "dpsweep.config_hash": facts["config_hash"],
        "dpsweep.version": facts["version"],
    }
    return ModelLabel(
        tags={**tags, **identity},
        description=_description(facts, claim, alone),
        metadata={
            "claim": claim.to_json() if claim else None,
            "claim_in_words": tags["dp.claim"],
            "accounting": stated.accounting,
            "downgraded": facts["downgrade"],
            "trial_alone": {**alone.to_json(), "is_the_claim": claim == alone},
            "scores": dict(facts["scores"]),
            **{key: facts[key] for key in ("study", "trial", "method", "step", "config_hash")},
            "version": facts["version"],
            "privacy_card": CARD_FILE,
            "as_of": _AS_OF,
        },
        card=card,
    )


def given_up(reason: str) -> tuple[dict[str, str], str]:
    """Return the tags and the description of a model whose study has lost its claim."""
    tags = {**downgraded_tags(reason), "dp.claim": NO_CLAIM}
    headline = f"> **{CLAIMS[UNACCOUNTED]}.** (accounting mode: `{UNACCOUNTED}`)"
    return tags, f"{headline}\n>\n> **The claim was given up**, for good: {reason}\n"


def metadata_given_up(metadata: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """Return a model's metadata once its study has lost its claim."""
    gone = {"claim": None, "claim_in_words": NO_CLAIM, "accounting": UNACCOUNTED}
    return {**metadata, **gone, "downgraded": reason}


def _shown(statement: PrivacyStatement) -> str:
    return "inf" if math.isinf(statement.epsilon) else str(statement.epsilon)


def _description(
    facts: Mapping[str, Any], claim: PrivacyStatement | None, alone: PrivacyStatement
) -> str:
    mode = (claim or alone).accounting
    lines = [f"> **{CLAIMS[mode]}.** (accounting mode: `{mode}`)"]
    if facts["downgrade"]:
        lines += [">", f"> Downgraded from `{facts['asked']}`: {facts['downgrade']}"]
    if claim is not None:
        lines += ["", f"What may be claimed of this model: **{claim.one_line()}**."]
    else:
        lines += ["", "**No epsilon covers the search that chose this model.**"]
    if claim != alone:
        lines += ["", f"The trial alone, which is *not* the claim: {alone.one_line()}."]
    scores = ", ".join(f"{name} = {value:.6g}" for name, value in sorted(facts["scores"].items()))
    lines += [
        "",
        f"Trial {facts['trial']} of study `{facts['study']}`, method `{facts['method']}`, the "
        f"checkpoint at step {facts['step']} of {facts['num_steps']}, chosen by "
        f"{facts['metric']}: {scores}.",
        "",
        f"`{CARD_FILE}` beside the model is the study's privacy card: what is not covered, too.",
    ]
    return "\n".join(lines) + "\n"
