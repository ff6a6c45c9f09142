"""The files of pre-trained weights, kept under the address of all they depend on.

DIRECTORY/                  public: nothing in it depends on a private record
  ADDRESS.safetensors       weights, under the names of the network's own definition
  ADDRESS.json              written last: settings, scores of every epoch, SHA-256 of the weights
  ADDRESS.state             while it runs: where to continue, after the last complete epoch
  ADDRESS.lock              held by whoever computes
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.file_paths import FilePath, cache_of, sha256_of


class PretrainedFile:
    """The files of one address.

    Args:
        store: The store: a directory, or a folder in a bucket, of which this node keeps copies.
        address: See ``PretrainSettings.address``.
    """

    def __init__(self, store: FilePath, address: str) -> None:
        self.address = address
        if isinstance(store, Path):
            store.mkdir(parents=True, exist_ok=True)
        directory = store if isinstance(store, Path) else cache_of(store)
        self._store = store
        self.weights = directory / f"{address}.safetensors"
        self.sidecar = directory / f"{address}.json"
        self.state = directory / f"{address}.state"
        self.lock = directory / f"{address}.lock"

    def publish(self) -> FilePath:
        """Return where every node finds the weights, which are there by then.

        Raises:
            StorageError: The bucket cannot be written.
        """
        if isinstance(self._store, Path):
            return self.weights
        content = self.weights.read_bytes()
        target = self._store / f"{sha256_of(content)}.safetensors"
        if target.size() != len(content):
            target.write_bytes(content)
        (self._store / self.sidecar.name).write_bytes(self.sidecar.read_bytes())
        return target

    def _fetch(self) -> None:
        if isinstance(self._store, Path) or self.sidecar.exists():
            return
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            sidecar = (self._store / self.sidecar.name).read_bytes()
            named = f"{json.loads(sidecar)['sha256']}.safetensors"
            write_atomically(self.weights, (self._store / named).read_bytes())
            write_atomically(self.sidecar, sidecar)

    def read(self) -> dict[str, Any] | None:
        """Return what the sidecar says; None if the weights are not there, whole and unchanged."""
        self._fetch()
        try:
            facts = json.loads(self.sidecar.read_text())
            content = self.weights.read_bytes()
        except (FileNotFoundError, ValueError):
            return None
        is_whole = isinstance(facts, dict) and facts.get("sha256") == sha256_of(content)
        return facts if is_whole else None

    def write(
        self, weights: Mapping[str, torch.Tensor], facts: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Put the weights in place, durably, then the sidecar that makes them count; return it."""
        from safetensors.torch import save

        content = save({key: value.contiguous() for key, value in weights.items()})
        write_atomically(self.weights, content)
        facts = {**facts, "sha256": sha256_of(content)}
        write_atomically(self.sidecar, (json.dumps(facts, indent=1) + "\n").encode())
        self.state.unlink(missing_ok=True)
        return facts
