"""Public weights before the first trial: the section ``pretrain`` of a spec, trained once or read.

Training runs in the process of ``dpsweep run``, with all cores of its machine or its GPU, before
any trial. The weights are found again by any study with the same section and the same records.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.errors import DataError, StudyError
from dpsweep.foundation.words import counted
from dpsweep.planning.networks import network_of_start, networks_of
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.study.study import Observer, Study
from dpsweep.trainables.class_split import read_classes
from dpsweep.trainables.data import DatasetInfo, SweepData, describe_dataset
from dpsweep.trainables.data_sources import Arrays, open_source
from dpsweep.trainables.feature_files import locked
from dpsweep.trainables.weights import PRETRAIN, hash_of

if TYPE_CHECKING:
    from dpsweep.spec.pretrain import PretrainSpec
    from dpsweep.spec.study import SweepSpec
    from dpsweep.study.journal import StudyView
    from dpsweep.trainables.pretraining import PretrainSettings, Progress

#: What a configuration and the section must agree on: hyperparameter -> key of the section.
_SHARED = {"model.name": "model", "model.norm": "norm", "model.image_size": "resize"}
_OF_DATA = ("dataset", "path", "num_classes", "image_size", "channels")
_OF_TRAINING = (
    "model",
    "norm",
    "objective",
    "resize",
    "epochs",
    "lr",
    "batch",
    "weight_decay",
    "momentum",
    "holdout",
    "augment",
)

Problem = tuple[str, str, str]


def pretrain_problems(spec: SweepSpec, space: SearchSpace) -> list[Problem]:
    """Return what is wrong about pre-training: (key of the spec, what, how to fix it).

    Args:
        spec: A valid spec.
        space: Its search space.
    """
    block, networks = spec.pretrain, networks_of(space)
    users = None if networks is None else _users(networks)
    key = "search.space.model.checkpoint"
    if spec.start is not None and users is not None:
        of_start = _users(network_of_start(spec))
        key = "start.hyperparameters.model.checkpoint" if of_start and not users else key
        users += of_start
    if block is None:
        if not users:
            return []
        what = "pretrain stands for the weights of the section pretrain, which is missing"
        fix = "add the section pretrain: with classes or dataset, and model; or name a file"
        return [(key, what, fix)]
    problems = []
    if users == []:
        what = "no trial can start from it: model.checkpoint is never pretrain"
        fix = "add model.checkpoint: pretrain to search.space, or remove the section"
        problems.append(("pretrain", what, fix))
    if block.checkpoint is not None:
        if not _file_of(block).is_file():
            what = f"no file {block.checkpoint}"
            problems.append(("pretrain.checkpoint", what, "give an existing file"))
        return problems
    for name, key in _SHARED.items():
        own = getattr(block, key)
        others = dict.fromkeys(values[name] for values in users or [] if values[name] != own)
        if others:
            shown = " and ".join("null" if other is None else str(other) for other in others)
            what = f"is {'null' if own is None else own}, but trials that start from it have {name}"
            problems.append((f"pretrain.{key}", f"{what} {shown}", "make them equal"))
    if any(values["model.normalize"] is not None for values in users or []):
        what = "images are not normalised in pre-training, and model.normalize does it afterwards"
        problems.append(("pretrain", what, "leave model.normalize out where trials start from it"))
    if block.model == "linear" and not _keeps_classifier(spec):
        what = "linear is a classifier and nothing else, and other classes need a new one"
        problems.append(("pretrain.model", what, "use a network with layers below the classifier"))
    with contextlib.suppress(DataError):  # the study's own data are missing: said elsewhere
        problems += _record_problems(spec, block, describe_dataset(spec.data))
    return problems


def _users(networks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return those networks that start from pre-trained weights."""
    return [network for network in networks if network["model.checkpoint"] == PRETRAIN]


