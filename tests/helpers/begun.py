"""Records of a study beside the models of its start, for methods that begin with those."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.execution.starts import Starts


@dataclass(frozen=True)
class Begun(SweepData):
    """Records of a study, and the models that its start has released."""

    starts: Starts | None = None

    @classmethod
    def of(cls, data: SweepData, starts: Starts) -> Begun:
        return cls(**{f.name: getattr(data, f.name) for f in fields(SweepData)}, starts=starts)
