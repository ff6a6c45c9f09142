"""Prefix sums of clipped records from one noisy tree: the first position pays for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from dpsweep.privacy.calibration import gaussian_noise
from dpsweep.privacy.events import EventRun, NonPrivate, Plan
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.method import PlanContext
from dpsweep_junipers.nearest import NearestMean
from dpsweep_junipers.tree import TreeSums, depth_of

if TYPE_CHECKING:
    import torch


class JuniperSums(NearestMean):
    """Sums of clipped records by class over batches in a fixed order; the model follows them.

    Guarantees:
        Position 0 releases every node of the tree and is the one event on private records; the
        positions after it read the released nodes alone, and are free.
    """

    name: ClassVar[str] = "juniper_sums"
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = (
        Hyperparameter("tree.leaves", "int", 8, "Batches.", low=2, changes_privacy=True),
        Hyperparameter(
            "clip.max_norm", "float", 1.0, "L2 bound on a record.", low=0, open_low=True
        ),
    )

    @classmethod
    def plan(cls, hparams: Mapping[str, Any], context: PlanContext) -> Plan:
        """Return the tree, with the noise of as many Gaussians as it is deep; then free steps."""
        leaves = hparams["tree.leaves"]
        noise = gaussian_noise(
            context.budget, steps=depth_of(leaves), accountant=context.accountant
        )
        # More by the rounding of depth / noise^2.
        tree = EventRun(TreeSums(noise * (1 + 1e-9), leaves), phase="tree")
        return Plan((tree, EventRun(NonPrivate(), count=leaves - 1, part="public")))

    def prepare(self, *args: Any) -> None:
        """Begin without a node."""
        super().prepare(*args)
        self._nodes: dict[tuple[int, int], torch.Tensor] = {}

    def _execute(self, position: int) -> None:
        event = self._plan.at(position)
        if isinstance(event, TreeSums):
            self._release(event)

    def _release(self, event: TreeSums) -> None:
        import torch

        from dpsweep.trainables.data.dataset import part_tensors

        inputs, labels = part_tensors(self._data, "private")
        max_norm = float(self._hparams["clip.max_norm"])
        x = inputs.flatten(1)
        x = x * (max_norm / x.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)
        classes = self._data.info.num_classes
        leaf = torch.arange(len(labels)) % event.leaves
        sums = torch.zeros(event.leaves * classes, self._num_features)
        level = list(sums.index_add_(0, leaf * classes + labels, x).view(event.leaves, classes, -1))
        for height in range(event.depth):
            for index, node in enumerate(level):
                noise = self._noise.like(node, event.noise_multiplier * max_norm)
                self._nodes[height, index] = node + noise
            pairs = zip(level[::2], [*level[1::2], torch.zeros_like(level[0])])
            level = [left + right for left, right in pairs]

    def _means(self) -> torch.Tensor:
        """Return the sum of the first leaves, from one node for each bit of their number."""
        leaves, total = self._position, 0
        sums = next(iter(self._nodes.values())).new_zeros(())
        for height in reversed(range(leaves.bit_length())):
            if leaves >> height & 1:
                sums = sums + self._nodes[height, total >> height]
                total += 1 << height
        info = self._data.info
        share = info.num_private * leaves / self._hparams["tree.leaves"]
        return sums * info.num_classes / share

    def state_dict(self) -> dict[str, Any]:
        """Return the released nodes."""
        nodes = {f"{h}.{i}": node.clone() for (h, i), node in self._nodes.items()}
        return {"nodes": nodes, "position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self._nodes = {
            (int(key.split(".")[0]), int(key.split(".")[1])): node.clone()
            for key, node in state["nodes"].items()
        }
        self._position = int(state["position"])
