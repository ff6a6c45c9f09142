"""Public weights before the first trial: trained once, or read.

Training runs in the process of ``dpsweep run``, with all cores of its machine or its GPU, before
any trial. The weights are found again by any study with the same section and the same records.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.errors import StudyError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.planning.pretrain import settings_of, source_of
from dpsweep.spec.facts import counted_epochs, describe_pretraining, file_of
from dpsweep.spec.pretrain import RANDOM_PROCESS, PretrainSpec
from dpsweep.study.events import Pretrained
from dpsweep.study.study import Observer, Study
from dpsweep.trainables.data.class_split import read_classes
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.data.kept.files import locked
from dpsweep.trainables.data.kept.keep import Keep
from dpsweep.trainables.data.public.stretching import coloured
from dpsweep.trainables.data.raw.random_images import NUM_IMAGES, random_images
from dpsweep.trainables.data.source import Arrays, whole
from dpsweep.trainables.data.sources import open_source
from dpsweep.trainables.networks.pretrained.weights import hash_of

if TYPE_CHECKING:
    from dpsweep.spec.study import SweepSpec
    from dpsweep.trainables.networks.pretrain_settings import PretrainSettings
    from dpsweep.trainables.networks.pretraining import Progress


def pretrained_weights(
    spec: SweepSpec, study: Study, data: SweepData, observer: Observer
) -> FilePath | None:
    """Return the file of the weights that ``model.checkpoint: pretrain`` stands for, if any.

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
        return None
    if block.checkpoint is not None:
        path: FilePath = file_of(block)
        digest = hash_of(file_of(block))
        facts: dict[str, Any] = {"address": digest, "sha256": digest, "epochs": []}
        _compare(study, facts)
        artifacts = []
    else:
        path, facts = _trained(spec, block, study, data, observer)
        artifacts = [str(path.with_name(f"{facts['address']}.json"))]
    if study.view.pretrained is None:
        keys = ("address", "sha256", "epochs", "records", "holdout_accuracy", "seconds")
        its_own = {key: facts[key] for key in keys if key in facts}
        about = describe_pretraining(spec)
        study.write(Pretrained(about, _params(block), artifacts, **its_own))
    return path


def _trained(
    spec: SweepSpec, block: PretrainSpec, study: Study, data: SweepData, observer: Observer
) -> tuple[FilePath, dict[str, Any]]:
    """Return the weights' file and what its sidecar says, trained now if they are not there."""
    from dpsweep.trainables.networks.pretraining import PretrainedFile, device_for, pretrain_network

    settings = settings_of(spec)
    records = _public_records(spec, block, data)
    file = PretrainedFile(spec.storage.pretrained_path, settings.address(records))
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
                about={"source": source_of(spec, block)},
                device=device_for(wants_gpu=bool(spec.resources.gpu)),
                threads=spec.cluster.num_cpus or len(os.sched_getaffinity(0)),
                on_progress=lambda progress: observer.on_message(_line(progress, settings)),
            )
            observer.on_message(f"pretrain: {_summary(facts)} in {facts['seconds']:.0f} s")
    _compare(study, facts)
    return file.publish(), facts


def _public_records(spec: SweepSpec, block: PretrainSpec, data: SweepData) -> Arrays:
    if block.classes is not None:
        return read_classes(spec.data, block.classes, Keep.of(spec.storage))
    if block.dataset == RANDOM_PROCESS:
        count = NUM_IMAGES if block.num_records is None else block.num_records
        channels, height, width = data.info.input_shape
        seed = spec.seed if block.seed is None else block.seed
        return random_images(count, (channels, height, width), seed)
    if block.dataset is not None:
        inputs, labels = open_source(block.as_data()).records(Keep.of(spec.storage))["train"]
        # Their size is up to `resize`, in the network; their colours are those of the study's.
        return coloured(whole(inputs), data.info.input_shape), labels
    return data.parts["public"]


def _compare(study: Study, facts: Mapping[str, Any]) -> None:
    """Refuse weights that are not those the study began with."""
    recorded = study.view.pretrained
    if recorded is None:
        return
    because = {
        "address": "the public records, the file, or the version of torch or timm has changed",
        "sha256": "they were computed again, and rounding differed from the first time",
    }
    for key, reason in because.items():
        if key in facts and facts[key] != recorded[key]:
            raise StudyError(
                f"study {study.spec.name!r} began with other pre-trained weights: {key} "
                f"{recorded[key][:12]}, now {facts[key][:12]}",
                because=reason,
                fix="restore what was there, or give the new study another `name:`",
            )


def _params(block: PretrainSpec) -> dict[str, Any]:
    """Return the keys of the section that have a meaning, as params of its run."""
    values = block.model_dump(mode="json")
    if block.checkpoint is not None:
        values = {"checkpoint": block.checkpoint}
    return {f"pretrain.{key}": value for key, value in values.items() if value is not None}


def _summary(facts: Mapping[str, Any]) -> str:
    scores = _scores(facts["epochs"][-1])
    return f"{facts['settings']['model']}, {counted_epochs(len(facts['epochs']))}, {scores}"


def _scores(scores: Mapping[str, float]) -> str:
    text = f"loss {scores['loss']:.3g}"
    if "holdout_accuracy" in scores:
        text += f", holdout accuracy {scores['holdout_accuracy']:.3f}"
    return text


def _line(progress: Progress, settings: PretrainSettings) -> str:
    text = _scores(progress.epochs[-1]) if progress.epochs else f"{progress.share:.0%} done"
    return (
        f"pretrain: epoch {progress.epoch} of {settings.epochs}, {text}, "
        f"{math.ceil(progress.left_s)} s left"
    )
