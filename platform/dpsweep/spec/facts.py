"""Facts that a spec says of itself, wherever it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dpsweep.foundation.words import counted
from dpsweep.privacy.terms import OF_ITS_PLAN
from dpsweep.spec.study import SweepSpec
from dpsweep.spec.tracking import masked

if TYPE_CHECKING:
    from dpsweep.spec.pretrain import PretrainSpec


def terms(spec: SweepSpec, *, accounting: str | None = None) -> str:
    """Return what must stand beside an epsilon that is named before anything has run.

    Args:
        spec: Of the study.
        accounting: Where another mode than the spec's holds.
    """
    return f"{spec.privacy_terms(OF_ITS_PLAN, accounting=accounting).short()}, one trial alone"


def without_password(spec: SweepSpec) -> SweepSpec:
    """Return the spec with the secrets of its tracking URI blotted out, to be shown to others."""
    if spec.tracking.uri is None:
        return spec
    tracking = spec.tracking.model_copy(update={"uri": masked(spec.tracking.uri)})
    return spec.model_copy(update={"tracking": tracking})


def describe_pretraining(spec: SweepSpec) -> str:
    """Return what trials may start from, in words; empty without the section."""
    block = spec.pretrain
    if block is None:
        return ""
    if block.checkpoint is not None:
        return f"the file {block.checkpoint}"
    if block.classes is not None:
        records = f"classes {', '.join(map(str, block.classes))} of {spec.data.dataset}"
    else:
        records = block.dataset or f"the public part of {spec.data.dataset}"
    return f"{block.model} on {records}, {counted_epochs(block.epochs)}"


def file_of(block: PretrainSpec) -> Path:
    """Return the file with the weights that a section names."""
    assert block.checkpoint is not None
    return Path(block.checkpoint).expanduser().resolve()


def counted_epochs(epochs: int) -> str:
    """Return a number of epochs in words."""
    return counted(epochs, "epoch")
