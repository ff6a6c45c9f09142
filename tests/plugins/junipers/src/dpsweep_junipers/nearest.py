"""What both methods share: a record belongs to the class whose mean is nearest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpsweep.privacy.events import Plan
from dpsweep.trainables.method import Method, RunContext

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import SweepData


def linear_model(means: torch.Tensor) -> torch.nn.Module:
    """Return the linear model of the nearest mean, means of shape (classes, features)."""
    import torch

    linear = torch.nn.Linear(means.shape[1], means.shape[0])
    with torch.no_grad():
        linear.weight.copy_(means)
        linear.bias.copy_(-means.square().sum(dim=1) / 2)
    return torch.nn.Sequential(torch.nn.Flatten(), linear).eval()


class NearestMean(Method):
    """A method whose model is a mean for each class."""

    def prepare(
        self, data: SweepData, hparams: Mapping[str, Any], plan: Plan, context: RunContext
    ) -> None:
        """Keep the records at hand; none is looked at."""
        from dpsweep.trainables.gradients.noise import SecretNoise

        self._data, self._plan, self._hparams = data, plan, hparams
        self._num_features = 1
        for side in data.info.input_shape:
            self._num_features *= side
        self._position = 0
        self._noise = SecretNoise("cpu")

    @abstractmethod
    def _means(self) -> torch.Tensor:
        """Return the mean of each class as released so far, (classes, features)."""

    def evaluate(self, part: str) -> dict[str, float]:
        """Return accuracy and cross entropy on a part."""
        import torch

        from dpsweep.trainables.data.dataset import part_tensors

        inputs, labels = part_tensors(self._data, part)
        with torch.no_grad():
            scores = self.export()(inputs)
            loss = torch.nn.functional.cross_entropy(scores, labels)
        correct = (scores.argmax(dim=1) == labels).double().mean()
        return {"accuracy": float(correct), "loss": float(loss)}

    def export(self) -> torch.nn.Module:
        """Return the linear model of the means."""
        return linear_model(self._means())
