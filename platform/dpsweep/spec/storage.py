"""The storage section of a spec: where studies and frozen features are kept."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from dpsweep.spec.base import (
    Part,
    Positive,
    Text,
)

#: Folders of the feature store and of pre-trained weights among the studies; no study can have
#: their names.
FEATURES = ".features"


PRETRAINED = ".pretrained"


class StorageSpec(Part):
    """Where studies and frozen features are kept."""

    path: Text = Field(
        default="studies", description="Directory of studies; each gets its own folder."
    )
    features: Text | None = Field(
        default=None,
        description="Directory of frozen features, shared by studies; null: .features in path.",
    )
    features_gb: Positive = Field(
        default=50, description="Most GiB of frozen features that are kept; old ones make room."
    )

    @property
    def features_path(self) -> Path:
        """Absolute directory of the feature store."""
        folder = Path(self.path, FEATURES) if self.features is None else Path(self.features)
        return folder.resolve()

    @property
    def pretrained_path(self) -> Path:
        """Absolute directory of pre-trained weights; they are public."""
        return Path(self.path, PRETRAINED).resolve()
