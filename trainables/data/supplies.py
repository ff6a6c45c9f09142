"""Supplies of a study: what its trials are handed besides records."""

from __future__ import annotations

from dataclasses import dataclass

from dpsweep.foundation.file_paths import FilePath
from dpsweep.trainables.data.releases import ReleasedModels


@dataclass(frozen=True)
class Supplies:
    """Places of what a study prepares for its trials, and no record of its data.

    Attributes:
        feature_root: Directory of the feature store, on disk or in a bucket, or None to compute
            features in memory.
        pretrained: File with the public weights that ``model.checkpoint: pretrain`` stands for, or
            None where the study has none.
        starts: The models that the study's start has released, or None where it has none.
    """

    feature_root: FilePath | None = None
    pretrained: FilePath | None = None
    starts: ReleasedModels | None = None


#: Of a study, or a single trial, for which nothing is prepared.
NO_SUPPLIES = Supplies()
