"""Facts that a spec says of itself, wherever it is shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from dpsweep.foundation.words import counted
from dpsweep.privacy.terms import OF_ITS_PLAN
from dpsweep.spec.data.places import about_file
from dpsweep.spec.study import SweepSpec
from dpsweep.spec.tracking import masked

if TYPE_CHECKING:
    from dpsweep.spec.data.section import DataSpec
    from dpsweep.spec.pretrain import PretrainSpec


#: Words with which a refusal speaks of an epsilon, in whatever package it was written.
_OF_PRIVACY = re.compile(
    r"\beps|epsilon|delta|ε|δ|\bDP\b|budget|privacy|cost|charg|\bcap\b|spen[dt]", re.IGNORECASE
)


def terms(spec: SweepSpec) -> str:
    """Return what must stand beside an epsilon that is named before anything has run."""
    return f"{spec.privacy_terms(OF_ITS_PLAN).short()}, one trial alone"


def with_terms(spec: SweepSpec, text: str) -> str:
    """Return a refusal with what must stand beside an epsilon, if it speaks of a privacy cost."""
    return f"{text} ({terms(spec)})" if _OF_PRIVACY.search(text) else text


def without_exact(visibility: str) -> str:
    """Return what an epsilon of trials leaves out where validation scores have this visibility."""
    return ", without their exact scores, which have no epsilon" if visibility == "exact" else ""


def without_password(spec: SweepSpec) -> SweepSpec:
    """Return the spec with the secrets of its tracking URI blotted out, to be shown to others."""
    if spec.tracking.uri is None:
        return spec
    tracking = spec.tracking.model_copy(update={"uri": masked(spec.tracking.uri)})
    return spec.model_copy(update={"tracking": tracking})


def public_files(data: DataSpec) -> list[str]:
    """Return the other files whose records a data section declares public, in words."""
    others = (data.public, data.public.pollution)
    return [about_file(other, data) for other in others if other is not None and other.is_of_file]


def describe_public(data: DataSpec) -> str:
    """Return which records are public by name, rows or classes, in words; empty of a share alone.

    A file of pollution is declared public too, and named.
    """
    pollution = data.public.pollution
    own = _describe_own_public(data)
    if pollution is None or not pollution.is_of_file:
        return own
    return f"{own or _share(data)}, and records of {about_file(pollution, data)} mixed in"


def describe_all_public(data: DataSpec) -> str:
    """Return which records are public, in words, a share alone too; empty where none are."""
    return describe_public(data) or (_share(data) if data.public.fraction else "")


def _share(data: DataSpec) -> str:
    return f"a share of {data.public.fraction:g} of the data"


def _describe_own_public(data: DataSpec) -> str:
    public = data.public
    each = f"{public.per_class} of each class of " if public.per_class else ""
    if public.is_of_file:
        most = f"{public.max_records} of " if public.max_records else ""
        return f"{most}{each}{about_file(public, data)}"
    if public.positions is not None:
        named = isinstance(public.positions, str)
        rows = f"rows in {public.positions}" if named else counted(len(public.positions), "row")
        return f"{each}{rows} of the data"
    return f"{each}the data" if each else ""


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
        own = describe_public(spec.data) or f"the public part of {spec.data.dataset}"
        records = block.dataset or own
    return f"{block.model} on {records}, {counted_epochs(block.epochs)}"


def file_of(block: PretrainSpec) -> Path:
    """Return the file with the weights that a section names."""
    assert block.checkpoint is not None
    return Path(block.checkpoint).expanduser().resolve()


def counted_epochs(epochs: int) -> str:
    """Return a number of epochs in words."""
    return counted(epochs, "epoch")