def _record_problems(spec: SweepSpec, block: PretrainSpec, info: DatasetInfo) -> Iterator[Problem]:
    """Yield what is wrong about the public records, from headers and names alone."""
    shape, key, fix = info.input_shape, "pretrain", "give records of the same shape"
    if block.classes is not None:
        known = open_source(spec.data).num_classes
        if max(block.classes) >= known:
            what = f"has {max(block.classes)}, but the dataset has the classes 0 to {known - 1}"
            yield "pretrain.classes", what, "give class numbers of the dataset"
    elif block.dataset is not None:
        try:
            shape = open_source(block.as_data()).input_shape
        except DataError as error:
            yield key, error.message.replace("data.", "pretrain."), error.fix or "correct it"
            return
    elif info.num_public < 2:
        yield (
            key,
            f"data.public has {counted(info.num_public, 'record')}",
            "raise data.public.fraction",
        )
    elif spec.start is not None and block.objective != "rotations":
        what = f"{block.objective} reads the labels of the pool, which trials buy one by one"
        yield "pretrain.objective", what, "use rotations, or other public records"
    is_resized = block.resize is not None and len(shape) == len(info.input_shape) == 3
    if shape != info.input_shape and not (is_resized and shape[0] == info.input_shape[0]):
        if shape[1:] != info.input_shape[1:] and shape[:1] == info.input_shape[:1]:
            fix = "give both the same size: pretrain.resize, and model.image_size in the space"
        theirs, own = ("x".join(map(str, s)) for s in (shape, info.input_shape))
        yield key, f"its records are {theirs}, those of the study {own}", fix
    if block.augment and len(shape) != 3:
        yield "pretrain.augment", "needs images", "remove it"
    if block.objective != "classes" and (len(shape) != 3 or shape[1] != shape[2]):
        yield "pretrain.objective", f"{block.objective} needs square images", "use classes"


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
    return f"{block.model} on {records}, {_counted(block.epochs)}"


def plan_pretraining(spec: SweepSpec) -> str:
    """Return what a run will do about pre-training, in a line; empty without the section.

    Whether weights are there is looked up by the settings: records are not opened for a plan, so
    the run may still find that these have changed.
    """
    told, block = describe_pretraining(spec), spec.pretrain
    if block is None or block.checkpoint is not None:
        return told
    wanted = settings_of(spec).facts
    store = spec.storage.pretrained_path
    for path in sorted(store.glob("*.json")) if store.is_dir() else []:
        facts = json.loads(path.read_text())
        if facts["settings"] == wanted and facts["source"] == _source(spec, block):
            return f"{told}: done already ({facts['address'][:12]}), if the records are the same"
    return f"{told}: to be done first, by this machine"


def settings_of(spec: SweepSpec) -> PretrainSettings:
    """Return what the section trains; ``checkpoint`` must not be set. Loads torch."""
    from dpsweep.trainables.pretraining import PretrainSettings

    block = spec.pretrain
    assert block is not None
    if block.classes is not None:
        num_classes = len(block.classes)
    elif block.dataset is not None:
        num_classes = open_source(block.as_data()).num_classes
    else:
        num_classes = describe_dataset(spec.data).num_classes
    return PretrainSettings(
        num_classes=num_classes,
        keeps_classifier=_keeps_classifier(spec),
        seed=spec.seed if block.seed is None else block.seed,
        **{key: getattr(block, key) for key in _OF_TRAINING},
    )


def with_pretrained(
    spec: SweepSpec, study: Study, data: SweepData, observer: Observer
) -> SweepData:
    """Return the data with the weights that ``model.checkpoint: pretrain`` stands for.

    They are trained now where they are not there yet; an interruption keeps the epochs that are
    complete. The journal of a study says once which weights these are.

    Guarantees:
        Weights depend on declared public records and on the spec alone; so does what is written
        about them. A study never goes on from others than it began with.

    Args:
        spec: A checked spec.
        study: Open for writing.
        data: The raw records of the study.
        observer: Hears of progress.
    Raises:
        StudyError: The study began with other weights.
        DataError: The public records cannot be read, or are too few.
        ModelError: Pre-training diverged.
    """
    block = spec.pretrain
    if block is None:
        return data
    if block.checkpoint is not None:
        path = _file_of(block)
        digest = hash_of(path)
        facts: dict[str, Any] = {"address": digest, "sha256": digest, "epochs": []}
        _compare(study, facts)
        artifacts = []
    else:
        path, facts = _trained(spec, block, study, data, observer)
        artifacts = [str(path.with_suffix(".json"))]
    if study.view.pretrained is None:
        keys = ("address", "sha256", "epochs", "records", "holdout_accuracy", "seconds")
        study.write(
            "pretrained",
            about=describe_pretraining(spec),
            params=_params(block),
            artifacts=artifacts,
            **{key: facts[key] for key in keys if key in facts},
        )
    return dataclasses.replace(data, pretrained=path)


def weights_path(spec: SweepSpec, view: StudyView) -> Path | None:
    """Return where the weights of a study that has begun are; None if it has none."""
    block = spec.pretrain
    if block is None or view.pretrained is None:
        return None
    if block.checkpoint is not None:
        return _file_of(block)
    return spec.storage.pretrained_path / f"{view.pretrained['address']}.safetensors"


