"""Rules that public records and the other keys of a spec have for each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dpsweep.foundation.errors import Mistake
from dpsweep.spec.base import dotted, given, peek, peek_word
from dpsweep.spec.data.places import is_same_data, kind_beside
from dpsweep.spec.data.public import OF_FILE, Pollution, has_public_validation

_PUBLIC = ("public",)
_POLLUTION = ("public", "pollution")
_OWN = "is the study's own data, of which records are private"


def public_data_rules(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield what ``public`` and the other keys of a raw section ``data`` demand of each other."""
    public = peek(raw, *_PUBLIC)
    if public is None:
        return
    yield from _file_rules(raw, public)
    task = peek_word(raw, "task", default="classification")
    if given(public, "per_class") and task != "classification":
        problem = f"has one class a record, and the task is {task}"
        yield Mistake("public.per_class", problem, "use max_records, or fraction")
    if given(public, "positions") and raw.get("classes") is not None:
        problem = "has no meaning with data.classes, which takes records out class by class"
        yield Mistake("public.positions", problem, "keep one of the two")
    visibility = peek_word(raw, "validation", "visibility")
    if has_public_validation(raw) and visibility in ("noisy", "exact"):
        problem = f"makes public records the validation part, and {visibility} says it is private"
        yield Mistake("public.validation", problem, "use data.validation.visibility: public")
    yield from _pollution_rules(raw)


def _file_rules(raw: Mapping[str, Any], public: Any) -> Iterator[Mistake]:
    """Check that a file is not the study's own, and holds records of its kind."""
    if not any(given(public, key) for key in OF_FILE):
        return
    key = "public.path" if given(public, "path") else "public.dataset"
    kind, own = kind_beside(public, raw), peek_word(raw, "dataset")
    if is_same_data(public, raw):
        fix = "name another file, or declare a part of it: fraction, positions or per_class"
        yield Mistake(key, _OWN, fix)
    if own and (kind == "text") != (own == "text"):
        problem = f"is {kind}, and records of {own} are of another kind"
        yield Mistake(key, problem, f"give public records as {own} has them")
    task = peek_word(raw, "task", default="classification")
    if task == "multi_label" and kind not in ("npz", "text"):
        problem = f"multi_label needs the attributes of every record, which {kind} does not have"
        yield Mistake(key, problem, "store them in an .npz file")
    if peek_word(public, "labels") == "hidden" and kind == "text":
        problem = "are read with the texts, and cannot be hidden in a file of its own"
        yield Mistake("public.labels", problem, "use bought, or known")


def _pollution_rules(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """Check that records are images of one class each, and that none of them is pollution."""
    if not given(raw, *_POLLUTION):
        return
    path = _POLLUTION
    dataset = peek_word(raw, "dataset")
    task = peek_word(raw, "task", default="classification")
    if dataset == "text":
        yield Mistake(dotted(path), "is made of images, and text has none", "remove it")
    elif task != "classification":
        yield Mistake(dotted(path), f"has one class a record, and the task is {task}", "remove it")
    if raw.get("classes") is not None:
        problem = "has no meaning with data.classes, which takes records out class by class"
        yield Mistake(dotted(path), problem, "keep one of the two")
    pollution = peek(raw, *path)
    if not isinstance(pollution, (Mapping, Pollution)):
        return  # that is what is wrong
    if any(given(pollution, key) for key in OF_FILE):
        key = dotted((*path, "path" if given(pollution, "path") else "dataset"))
        if is_same_data(pollution, raw):
            yield Mistake(key, _OWN, "name another file")
        if kind_beside(pollution, raw) == "text":
            yield Mistake(key, "is text, and pollution is made of images", "name another file")
        return
    kinds = peek(pollution, "kinds", default=("digits",))
    if dataset == "digits" and isinstance(kinds, (list, tuple)) and "digits" in kinds:
        yield Mistake(
            dotted((*path, "kinds")),
            "has digits, which are the study's own records, private ones among them",
            "use kinds: [noise]",
        )


def public_rules(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield what public records demand of the other sections of a raw spec."""
    labels = peek_word(raw, "data", "public", "labels", default="known")
    if labels in ("bought", "hidden") and raw.get("episodes") is not None:
        problem = f"are {labels}, and episodes draw public records by their labels"
        yield Mistake("data.public.labels", problem, "use known, or leave episodes out")
    path = ("data", *_POLLUTION)
    if not given(raw, *path):
        return
    if raw.get("episodes") is not None:
        problem = "has no meaning with episodes, which draw records class by class"
        yield Mistake(dotted(path), problem, "keep one of the two")
    if peek_word(raw, "privacy", "accounting") == "public":
        problem = "would be trained on by the search of accounting public"
        yield Mistake(dotted(path), problem, "remove it, or use another accounting")
    pretrain = peek(raw, "pretrain")
    elsewhere = ("checkpoint", "classes", "dataset")
    if pretrain is not None and not any(given(pretrain, key) for key in elsewhere):
        problem = "would be trained on by `pretrain:`, which uses data.public"
        yield Mistake(dotted(path), problem, "remove it, or name pretrain.dataset")
