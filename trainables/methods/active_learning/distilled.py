"""Distilled epochs, kept for all trials that would make the same.

Trials of active learning that start from one release mostly repeat each other's distillation:
whom they ask for labels, and how many, comes later and has no influence on it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dpsweep.foundation.errors import StorageError
from dpsweep.foundation.file_paths import FilePath, size_of
from dpsweep.foundation.version import __version__
from dpsweep.trainables.data.hashes import part_hash
from dpsweep.trainables.execution.checkpoints import Checkpoint, CheckpointStore
from dpsweep.trainables.networks.own_models import fingerprint, is_own

if TYPE_CHECKING:
    from dpsweep.trainables.data.dataset import SweepData
    from dpsweep.trainables.data.releases import Release, ReleasedModels

#: Folder beside a release.
FOLDER = "distilled"
#: Bytes that all epochs of one trial may take; nothing is kept of networks that need more.
MOST_BYTES = 2**26
#: Bytes in a folder from which on nothing is added to it.
MOST_BYTES_OF_FOLDER = 2**30
_SETTINGS = ("finetune.lr", "finetune.batch", "finetune.temperature")
#: To be raised when the same facts come to mean another state.
_FORMAT = 1


class DistilledStates:
    """The states of one distillation after each of its epochs: network and optimizer.

    Guarantees:
        A state is found under the SHA-256 of its facts and its epoch alone, and only if it is what
        was written, by its SHA-256: what is damaged, unreadable or half there counts as missing.
        Facts that name all that a state depends on thus make a trial that loads the same, to the
        last bit, as one that computes. Whoever writes what is there already replaces it by the
        same. What cannot be written is not kept, and no trial ends for it.

        What is kept is a function of a released model, public records and public seeds: it has the
        privacy of the release, whose events every trial that reads it has inherited. No private
        record enters, no label, and nothing of what a trial asks private records. It lies in the
        study, beside the release, and is no artifact.

    Args:
        folder: Where they are, made on first use; None keeps nothing and finds nothing.
        facts: All that a state depends on but its epoch, as plain data.
    """

    def __init__(self, folder: FilePath | None, facts: Mapping[str, Any]) -> None:
        self._store = None if folder is None else CheckpointStore(folder)
        self._facts = dict(facts)

    def address(self, epoch: int) -> str:
        """Return the name of the state after an epoch: 64 hex digits."""
        text = json.dumps({"facts": self._facts, "epoch": epoch}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def load(self, epoch: int) -> Mapping[str, Any] | None:
        """Return the state after an epoch (from 0) on the CPU, or None: it must be computed."""
        if self._store is None:
            return None
        try:
            saved = self._store.load(self.address(epoch))
        except Exception:  # whatever is wrong with a file: the state can be had without it
            return None
        return None if saved is None else saved.state

    def save(self, epoch: int, state: Mapping[str, Any]) -> None:
        """Keep the state after an epoch, if there is room for it."""
        if self._store is None:
            return
        with suppress(OSError, StorageError):
            kept = self._store.directory.glob("*.ckpt")
            if sum(size_of(path) for path in kept) < MOST_BYTES_OF_FOLDER:
                checkpoint = Checkpoint(epoch + 1, None, 0, 0, {}, dict(state))
                self._store.save(self.address(epoch), checkpoint)


def distilled_states(
    starts: ReleasedModels,
    release: Release | None,
    data: SweepData,
    model: nn.Module,
    hparams: Mapping[str, Any],
    *,
    seeds: Mapping[str, int],
    block: int,
    device: str,
) -> DistilledStates:
    """Return where the states of a trial's distillation are kept, if it has one and they are small.

    Facts are the release, the public inputs (pollution included; never the hash of all data, which
    depends on private records), the network of the start with its initial weights, learning rate,
    batch and temperature, seeds, and what computes: versions, device, threads. Not among them:
    processors that have the same vector instructions and round differently, and kernels of a GPU
    that are not deterministic.

    Args:
        starts: The released models of the study's start.
        release: Of the model that teaches; None where there is none.
        data: Of the trial.
        model: The network that is taught, with its initial weights.
        hparams: Of the trial. The states of ``finetune.distill_epochs`` epochs may take
            ``MOST_BYTES`` (64 MiB) together; nothing is kept otherwise.
        seeds: Of initial weights and finetuning, public.
        block: Records that the teacher looks at at once.
        device: ``cpu`` or ``cuda``.
    """
    if release is None or hparams["finetune.recipe"] != "distill":
        return DistilledStates(None, {})
    if hparams["finetune.distill_epochs"] * state_bytes(model) > MOST_BYTES:
        return DistilledStates(None, {})
    network = dict(starts.hparams)
    facts = {
        "format": _FORMAT,
        "dpsweep": __version__,
        "torch": torch.__version__,
        "device": _device_name(device),
        "threads": torch.get_num_threads(),
        "release": release.sha256,
        "records": data.hashes.get("public") or part_hash(data.parts["public"][0]),
        "network": network,
        "initial": weights_hash(model),
        **{key: float(hparams[key]) for key in _SETTINGS},
        "seeds": dict(seeds),
        "block": block,
    }
    if str(network.get("model.name")).startswith("timm/"):
        facts["timm"] = version("timm")
    if is_own(network.get("model.name")):
        facts["code"] = fingerprint(network["model.name"])
    return DistilledStates(release.directory / FOLDER, facts)


def state_bytes(model: nn.Module) -> int:
    """Return what one state takes: the network, and two moments of Adam for all that it trains.

    >>> state_bytes(nn.Linear(3, 2))
    96
    """
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    return sum(value.nbytes for value in model.state_dict().values()) + 2 * trained


def weights_hash(model: nn.Module) -> str:
    """Return the SHA-256 of a network's weights and buffers, and of which of them train."""
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        header = f"{name} {value.dtype} {tuple(value.shape)} {name in trained}\n"
        digest.update(header.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        return f"{device} {torch.cuda.get_device_name(device)}"
    return f"{device} {torch.backends.cpu.get_cpu_capability()}"