def _trained(
    spec: SweepSpec, block: PretrainSpec, study: Study, data: SweepData, observer: Observer
) -> tuple[Path, dict[str, Any]]:
    """Return the weights' file and what its sidecar says, trained now if they are not there."""
    from dpsweep.trainables.pretraining import PretrainedFile, device_for, pretrain_network

    settings = settings_of(spec)
    records = _public_records(spec, block, data)
    store = spec.storage.pretrained_path
    store.mkdir(parents=True, exist_ok=True)
    file = PretrainedFile(store, settings.address(records))
    _compare(study, {"address": file.address})

    def on_wait() -> None:
        observer.on_message("pretrain: waiting for another process")

    with locked(file.lock, on_wait=on_wait):
        facts = file.read()
        if facts is not None:
            observer.on_message(f"pretrain: {_summary(facts)}, found ({file.address[:12]})")
        else:
            facts = pretrain_network(
                records,
                settings,
                file,
                about={"source": _source(spec, block)},
                device=device_for(wants_gpu=bool(spec.resources.gpu)),
                threads=spec.cluster.num_cpus or len(os.sched_getaffinity(0)),
                on_progress=lambda progress: observer.on_message(_line(progress, settings)),
            )
            observer.on_message(f"pretrain: {_summary(facts)} in {facts['seconds']:.0f} s")
    _compare(study, facts)
    return file.weights, facts


def _public_records(spec: SweepSpec, block: PretrainSpec, data: SweepData) -> Arrays:
    if block.classes is not None:
        return read_classes(spec.data, block.classes)
    if block.dataset is not None:
        return open_source(block.as_data()).read()["train"]
    return data.parts["public"]


def _compare(study: Study, facts: Mapping[str, Any]) -> None:
    """Refuse weights that are not those the study began with."""
    known = study.view.pretrained
    if known is None:
        return
    because = {
        "address": "the public records, the file, or the version of torch or timm has changed",
        "sha256": "they were computed again, and rounding differed from the first time",
    }
    for key, reason in because.items():
        if key in facts and facts[key] != known[key]:
            raise StudyError(
                f"study {study.spec.name!r} began with other pre-trained weights: {key} "
                f"{known[key][:12]}, now {facts[key][:12]}",
                because=reason,
                fix="restore what was there, or give the new study another `name:`",
            )


def _params(block: PretrainSpec) -> dict[str, Any]:
    """Return the keys of the section that have a meaning, as params of its run."""
    given = block.model_dump(mode="json")
    if block.checkpoint is not None:
        given = {"checkpoint": block.checkpoint}
    return {f"pretrain.{key}": value for key, value in given.items() if value is not None}


def _source(spec: SweepSpec, block: PretrainSpec) -> dict[str, Any]:
    """Return which records are meant, as the spec says it."""
    own = spec.data.model_dump(mode="json")
    if block.classes is not None:
        return {**{key: own[key] for key in _OF_DATA}, "classes": list(block.classes)}
    if block.dataset is not None:
        other = block.model_dump(mode="json")
        return {key: other[key] for key in _OF_DATA}
    return {"part": "public", "of": own}


def _keeps_classifier(spec: SweepSpec) -> bool:
    """Say whether the network learns the very classes of the private task.

    The study's own public part has them, unless each episode has its own classes.
    """
    block = spec.pretrain
    assert block is not None
    is_own = block.classes is None and block.dataset is None
    return is_own and spec.episodes is None and block.objective == "classes"


def _file_of(block: PretrainSpec) -> Path:
    assert block.checkpoint is not None
    return Path(block.checkpoint).expanduser().resolve()


def _summary(facts: Mapping[str, Any]) -> str:
    scores = _scores(facts["epochs"][-1])
    return f"{facts['settings']['model']}, {_counted(len(facts['epochs']))}, {scores}"


def _counted(epochs: int) -> str:
    return counted(epochs, "epoch")


def _scores(scores: Mapping[str, float]) -> str:
    told = f"loss {scores['loss']:.3g}"
    if "holdout_accuracy" in scores:
        told += f", holdout accuracy {scores['holdout_accuracy']:.3f}"
    return told


def _line(progress: Progress, settings: PretrainSettings) -> str:
    told = _scores(progress.epochs[-1]) if progress.epochs else f"{progress.share:.0%} done"
    return (
        f"pretrain: epoch {progress.epoch} of {settings.epochs}, {told}, "
        f"{math.ceil(progress.left_s)} s left"
    )
