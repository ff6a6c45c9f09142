"""The choice of the public records that get a label, by private votes or by public records alone.

Zhao et al. 2020 (https://arxiv.org/abs/1910.01177, sections 3.1 to 3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dpsweep.privacy.events import Gaussian, Laplace
from dpsweep.privacy.randomness import secret_numpy_generator
from dpsweep.trainables.data.dataset import SweepData, part_tensors
from dpsweep.trainables.gradients.clipping import noise_bound
from dpsweep.trainables.methods.active_learning import nearest_votes as votes
from dpsweep.trainables.methods.active_learning.dp_pca import (
    principal_components,
    symmetric_noise,
)
from dpsweep.trainables.methods.active_learning.embeddings import embed, project
from dpsweep.trainables.methods.active_learning.selectors import (
    diverse_public,
    most_uncertain,
    random_rows,
    uncertainty,
)
from dpsweep.trainables.methods.second_moments import second_moment

_NUM_CENTRAL = 100


class LabelChoice:
    """Chooses rows of the public records; see ``ActiveLearning`` for what is released on the way.

    Args:
        start: The released network, on the device.
        data: The trial's records.
        hparams: Every hyperparameter of active learning.
        seed: From a purpose to a public seed.
        block: Records that are looked at at once.
        device: ``cpu`` or ``cuda``.

    Attributes:
        rows: The chosen rows, int64 (labels.max,), once they are chosen.
        central: Some of them, for pictures: the first ones, or the centres of clusters.
    """

    def __init__(
        self,
        start: torch.nn.Module,
        data: SweepData,
        hparams: Mapping[str, Any],
        *,
        seed: Callable[[str], int],
        block: int,
        device: str,
    ) -> None:
        self._start, self._data, self._hparams = start, data, hparams
        self._seed, self._block, self._device = seed, block, device
        self._public = part_tensors(data, "public")[0]
        self._noise = secret_numpy_generator()
        self._directions: torch.Tensor | None = None
        self.rows: torch.Tensor | None = None
        self.central: torch.Tensor | None = None

    def state_dict(self) -> dict[str, torch.Tensor | None]:
        """Return directions and rows, all released or public."""
        return {"directions": self._directions, "rows": self.rows, "central": self.central}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned; secret randomness goes on afresh."""
        self._directions, self.rows = state["directions"], state["rows"]
        self.central = state["central"]

    def _embed(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return embed(self._start, x, block=self._block, device=self._device)

    def _private(self) -> torch.Tensor:
        return part_tensors(self._data, "private")[0]

    def release_directions(self, event: Gaussian) -> None:
        """DP-PCA of the private embeddings: the one place where their moment is looked at."""
        rows, _ = self._embed(self._private())
        moment = second_moment(rows)
        scale = event.noise_multiplier * noise_bound(1.0, self._data.info.num_private)
        noise = symmetric_noise(len(moment), scale, self._noise)
        self._directions = principal_components(
            moment + noise, int(self._hparams["select.components"])
        )

    def release_votes(self, event: Laplace) -> None:
        """Let private records vote for candidates, and keep those with the most noisy votes."""
        assert self._directions is not None
        kind, by = self._hparams["select.voters"], self._hparams["select.uncertainty"]
        wanted = int(self._hparams["select.candidates"])
        public, logits = self._embed(self._public)
        doubt = uncertainty(logits, by)
        candidates = most_uncertain(doubt, wanted)
        private, logits = self._embed(self._private())
        may_vote = votes.voters(
            kind,
            uncertainty(logits, by),
            threshold=float(doubt[candidates[-1]]),
            k=wanted,
        )
        chosen = votes.nearest(
            project(private, self._directions, block=self._block)[may_vote],
            project(public[candidates], self._directions, block=self._block),
        )
        counts = votes.counts(chosen, len(candidates))
        noisy = votes.noisy_counts(counts, event.scale * votes.SENSITIVITY[kind], self._noise)
        self._keep(candidates[votes.largest(noisy, int(self._hparams["labels.max"]))])

    def _keep(self, rows: torch.Tensor) -> torch.Tensor:
        self.rows, self.central = rows, rows[:_NUM_CENTRAL]
        return rows

    def rows_by_public_records(self) -> torch.Tensor:
        """Return the rows; if votes have not chosen them, public records and the start do."""
        if self.rows is not None:
            return self.rows
        hparams, num = self._hparams, int(self._hparams["labels.max"])
        kind = hparams["select.by"]
        if kind == "random":
            return self._keep(random_rows(len(self._public), num, self._seed("labels")))
        rows, logits = self._embed(self._public)
        if kind != "diverse_public":
            return self._keep(most_uncertain(uncertainty(logits, kind), num))
        clusters = min(int(hparams["select.clusters"]), num)
        each = hparams["select.each"] or -(-num // clusters)
        diverse = diverse_public(
            rows,
            uncertainty(logits, hparams["select.uncertainty"]),
            num_uncertain=int(hparams["select.candidates"]),
            num_components=int(hparams["select.components"]),
            num_clusters=clusters,
            num_each=int(each),
            seed=self._seed("clusters"),
        )
        self.rows, self.central = diverse.first(num), diverse.central
        return self.rows
