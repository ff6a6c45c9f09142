"""The network of a start, as its trials build it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.file_paths import FilePath
from dpsweep.trainables.methods.model_knobs import front_of
from dpsweep.trainables.networks.pretrained.weights import PRETRAIN, checkpoint_of

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import DatasetInfo


def build_start(
    hparams: Mapping[str, Any],
    info: DatasetInfo,
    *,
    seed: int,
    pretrained: FilePath | None = None,
    is_initial: bool = True,
) -> torch.nn.Module:
    """Return the network of a start on the CPU.

    Args:
        hparams: Of the start's method, all of them.
        info: Of the data.
        seed: Of its initial weights.
        pretrained: What ``model.checkpoint: pretrain`` stands for.
        is_initial: False if weights follow: none are read from a checkpoint.
    Raises:
        BadInputError: The network cannot be built.
    """
    from dpsweep.trainables.networks.build import build_model

    checkpoint = hparams["model.checkpoint"]
    if checkpoint == PRETRAIN and not is_initial:
        checkpoint = None  # only its weights would differ
    return build_model(
        hparams["model.name"],
        info,
        seed=seed,
        checkpoint=checkpoint_of(checkpoint, pretrained),
        is_initial=is_initial,
        **front_of(hparams),
    )
