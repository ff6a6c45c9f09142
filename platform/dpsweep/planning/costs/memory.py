"""Memory of a study's trials, from a measured peak: how many run at once without running out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpsweep.planning.preflight import Preflight
from dpsweep.spec.cluster import Share
from dpsweep.trainables.devices.peaks import PeakMemory
from dpsweep.trainables.devices.sharing import (
    Packing,
    machine_bytes,
    packing,
    records_there,
    visible_gpu,
)


@dataclass(frozen=True)
class MemoryFigures:
    """What a trial of one method needs of the memory where it trains; all in bytes.

    Attributes:
        method: Its name.
        key: Where the spec has its share of a GPU.
        share: What it occupies, by the spec.
        peak: The largest that was measured.
        need: With a margin (``sharing.MARGIN``), and of a GPU with the records that stay there.
        total: Of one GPU, or of this machine; None where that is not known.
        packing: How many of these trials fit on one GPU; None on the CPU, and where none fits.
        slots: Trials at once on this machine, on the CPU; else None.
    """

    method: str
    key: str
    share: Share
    peak: PeakMemory
    need: int
    total: int | None
    packing: Packing | None = None
    slots: int | None = None

    @property
    def fits(self) -> bool:
        """Whether it has as much as it needs, as far as that is known."""
        if self.total is None:
            return True
        if self.share.gpu:
            return self.need <= min(self.share.gpu, 1.0) * self.total
        return self.need * (self.slots or 1) <= self.total

    def to_dict(self) -> dict[str, Any]:
        """Return the record that ``dpsweep plan --json`` prints (a stable interface)."""
        packed = self.packing
        return {
            "method": self.method,
            "device": self.peak.device,
            "gpu": self.share.gpu,
            "allocated_bytes": self.peak.allocated,
            "reserved_bytes": self.peak.reserved,
            "context_bytes": self.peak.context,
            "needed_bytes": self.need,
            "available_bytes": self.total,
            "fits": self.fits,
            "trials_per_gpu": None if packed is None else packed.trials,
            "gpu_that_fits": None if packed is None else packed.share,
        }


def memory_figures(
    checked: Preflight, peaks: Iterable[tuple[str, PeakMemory | None]], slots: int | None
) -> tuple[MemoryFigures, ...]:
    """Return what trials need, one entry for each method that was measured, by name.

    Args:
        checked: The study's checked spec.
        peaks: Method and peak of each configuration that was measured.
        slots: Trials at once on this machine; None for a cluster.
    """
    largest: dict[str, PeakMemory] = {}
    for method, peak in peaks:
        if peak is not None and (method not in largest or peak.whole > largest[method].whole):
            largest[method] = peak
    return tuple(_figures(checked, method, peak, slots) for method, peak in sorted(largest.items()))


def _figures(checked: Preflight, method: str, peak: PeakMemory, slots: int | None) -> MemoryFigures:
    resources = checked.spec.resources
    share = resources.of(method)
    key = resources.gpu_key(method)
    if not share.gpu:
        total = None if slots is None else machine_bytes()
        return MemoryFigures(method, key, share, peak, peak.need, total, slots=slots)
    gpu = visible_gpu()
    assert gpu is not None  # it was measured there
    total = gpu.total()
    records = 4 * int(np.prod(checked.info.input_shape)) * checked.info.num_private
    return MemoryFigures(
        method,
        key,
        share,
        peak,
        peak.need + records_there(records, share.gpu, total),
        total,
        packing(peak.need, total, records),
    )
