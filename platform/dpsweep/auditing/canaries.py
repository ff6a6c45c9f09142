"""Canaries: synthetic records, each of them among the private ones with probability 1/2."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsweep.auditing.subject import Subject
from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
from dpsweep.trainables.data.source import PARTS, Arrays

#: Norm of a canary's values in parts of the clipping norm, at least: closed forms of linear heads
#: have gradients about as large.
_NORM_OVER_CLIP = 30.0
#: Values of canaries for networks, in standard deviations: units that are full on or off make
#: gradients that are less alike.
_LOUD = 100.0
_FEW = 64  # records of the parts that no canary is in


@dataclass(frozen=True)
class Canaries:
    """The records of an audit; no record of a study is among them.

    Attributes:
        candidates: Data whose private part holds every canary.
        included: Data whose private part holds those that are in, and nothing else.
        is_in: Which those are, bool (m,): the secret that is guessed.
    """

    candidates: SweepData
    included: SweepData
    is_in: NDArray[np.bool_]


def make_canaries(subject: Subject, m: int, rng: np.random.Generator) -> Canaries:
    """Return canaries of the shape that a subject's records have.

    Args:
        subject: What they are for.
        m: How many, at least 1.
        rng: Secret: it draws values, labels and which canaries are in.
    """
    info = subject.info
    wanted = subject.hparams.get("train.num_private")
    if wanted is not None:
        info = replace(info, num_private=min(int(wanted), info.num_private))
    scale = _scale(subject)
    parts: dict[str, Arrays] = {part: _records(info, _FEW, 1.0, rng) for part in PARTS}
    shots = int(subject.hparams.get("public.shots") or 0)
    parts["public"] = _records(info, max(_FEW, shots * info.num_classes), 1.0, rng)
    inputs, labels = _records(info, m, scale, rng)
    is_in = rng.random(m) < 0.5

    def data(rows: Any) -> SweepData:
        private = (np.ascontiguousarray(inputs[rows]), np.ascontiguousarray(labels[rows]))
        return SweepData(info, {**parts, "private": private}, "0" * 64)

    return Canaries(data(slice(None)), data(is_in), is_in)


def _scale(subject: Subject) -> float:
    """Return the standard deviation of a canary's values."""
    hparams = subject.hparams
    if hparams.get("model.name", "linear") != "linear" and "features.name" not in hparams:
        return _LOUD
    clip = float(hparams.get("clip.max_grad_norm") or 0.0)
    return max(1.0, _NORM_OVER_CLIP * clip / float(np.sqrt(np.prod(subject.info.input_shape))))


def _records(info: DatasetInfo, count: int, scale: float, rng: np.random.Generator) -> Arrays:
    """Return random records; classes take turns, so that each has its shots."""
    shape = (count, *info.input_shape)
    if info.text is not None:
        tokens = rng.integers(0, info.text.vocabulary_size, size=shape)
        if info.task == "causal_lm":
            return tokens, tokens.copy()
        return tokens, _labels(info, count, rng)
    inputs = (scale * rng.standard_normal(shape)).astype(np.float32)
    return inputs, _labels(info, count, rng)


def _labels(info: DatasetInfo, count: int, rng: np.random.Generator) -> np.ndarray:
    if info.task == "multi_label":
        return rng.integers(0, 2, size=(count, info.num_classes)).astype(np.float32)
    return rng.permutation(np.arange(count, dtype=np.int64) % info.num_classes)


def without_limit(subject: Subject) -> dict[str, Any]:
    """Return the hyperparameters for data that declare as many records as are trained on."""
    hparams = dict(subject.hparams)
    if "train.num_private" in hparams:
        hparams["train.num_private"] = None
    return hparams
