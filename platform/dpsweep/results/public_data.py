"""The public data that a configuration rests on, in a few words for a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Features that are no network: nothing public is learned from.
_UNLEARNED = (None, "none", "scatternet")
NONE = "none"


def public_data(hparams: Mapping[str, Any]) -> str:
    """Return which weights and records that are declared public a configuration uses.

    Methods are asked by the names that hyperparameters share: a checkpoint or a network of frozen
    features brings weights, ``public.shots`` and ``labels.max`` count public records.

    >>> public_data({"model.checkpoint": "published"})
    'published weights'
    >>> public_data({"features.name": "efficientnet_lite0", "public.shots": 2})
    'weights of efficientnet_lite0, 2 records a class'
    >>> public_data({"features.name": "scatternet"})
    'none'

    Args:
        hparams: Hyperparameters of a trial; absent ones have no meaning for it.
    """
    words = []
    checkpoint, features = hparams.get("model.checkpoint"), hparams.get("features.name")
    if checkpoint == "pretrain":
        words.append("weights trained on public records")
    elif checkpoint is not None:
        words.append("published weights" if checkpoint == "published" else f"weights {checkpoint}")
    if features not in _UNLEARNED:
        words.append(f"weights of {features}")
    if hparams.get("public.shots") is not None:
        words.append(f"{hparams['public.shots']} records a class")
    if hparams.get("labels.max") is not None:
        words.append(f"public records, {hparams['labels.max']} labels")
    return ", ".join(words) or NONE
