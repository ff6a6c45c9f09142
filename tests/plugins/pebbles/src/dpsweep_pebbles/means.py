"""Nearest noisy mean: a record goes to the class whose released mean it is closest to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from dpsweep.privacy.calibration import gaussian_noise
from dpsweep.privacy.events import EventRun, Gaussian, Plan
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.method import Method, PlanContext, RunContext

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import SweepData


class PebbleMeans(Method):
    """Sums of clipped records by class, released with Gaussian noise; no gradient is taken.

    Guarantees:
        Each release is one Gaussian mechanism: a record is in one sum, with an L2 norm of at most
        ``clip.max_norm``, and the divisor is declared. Add-or-remove-one only.
    """

    name: ClassVar[str] = "pebble_means"
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = (
        Hyperparameter(
            "release.count", "int", 1, "Releases that are averaged.", low=1, changes_privacy=True
        ),
        Hyperparameter(
            "clip.max_norm", "float", 1.0, "L2 bound on a record.", low=0, open_low=True
        ),
    )

    @classmethod
    def plan(cls, hparams: Mapping[str, Any], context: PlanContext) -> Plan:
        """Return the releases, with the noise that the whole budget allows."""
        count = hparams["release.count"]
        noise = gaussian_noise(context.budget, steps=count, accountant=context.accountant)
        return Plan((EventRun(Gaussian(noise), count=count),))

    def prepare(
        self, data: SweepData, hparams: Mapping[str, Any], plan: Plan, context: RunContext
    ) -> None:
        """Keep the records at hand; none is looked at."""
        import torch

        from dpsweep.trainables.gradients.noise import SecretNoise

        self._data, self._plan, self._max_norm = data, plan, float(hparams["clip.max_norm"])
        features = 1
        for side in data.info.input_shape:
            features *= side
        self._total = torch.zeros(data.info.num_classes, features)
        self._position = 0
        self._noise = SecretNoise("cpu")

    def _execute(self, position: int) -> None:
        """Release the sums once."""
        import torch

        from dpsweep.trainables.data.dataset import part_tensors

        inputs, labels = part_tensors(self._data, "private")
        x = inputs.flatten(1)
        x = x * (self._max_norm / x.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)
        sums = torch.zeros_like(self._total).index_add_(0, labels, x)
        event = self._plan.at(position)
        assert isinstance(event, Gaussian)
        self._total += self._noise.release(sums, event.noise_multiplier, self._max_norm)

    def _model(self) -> torch.nn.Module:
        import torch

        info = self._data.info
        means = self._total / max(self._position, 1) * info.num_classes / info.num_private
        linear = torch.nn.Linear(means.shape[1], means.shape[0])
        with torch.no_grad():
            linear.weight.copy_(means)
            linear.bias.copy_(-means.square().sum(dim=1) / 2)
        return torch.nn.Sequential(torch.nn.Flatten(), linear).eval()

    def evaluate(self, part: str) -> dict[str, float]:
        """Return accuracy and cross entropy on a part."""
        import torch

        from dpsweep.trainables.data.dataset import part_tensors

        inputs, labels = part_tensors(self._data, part)
        with torch.no_grad():
            scores = self._model()(inputs)
            loss = torch.nn.functional.cross_entropy(scores, labels)
        correct = (scores.argmax(dim=1) == labels).double().mean()
        return {"accuracy": float(correct), "loss": float(loss)}

    def state_dict(self) -> dict[str, Any]:
        """Return what was released so far."""
        return {"total": self._total.clone(), "position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what was released."""
        self._total, self._position = state["total"].clone(), int(state["position"])

    def export(self) -> torch.nn.Module:
        """Return the linear model of the means."""
        return self._model()
