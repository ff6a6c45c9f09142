"""Settings of pre-training, and the address that they and the records give its weights."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any

import torch

from dpsweep.trainables.data.hashes import part_hash
from dpsweep.trainables.data.kept.pixels import taken
from dpsweep.trainables.data.source import Arrays
from dpsweep.trainables.networks.image_turns import TURNS
from dpsweep.trainables.networks.own_models import fingerprint, is_own

#: Part of every address: a change of how weights come about needs a change of it.
_FORMAT = 1
#: Outputs by which views are compared.
_OF_VIEWS = 128


@dataclass(frozen=True)
class PretrainSettings:
    """Everything but the records that pre-trained weights depend on.

    Attributes:
        model: Name as in ``build_model``.
        objective: ``classes``; ``rotations`` of images by quarter turns (Gidaris et al. 2018,
            https://arxiv.org/abs/1803.07728); ``classes_and_rotations``, each pair a class of its
            own (Lee et al. 2020, https://arxiv.org/abs/1910.05872); ``views``: which two views
            show the same image (``views_loss``), by outputs that stand for no class.
        norm: What becomes of BatchNorm. ``frozen`` means: trained here, as it is, and frozen later.
        resize: Pixels that images are resized to in the network, or None.
        num_classes: Classes of the public records.
        keeps_classifier: True only if these are the classes of the private task, so that its trials
            may start from the classifier as well; else the weights are kept without it.
        epochs: Passes over the records.
        lr: Learning rate of the first step; a cosine takes it down to zero.
        batch: Records of a batch.
        weight_decay: L2 penalty on all parameters.
        momentum: Of SGD.
        holdout: Share of the records, in [0, 1), that is scored on instead of trained on.
        augment: Shift images by up to 2 pixels and mirror half of them.
        seed: Of initial weights, order, holdout and augmentation; it may be known.
        options: Further arguments of timm's network, as in ``build_model``.
        stem: Its first layers, as in ``build_model``.
    """

    model: str
    norm: str
    objective: str
    resize: int | None
    num_classes: int
    keeps_classifier: bool
    epochs: int
    lr: float
    batch: int
    weight_decay: float
    momentum: float
    holdout: float
    augment: bool
    seed: int
    options: str | None = None
    stem: str | None = None

    @property
    def num_outputs(self) -> int:
        """Outputs of the classifier that is trained."""
        if self.objective == "views":
            return _OF_VIEWS
        turns = 1 if self.objective == "classes" else TURNS
        return turns * (1 if self.objective == "rotations" else self.num_classes)

    @property
    def facts(self) -> dict[str, Any]:
        """The settings as plain data, with the versions of what computes and the format."""
        facts = {**dataclasses.asdict(self), "torch": torch.__version__, "format": _FORMAT}
        for added in ("options", "stem"):  # addresses from before there were these stay
            if facts[added] is None:
                del facts[added]
        if self.model.startswith("timm/"):
            import timm

            facts["timm"] = timm.__version__
        if is_own(self.model):
            facts["code"] = fingerprint(self.model)
        return facts

    def address(self, records: Arrays) -> str:
        """Return the SHA-256 of records, settings and versions, as 32 hex digits.

        Rounding differs a little between machines and devices, which are no part of it.
        """
        digests = [part_hash(taken(array, slice(None))) for array in records]
        text = json.dumps([*digests, self.facts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]
