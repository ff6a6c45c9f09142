"""Words on the memory of trials: what one takes, how many fit, what to set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dpsweep.foundation.words import counted
from dpsweep.planning.costs.memory import MemoryFigures
from dpsweep.planning.forecast import Estimate
from dpsweep.planning.preflight import Preflight
from dpsweep.results.trial import TrialResult
from dpsweep.spec.cluster import ResourcesSpec
from dpsweep.trainables.devices.sharing import (
    CONTEXT_BYTES,
    MARGIN,
    MIB,
    Packing,
    packing,
    visible_gpu,
    with_margin,
)

_MARGIN = f"a margin of {MARGIN - 1:.0%}"


def mib(count: float) -> str:
    """Return bytes for people, in the units in which GPUs are sold.

    >>> mib(300 * 2**20), mib(80 * 2**30)
    ('300 MiB', '80.0 GiB')
    """
    return f"{count / MIB:.0f} MiB" if count < 1024 * MIB else f"{count / 1024 / MIB:.1f} GiB"


def memory_words(checked: Preflight, estimated: Estimate) -> list[str]:
    """Return a sentence or two for each method: what its trials need, or that it is not known."""
    if not estimated.measured:
        return []  # nothing was measured, which the sentence on time has said
    sentences = [_words(figures, named=len(checked.methods) > 1) for figures in estimated.memory]
    missing = sorted(set(checked.methods) - {figures.method for figures in estimated.memory})
    if missing:
        sentences.append(f"Memory of trials of {', '.join(missing)} was not measured.")
    return sentences


def _words(figures: MemoryFigures, *, named: bool) -> str:
    peak = figures.peak
    who = f"A trial of {figures.method}" if named else "A trial"
    if peak.device == "cpu":
        return (
            f"{who} took up to {mib(peak.whole)} of memory, measured on the CPU "
            f"({mib(peak.context)} of it before it began)."
        )
    text = (
        f"{who} took up to {mib(peak.whole)} of the GPU (tensors {mib(peak.allocated)}, held by "
        f"torch {mib(peak.reserved)}, counted for the CUDA context {mib(peak.context)}); "
        f"with {_MARGIN} it needs {mib(figures.need)}"
    )
    packed = figures.packing
    assert figures.total is not None
    if packed is None:
        return f"{text}, more than one GPU has ({mib(figures.total)})."
    return f"{text}: {packing_words(packed, figures.total, figures.key)}."


def memory_taken(resources: ResourcesSpec, trials: Iterable[TrialResult]) -> list[str]:
    """Return what a study's trials took, a line for each method, and how a rerun would pack them.

    Nothing is said where memory may not be told (``TrialResult.memory_mb``). Loads torch if they
    had a share of a GPU.
    """
    peaks: dict[str, float] = {}
    for trial in trials:
        method = str(trial.config.get("method"))
        if trial.memory_mb:
            peaks[method] = max(trial.memory_mb, peaks.get(method, 0.0))
    return [_taken(resources, method, int(peak * MIB)) for method, peak in sorted(peaks.items())]


def _taken(resources: ResourcesSpec, method: str, peak: int) -> str:
    if not resources.of(method).gpu:
        return f"memory: trials of {method} took up to {mib(peak)} each"
    need, gpu = with_margin(CONTEXT_BYTES, peak), visible_gpu()
    text = (
        f"memory: trials of {method} took up to {mib(peak)} of a GPU each, and need {mib(need)} "
        f"with a CUDA context and {_MARGIN}"
    )
    if gpu is None:
        return f"{text}; this machine has no GPU to say how many fit on one"
    packed = packing(need, gpu.total())
    if packed is None:
        return f"{text}, more than one GPU has ({mib(gpu.total())})"
    return f"{text}: {packing_words(packed, gpu.total(), resources.gpu_key(method))}"


def packing_words(packed: Packing, total: int, key: str) -> str:
    """Return how many trials fit, and what to set."""
    fits = "fits" if packed.trials == 1 else "fit"
    trials = counted(packed.trials, "trial")
    return f"{trials} {fits} on one GPU of {mib(total)}, with {key}: {packed.share:g}"


def memory_warnings(memory: Sequence[MemoryFigures]) -> list[str]:
    """Return a line with a fix for each method whose trials have less than they need."""
    return [_warning(figures) for figures in memory if not figures.fits]


def _warning(figures: MemoryFigures) -> str:
    assert figures.total is not None
    need, total = mib(figures.need), mib(figures.total)
    if not figures.share.gpu:
        most = max(1, figures.total // figures.need)
        return (
            f"warning: {counted(figures.slots or 1, 'trial')} of {figures.method} at once need "
            f"{mib(figures.need * (figures.slots or 1))} ({need} each, with {_MARGIN}), and this "
            f"machine has {total}; fix: search.max_concurrent: {most}, or a smaller batch.physical"
        )
    fix = "lower batch.physical"
    if figures.packing is not None:
        fix += f", or set {figures.key}: {figures.packing.share:g}"
    share = mib(min(figures.share.gpu, 1.0) * figures.total)
    return (
        f"warning: {figures.key}={figures.share.gpu:g} is {share} of a GPU of {total}, and "
        f"a trial of {figures.method} needs {need} (with {_MARGIN}); fix: {fix}"
    )
