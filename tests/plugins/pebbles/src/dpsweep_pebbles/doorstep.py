"""A cluster target: this machine, with a note on the doorstep."""

from __future__ import annotations

from dpsweep.cluster.local import LocalTarget
from dpsweep.foundation.errors import ResourceError
from dpsweep.spec.cluster import ClusterSpec, ResourcesSpec


class DoorstepTarget(LocalTarget):
    """Starts Ray here, and leaves a note in the study's folder."""

    starting = "knocking on the door"

    @staticmethod
    def refuse_early(spec: ClusterSpec, resources: ResourcesSpec) -> None:
        """Refuse an address as well."""
        if spec.address is not None:
            raise ResourceError("a doorstep has no address", fix="remove cluster.address")
        LocalTarget.refuse_early(spec, resources)

    def connect(self) -> None:
        """Start Ray and leave the note."""
        super().connect()
        (self.study_path / "doorstep.txt").write_text("was here\n")
