"""Peaks of this process's memory."""

import sys

import numpy as np
import pytest
import torch

from dpsweep.trainables.devices import peaks
from dpsweep.trainables.devices.peaks import PeakMemory, PeakMeter, resident_bytes
from dpsweep.trainables.devices.sharing import CONTEXT_BYTES, MIB

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells it")


def test_a_peak_is_what_was_there_for_a_moment():
    meter = PeakMeter("cpu")
    np.ones(96 * MIB, dtype=np.uint8)  # and gone
    peak = meter.peak()
    assert 90 * MIB < peak.allocated < 140 * MIB
    assert peak.reserved == peak.allocated
    assert 0 < peak.context < resident_bytes("VmRSS")  # less the pages of libraries
    again = PeakMeter("cpu").peak()
    assert again.allocated < 40 * MIB  # of the moment before nothing is left


def test_on_a_gpu_it_is_what_torch_allocated_and_held_since(monkeypatch):
    """The first work of a process on its GPU may be what is measured: nothing is begun there."""
    asked, now = [], {"memory_allocated": 100, "memory_reserved": 300}
    for name in ("init", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: asked.append(name))
    for name in now:
        monkeypatch.setattr(torch.cuda, name, lambda name=name: now[name])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 1100)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 1700)
    assert PeakMeter("cuda").peak() == PeakMemory("cuda", 1000, 1400, CONTEXT_BYTES)
    assert asked.index("init") < asked.index("reset_peak_memory_stats")


def test_what_a_trial_needs_has_a_margin_on_what_it_allocates_alone():
    peak = PeakMemory("cuda", allocated=1000, reserved=1400, context=CONTEXT_BYTES)
    assert peak.whole == CONTEXT_BYTES + 1400
    assert peak.need == CONTEXT_BYTES + 1250


def test_a_system_that_does_not_set_peaks_back_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(peaks, "_CLEAR", tmp_path / "no folder" / "clear_refs")
    with pytest.raises(OSError, match="clear_refs"):
        PeakMeter("cpu")
    with pytest.raises(KeyError):
        resident_bytes("VmNothing")
