"""How long a method's steps take and how large its checkpoints are, on made-up records."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpsweep.foundation.errors import ResourceError
from dpsweep.privacy.events import EventRun, Plan
from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
from dpsweep.trainables.devices.peaks import PeakMemory, PeakMeter
from dpsweep.trainables.devices.sharing import TorchGpu, is_kept_there
from dpsweep.trainables.execution.checkpoints import Checkpoint, CheckpointStore
from dpsweep.trainables.hooks import features_of
from dpsweep.trainables.method import Method, RunContext, first_training_run
from dpsweep.trainables.networks.pretrained.weights import PRETRAIN
from dpsweep.trainables.networks.torch_process import torch_threads

_MOST_BYTES = 2**30  # of made-up records
_MOST_PUBLIC = 2048
_MOST_VALIDATION = 1024
_REPEATS = 3


@dataclass(frozen=True)
class Measurement:
    """Times and memory that one configuration took here.

    Attributes:
        step_s: Seconds of one step at the expected batch size.
        evaluation_s: Seconds of one evaluation on the declared number of validation records.
        checkpoint_bytes: Size of one checkpoint.
        memory: Peak of model, optimizer, steps and evaluation; without the records, which trials
            share on the CPU and may keep on a GPU. None where the system does not tell it, or no
            time was left for a whole batch.
    """

    step_s: float
    evaluation_s: float
    checkpoint_bytes: int
    memory: PeakMemory | None = None


def measure(
    method: type[Method],
    hparams: Mapping[str, Any],
    plan: Plan,
    info: DatasetInfo,
    *,
    threads: int,
    device: str,
    deadline: float,
) -> Measurement:
    """Run a few steps and an evaluation on random records of the declared shapes.

    No record of the data is opened: features are made up as features. Batches have the expected
    size of the plan's first training step; it is approached from small ones, and where the deadline
    does not allow the whole size, the time of a smaller batch is scaled up. Events before training
    run once and are not timed.

    Args:
        method: Class of the method.
        hparams: Hyperparameters of one trial.
        plan: Its plan.
        info: Shapes and declared sizes.
        threads: Threads of one trial.
        device: ``cpu`` or ``cuda``.
        deadline: ``time.monotonic()`` at which no further batch is begun.
    Raises:
        ResourceError: The made-up records would not fit into a modest amount of memory, or there
            is no such device.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ResourceError("this machine has no GPU that torch can use")
    extractor = features_of(method, hparams, info)
    if extractor is not None:
        info = extractor.describe(info)
    first = first_training_run(plan)
    before = plan.runs[: plan.runs.index(first)]
    is_sampled = first.event.at_share(1.0) is not None
    batch = max(1, round(first.event.expected_share() * info.num_private))
    num_records = info.num_private
    if is_sampled and num_records * _bytes_per_record(info) > _MOST_BYTES:
        num_records = min(num_records, 2 * batch)
    if num_records * _bytes_per_record(info) > _MOST_BYTES:
        raise ResourceError(f"{num_records} records of this shape are too many to make up")
    sizes = sorted({min(8, batch), min(64, batch), batch}) if is_sampled else [batch]
    runs = [_run_at(first, size / num_records) for size in sizes]
    instance = method()
    if hparams.get("model.checkpoint") == PRETRAIN:  # not there yet; other weights take as long
        hparams = {**hparams, "model.checkpoint": None}
    with torch_threads(threads):
        data = _made_up(info, num_records)
        meter = _meter(device)  # first: it gives back what is only kept
        made_up = _made_up_there(data, device)
        instance.prepare(data, hparams, Plan((*before, *runs)), RunContext(0, 0, device))
        step_s, known_size, position = 0.0, 1, sum(run.count for run in before)
        instance.run(0, position)
        for size, run in zip(sizes, runs):
            if time.monotonic() + run.count * step_s * size / known_size > deadline:
                break
            step_s, known_size = _fastest_step(instance, position, run.count, device), size
            position += run.count
        if not step_s:
            raise ResourceError("no time was left to measure it")
        started = time.perf_counter()
        instance.evaluate("validation")
        evaluated = time.perf_counter() - started
        memory = None if meter is None else _without(made_up, meter.peak())
        size_bytes = _checkpoint_bytes(instance)
    num_validation = len(data.parts["validation"][1])
    # More examples than batch.physical are never in memory at once.
    whole = min(batch, int(hparams.get("batch.physical") or batch))
    return Measurement(
        step_s=step_s * batch / known_size,
        evaluation_s=evaluated * info.num_validation / num_validation,
        checkpoint_bytes=size_bytes,
        memory=memory if known_size >= whole else None,
    )


def _meter(device: str) -> PeakMeter | None:
    try:
        return PeakMeter(device)
    except OSError:
        return None


def _made_up_there(data: SweepData, device: str) -> int:
    """Return how many bytes of a peak are made-up records.

    On the CPU all of them are, from before. On a GPU it is those that training keeps there
    (``training_tensors``).
    """
    if device != "cuda":
        return sum(array.nbytes for arrays in data.parts.values() for array in arrays)
    inputs, labels = data.parts["private"]
    return int(inputs.nbytes + labels.nbytes) * is_kept_there(inputs.nbytes, TorchGpu())


def _without(num_bytes: int, peak: PeakMemory) -> PeakMemory:
    names = ("allocated", "reserved") if peak.device == "cuda" else ("context",)
    less = {name: max(getattr(peak, name) - num_bytes, 0) for name in names}
    return dataclasses.replace(peak, **less)


def _run_at(run: EventRun, share: float) -> EventRun:
    event = run.event.at_share(min(share, 1.0)) or run.event
    return dataclasses.replace(run, event=event, count=_REPEATS)


def _fastest_step(instance: Method, position: int, count: int, device: str) -> float:
    """Run ``count`` steps and return the shortest: the first pays for what is built once."""
    import torch

    seconds = []
    for step in range(position, position + count):
        started = time.perf_counter()
        instance.run(step, step + 1)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _bytes_per_record(info: DatasetInfo) -> int:
    return 4 * int(np.prod(info.input_shape))


def _made_up(info: DatasetInfo, num_records: int) -> SweepData:
    rng = np.random.default_rng(0)

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        shape = (min(count, 1024), *info.input_shape)
        block: np.ndarray
        if info.text is None:
            block = rng.standard_normal(shape, dtype=np.float32)
        else:
            block = rng.integers(0, info.text.vocabulary_size, shape)
        inputs = np.resize(block, (count, *info.input_shape))
        if info.task == "causal_lm":
            return inputs, inputs
        if info.task == "multi_label":
            return inputs, rng.integers(0, 2, (count, info.num_classes)).astype(np.float32)
        return inputs, np.arange(count) % info.num_classes

    num_validation = max(1, min(info.num_validation, _MOST_VALIDATION))
    num_public = min(info.num_public, _MOST_PUBLIC)
    made_up = dataclasses.replace(
        info,
        num_private=num_records,
        num_validation=num_validation,
        num_test=0,
        num_public=num_public,
    )
    parts = {
        "private": part(num_records),
        "public": part(num_public),
        "validation": part(num_validation),
        "test": part(0),
    }
    return SweepData(made_up, parts, "made up")


def _checkpoint_bytes(instance: Method) -> int:
    with tempfile.TemporaryDirectory() as directory:
        state = instance.state_dict()
        CheckpointStore(Path(directory)).save("last", Checkpoint(0, None, 0, 0, {}, state))
        return sum(path.stat().st_size for path in Path(directory).iterdir())
