"""Pre-training on public records: plain SGD, kept under the address of all it depends on."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import CheckpointError, DataError, ModelError
from dpsweep.foundation.words import counted
from dpsweep.privacy.randomness import public_seed
from dpsweep.trainables.data.dataset import DatasetInfo, tensor_of
from dpsweep.trainables.data.source import Arrays
from dpsweep.trainables.devices.peaks import freed_afterwards
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.image_turns import (
    TURNS,
    augmented,
    is_recognised,
    turn,
    view,
    views_loss,
)
from dpsweep.trainables.networks.layers import head_layers, on_device
from dpsweep.trainables.networks.pretrain_settings import PretrainSettings
from dpsweep.trainables.networks.pretrained.image_front import resize_layers
from dpsweep.trainables.networks.pretrained.pretrained_file import PretrainedFile
from dpsweep.trainables.networks.torch_process import torch_threads, uncompiled

_EVERY_S = 5.0


@dataclass(frozen=True)
class Progress:
    """How far pre-training is.

    Attributes:
        epoch: Number of the current epoch, from 1.
        share: Share of all steps that are done.
        epochs: The scores of every complete epoch: ``loss`` (mean cross-entropy of the epoch's
            training batches, nats; of views, ``views_loss``), ``accuracy`` (share of them that was
            correct) and, with a holdout, ``holdout_accuracy``.
        left_s: Seconds left, at the pace so far.
    """

    epoch: int
    share: float
    epochs: list[dict[str, float]]
    left_s: float


def pretrain_network(
    records: Arrays,
    settings: PretrainSettings,
    file: PretrainedFile,
    *,
    about: Mapping[str, Any],
    device: str = "cpu",
    threads: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Train a network on public records and keep its weights; goes on where it was interrupted.

    SGD with momentum, weight decay and a cosine schedule (Luo et al. 2021, "Scalable Differential
    Privacy with Sparse Network Finetuning", section 5.8); cross-entropy. Batches are drawn without
    replacement, and an incomplete last one is left out. After each epoch all that is needed to
    continue is on disk. Every random draw is a function of the seed and the epoch, so that an
    interrupted training gives the weights of an uninterrupted one.

    Guarantees:
        Nothing but ``records`` is read. They get no protection: they must be public.

    Args:
        records: (inputs float32 (records, *shape), labels int64 (records,) below num_classes).
        settings: What to train.
        file: Where to keep the weights; whoever calls holds its lock.
        about: Further facts for the sidecar.
        device: ``cpu`` or ``cuda``.
        threads: Threads of torch for the while.
        on_progress: Called every few seconds.
    Returns:
        What the sidecar says: settings, ``epochs`` with the scores of each, ``holdout_accuracy`` of
        the last (or None), ``seconds``.
    Raises:
        DataError: There are too few records.
        ModelError: The network cannot be built for them, or training diverged.
    """
    with torch_threads(threads), freed_afterwards(device):
        run = _Run(records, settings, file, device, on_progress)
        while len(run.epochs) < settings.epochs:
            run.train_epoch()
        weights = initial_weights(run.model, records[0].shape[1:], settings)
        epochs, seconds = run.epochs, run.seconds
        del run
    facts = {
        **about,
        "address": file.address,
        "settings": settings.facts,
        "records": len(records[1]),
        "epochs": epochs,
        "holdout_accuracy": epochs[-1].get("holdout_accuracy"),
        "seconds": round(seconds, 1),
    }
    return file.write(weights, facts)


