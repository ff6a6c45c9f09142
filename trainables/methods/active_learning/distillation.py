"""Training on public records alone: soft labels of a network, distillation, and labels bought.

The finetuning of Zhao et al. 2020 (https://arxiv.org/abs/1910.01177, sections 3 and 4), where a
network trained with DP-SGD is improved on public records without further noise. What it already
knows goes on as soft labels (Hinton et al. 2015, https://arxiv.org/abs/1503.02531).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.randomness import public_seed
from dpsweep.trainables.networks.layers import set_training_mode
from dpsweep.trainables.networks.torch_process import uncompiled


@torch.no_grad()
def soft_labels(
    model: nn.Module, inputs: torch.Tensor, *, temperature: float, block: int, device: str
) -> torch.Tensor:
    """Return what a network says of every record: softmax(logits / temperature).

    >>> rows = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    >>> soft_labels(nn.Identity(), rows, temperature=2.0, block=1, device="cpu").round(decimals=3)
    tensor([[0.5000, 0.5000],
            [0.7310, 0.2690]])

    Guarantees:
        Post-processing of the network: on public records the result has the network's privacy,
        and costs nothing.

    Args:
        model: Returns logits (records, classes); on ``device``, and left in the mode it is in.
        inputs: Records, (n, ...), anywhere.
        temperature: Above 0; larger is softer.
        block: Records that are computed at once.
        device: ``cpu`` or ``cuda``.
    Returns:
        Probabilities, float32 (n, classes), on the CPU. A record whose logits are not finite (of a
        network that has diverged) has the same probability for every class.
    Raises:
        BadInputError: There is no record, or the temperature is not positive.
    """
    _check_temperature(temperature)
    if len(inputs) == 0:
        raise BadInputError("there is no public record to label", fix="raise data.public.fraction")
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    labels = []
    for begin in range(0, len(inputs), block):
        logits = model(_moved(inputs[begin : begin + block], device)).float()
        rows = torch.softmax(logits / temperature, dim=1)
        broken = ~logits.isfinite().all(dim=1, keepdim=True)
        labels.append(rows.masked_fill(broken, 1 / logits.shape[1]).cpu())
    for module, mode in modes:
        module.training = mode
    return torch.cat(labels)


class SoftTrainer:
    """Trains a network by Adam on soft labels, and on class labels with soft ones as replay.

    One step of distillation minimises T^2 KL(p || softmax(z / T)), the mean over a batch, with
    logits z, soft labels p and temperature T; T^2 keeps the gradient's size as T grows (Hinton et
    al. 2015, section 2). One step on labels minimises the cross-entropy to them, plus ``replay``
    times that.

    Guarantees:
        Reads the public records it is given, their labels and soft labels, and no other data: what
        it returns is post-processing of the network and the soft labels it starts with, and has
        their privacy. Orders, replayed records and dropout masks are functions of the public seed
        and of an epoch's number, whatever the state of the global generators, which stay as they
        are; BatchNorm keeps its statistics.

    Args:
        model: Returns logits (records, classes); on ``device``. What requires a gradient trains.
        inputs: Public records, (n, ...), anywhere; moved batch by batch.
        lr: Learning rate of Adam (Kingma & Ba 2015, https://arxiv.org/abs/1412.6980).
        batch: Records of a batch, at least 1; of labelled ones where there is replay.
        seed: Public.
        device: ``cpu`` or ``cuda``.
        temperature: At which the soft labels were made.
    Raises:
        BadInputError: The batch or the temperature is not positive.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: torch.Tensor,
        *,
        lr: float,
        batch: int,
        seed: int,
        device: str,
        temperature: float,
    ) -> None:
        _check_temperature(temperature)
        if batch < 1:
            raise BadInputError(f"a batch needs at least 1 record, got {batch}")
        self.model = model
        self._inputs, self._batch, self._seed = inputs, batch, seed
        self._device, self._temperature = device, temperature
        self._devices = [torch.device(device)] if device.startswith("cuda") else []
        trained = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = uncompiled(torch.optim.Adam)(trained, lr=lr)

    def distill_epoch(self, targets: torch.Tensor, epoch: int) -> float:
        """Make one pass over all records, in an order of this epoch, towards their soft labels.

        Args:
            targets: Soft labels, float32 (n, classes), rows that add up to 1.
            epoch: Its number; the order is a function of seed and number alone.
        Returns:
            The mean of T^2 KL(p || softmax(z / T)) over the records, each before its step. Not
            finite where the network has diverged.
        Raises:
            BadInputError: There are not as many soft labels as records.
        """
        self._check_targets(targets)
        order = self._generator("distill", epoch).permutation(len(self._inputs))
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        with self._training("distill", epoch):
            for rows in self._batches(order):
                loss = self._soft_loss(self._logits(rows), targets, rows)
                self._step(loss)
                total += loss.detach() * len(rows)
        return float(total) / max(len(order), 1)

    def label_epoch(
        self,
        rows: torch.Tensor,
        labels: torch.Tensor,
        targets: torch.Tensor | None,
        replay: float,
        epoch: int,
    ) -> float:
        """Make one pass over the labelled records, in batches of an order of this epoch.

        With soft labels and ``replay`` > 0 every batch is joined by as many records that have no
        label; all of these are replayed before one is repeated.

        Args:
            rows: Which records have a label, int64 (l,), below n.
            labels: Their classes, int64 (l,).
            targets: Soft labels of all records, float32 (n, classes), or None.
            replay: Weight of the soft labels' loss, at least 0; at 0 they have no effect.
            epoch: Its number; order and replayed records are functions of seed and number alone.
        Returns:
            The mean over the labelled records of cross-entropy plus ``replay`` times the loss of
            the soft labels, each before its step; 0 without a label. Not finite where the network
            has diverged.
        Raises:
            BadInputError: Labels or soft labels do not fit the records, or ``replay`` is negative.
        """
        self._check_labels(rows, labels, replay)
        order = self._generator("label", epoch).permutation(len(rows))
        replayed = np.zeros(0, np.int64)
        if targets is not None and replay > 0:
            self._check_targets(targets)
            replayed = self._replayed(rows, epoch)
        rows, labels = rows.cpu(), labels.cpu()
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        with self._training("label", epoch):
            for number, chosen in enumerate(self._batches(order)):
                own = rows[chosen]
                begin = number * self._batch
                others = torch.from_numpy(replayed[begin : begin + len(own)])
                logits = self._logits(torch.cat([own, others]))
                wanted = labels[chosen].to(self._device)
                loss = nn.functional.cross_entropy(logits[: len(own)], wanted)
                if len(others):
                    assert targets is not None
                    loss = loss + replay * self._soft_loss(logits[len(own) :], targets, others)
                self._step(loss)
                total += loss.detach() * len(own)
        return float(total) / max(len(order), 1)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of Adam's state on the CPU; the network's is not in it."""
        copied = _copied(self._optimizer.state_dict())
        assert isinstance(copied, dict)
        return copied

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned, the learning rate among it; ``state`` is copied."""
        self._optimizer.load_state_dict(_copied(state))

    def _generator(self, purpose: str, epoch: int) -> np.random.Generator:
        return np.random.default_rng(self._public_seed(purpose, epoch))

    def _public_seed(self, purpose: str, epoch: int) -> int:
        return public_seed(self._seed, 0, f"{purpose} epoch {epoch}")

    @contextmanager
    def _training(self, purpose: str, epoch: int) -> Iterator[None]:
        """Be in training mode, with the dropout masks of an epoch; all comes back after it."""
        modes = [(module, module.training) for module in self.model.modules()]
        with torch.random.fork_rng(devices=self._devices):
            torch.manual_seed(self._public_seed(f"{purpose} dropout", epoch))
            set_training_mode(self.model)
            try:
                yield
            finally:
                for module, mode in modes:
                    module.training = mode

    def _batches(self, order: np.ndarray) -> Iterator[torch.Tensor]:
        """Yield the entries of an order, batch by batch, the last one maybe smaller."""
        yield from torch.from_numpy(order).split(self._batch) if len(order) else ()

    def _replayed(self, rows: torch.Tensor, epoch: int) -> np.ndarray:
        """Return as many records without a label as there are labelled ones, int64; maybe none."""
        others = np.setdiff1d(np.arange(len(self._inputs)), rows.numpy())
        if not len(others):
            return np.zeros(0, np.int64)
        order = self._generator("replay", epoch).permutation(others)
        return np.resize(order, len(rows))

    def _logits(self, rows: torch.Tensor) -> torch.Tensor:
        logits = self.model(_moved(self._inputs[rows.to(self._inputs.device)], self._device))
        assert isinstance(logits, torch.Tensor)
        return logits.float()

    def _soft_loss(
        self, logits: torch.Tensor, targets: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        said = torch.log_softmax(logits / self._temperature, dim=1)
        wanted = targets[rows.to(targets.device)].to(self._device, torch.float32)
        loss = nn.functional.kl_div(said, wanted, reduction="batchmean")
        return self._temperature**2 * loss

    def _step(self, loss: torch.Tensor) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()

    def _check_targets(self, targets: torch.Tensor) -> None:
        if len(targets) != len(self._inputs):
            raise BadInputError(
                f"{len(targets)} soft labels are not one for each of {len(self._inputs)} records"
            )

    def _check_labels(self, rows: torch.Tensor, labels: torch.Tensor, replay: float) -> None:
        if len(rows) != len(labels):
            raise BadInputError(f"{len(rows)} rows have {len(labels)} labels")
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self._inputs):
            raise BadInputError(f"a labelled row is none of the {len(self._inputs)} public records")
        if not replay >= 0:
            raise BadInputError(f"replay must be >= 0, got {replay:g}")


def _check_temperature(temperature: float) -> None:
    if not 0 < temperature < float("inf"):
        raise BadInputError(f"the temperature must be a positive number, got {temperature:g}")


def _moved(inputs: torch.Tensor, device: str) -> torch.Tensor:
    """Return records on a device; half precision is widened, token ids stay what they are."""
    moved = inputs.to(device)
    return moved.float() if moved.is_floating_point() else moved


def _copied(state: Any) -> Any:
    """Return a state without a tensor that anybody else holds, all of them on the CPU."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        return {key: _copied(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_copied(value) for value in state)
    return state