class _Run:
    """A training under way; the state on disk belongs to this address alone, so it fits."""

    def __init__(
        self,
        records: Arrays,
        settings: PretrainSettings,
        file: PretrainedFile,
        device: str,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.settings, self._file, self._device = settings, file, device
        self._on_progress = on_progress or (lambda progress: None)
        order = np.random.default_rng(public_seed(settings.seed, 0, "pretrain holdout"))
        rows = order.permutation(len(records[1]))
        num_held = round(settings.holdout * len(rows))
        held, train = np.sort(rows[:num_held]), np.sort(rows[num_held:])
        if len(train) < 2:
            raise DataError(
                f"pretrain has {counted(len(train), 'public record')} to train on",
                fix="declare more, or lower pretrain.holdout",
            )
        self._train = _tensors(records, train)
        self._held = _tensors(records, held)
        self.model = on_device(network_for(records[0].shape[1:], settings), device)
        self._optimizer = uncompiled(torch.optim.SGD)(
            self.model.parameters(),
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
        self._batch = min(settings.batch, len(train))
        self._steps = len(train) // self._batch
        self.epochs: list[dict[str, float]] = []
        self._before_s, self._said = 0.0, time.monotonic()
        self._restore()
        self._started, self._resumed_at = time.monotonic(), len(self.epochs)

    @property
    def seconds(self) -> float:
        """Seconds of training, those before interruptions included."""
        return self._before_s + time.monotonic() - self._started

    def _restore(self) -> None:
        path = self._file.state
        if not path.exists():
            return
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # pickle, zip and torch each raise their own kinds
            raise CheckpointError(
                f"{path} is damaged: {type(error).__name__}",
                because="pre-training was interrupted, and goes on from there",
                fix="delete the file; pre-training then begins anew",
            ) from error
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.epochs, self._before_s = list(state["epochs"]), float(state["seconds"])

    def _keep(self) -> None:
        buffer = io.BytesIO()
        state = {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "epochs": self.epochs,
            "seconds": self.seconds,
        }
        torch.save(state, buffer)
        write_atomically(self._file.state, buffer.getvalue())

    def train_epoch(self) -> None:
        """Make one pass over the training records, score it, and keep where it stands."""
        epoch, settings = len(self.epochs), self.settings
        order = np.random.default_rng(public_seed(settings.seed, 0, f"pretrain epoch {epoch}"))
        rows = order.permutation(len(self._train[1]))[: self._steps * self._batch]
        inputs, labels = self._train
        is_turned = settings.objective != "classes"
        loss_sum = torch.zeros((), device=self._device)
        num_correct = torch.zeros((), dtype=torch.int64, device=self._device)
        self.model.train()
        for step, chosen in enumerate(rows.reshape(self._steps, self._batch)):
            x = inputs[chosen]
            if settings.augment:
                x = augmented(x, order)
            if settings.objective == "views":
                outputs = self._outputs_of_views(x, order)
                loss, is_correct = views_loss(*outputs), is_recognised(*outputs)
            else:
                turns = order.integers(0, TURNS, len(x)) if is_turned else None
                x, y = self._task(x, labels[chosen], turns)
                logits = self.model(x)
                loss = nn.functional.cross_entropy(logits, y)
                is_correct = logits.argmax(dim=1) == y
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            done = (epoch * self._steps + step) / (settings.epochs * self._steps)
            for group in self._optimizer.param_groups:
                group["lr"] = settings.lr * (1 + math.cos(math.pi * done)) / 2
            self._optimizer.step()
            loss_sum += loss.detach()
            num_correct += is_correct.sum()
            self._say(epoch, step)
        mean_loss = float(loss_sum) / self._steps
        if not math.isfinite(mean_loss):
            raise ModelError(
                f"pre-training diverged in epoch {epoch + 1}: its loss is not a finite number",
                because=f"pretrain.lr={settings.lr:g}, pretrain.momentum={settings.momentum:g}",
                fix="lower pretrain.lr",
            )
        scores = {"loss": mean_loss, "accuracy": int(num_correct) / len(rows)}
        if len(self._held[1]):
            scores["holdout_accuracy"] = self._accuracy(*self._held)
        self.epochs.append(scores)
        self._keep()

    def _outputs_of_views(
        self, x: torch.Tensor, order: np.random.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the outputs for two views of each image."""
        x = x.to(self._device)
        one, other = self.model(torch.cat([view(x, order), view(x, order)])).chunk(2)
        return one, other

    def _task(
        self, x: torch.Tensor, y: torch.Tensor, turns: np.ndarray | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images and what is to be predicted of them, on the device."""
        if turns is not None:
            x, turned = turn(x, turns), torch.from_numpy(turns)
            is_alone = self.settings.objective == "rotations"
            y = turned if is_alone else TURNS * y + turned
        return x.to(self._device), y.to(self._device)

    def _accuracy(self, inputs: torch.Tensor, labels: torch.Tensor) -> float:
        """Return the share that is correct; the first image is turned by 0, the next by 1, ...

        Of views, the share that is recognised among 512 images.
        """
        self.model.eval()
        num_correct = 0
        with torch.no_grad():
            for begin in range(0, len(labels), 512):
                x, y = inputs[begin : begin + 512], labels[begin : begin + 512]
                if self.settings.objective == "views":
                    order = np.random.default_rng(begin)
                    num_correct += int(is_recognised(*self._outputs_of_views(x, order)).sum())
                    continue
                turns = None if self.settings.objective == "classes" else np.arange(len(y)) % TURNS
                x, y = self._task(x, y, turns)
                num_correct += int((self.model(x).argmax(dim=1) == y).sum())
        return num_correct / len(labels)

    def _say(self, epoch: int, step: int) -> None:
        if time.monotonic() - self._said >= _EVERY_S:
            self._said = time.monotonic()
            self._on_progress(self._progress(epoch, step + 1))

    def _progress(self, epoch: int, step: int) -> Progress:
        total = self.settings.epochs * self._steps
        done = epoch * self._steps + step
        now = done - self._resumed_at * self._steps
        pace = (time.monotonic() - self._started) / max(now, 1)
        return Progress(epoch + 1, done / total, self.epochs, pace * (total - done))


def device_for(*, wants_gpu: bool) -> str:
    """Return ``cuda`` where trials are to have a GPU and this machine has one, else ``cpu``."""
    return "cuda" if wants_gpu and torch.cuda.is_available() else "cpu"


def network_for(shape: tuple[int, ...], settings: PretrainSettings) -> nn.Module:
    """Return the network with random weights, all of them trained, BatchNorm among them.

    Args:
        shape: Shape of one record.
        settings: Which network; its seed fixes the weights.
    Raises:
        ModelError: It cannot be built for such records.
    """
    classes = tuple(str(label) for label in range(settings.num_outputs))
    info = DatasetInfo("public", shape, settings.num_outputs, 0, 0, 0, 0, classes)
    model = build_model(
        settings.model,
        info,
        norm=settings.norm,
        seed=public_seed(settings.seed, 0, "pretrain weights"),
        image_size=settings.resize,
        options=settings.options,
        stem=settings.stem,
    )
    for module in model.modules():
        if isinstance(module, _BatchNorm):  # frozen means: frozen later, in the private trials
            module.requires_grad_(True)
    return model


def initial_weights(
    model: nn.Module, shape: tuple[int, ...], settings: PretrainSettings
) -> dict[str, torch.Tensor]:
    """Return what trials may start from: the network's state, on the CPU, as a checkpoint names it.

    What resizes images is left out. The classifier is left out as well, whatever its size, unless
    ``settings.keeps_classifier``: its outputs stand for other classes than the private task's.

    Args:
        model: From ``network_for``.
        shape: Shape of one record.
        settings: Of the network.
    """
    if settings.resize is not None and resize_layers(shape, settings.resize):
        assert isinstance(model, nn.Sequential)
        model = model[-1]
    head = head_layers(model)
    return {
        key: value.detach().to("cpu", copy=True)
        for key, value in model.state_dict().items()
        if settings.keeps_classifier or key.rpartition(".")[0] not in head
    }


def _tensors(records: Arrays, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    return tensor_of(records[0][rows]), tensor_of(records[1][rows])
