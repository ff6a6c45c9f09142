"""The scores of a trial that may leave its actor; a noisy one is charged before it is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dpsweep.foundation.errors import described, is_own, is_signal
from dpsweep.foundation.words import counted
from dpsweep.ledgers.trial import TrialLedger
from dpsweep.privacy.events import EventRun, Gaussian, Plan
from dpsweep.privacy.randomness import secret_numpy_generator
from dpsweep.study.trial import TrialTask
from dpsweep.trainables.data.tasks import failing_alone
from dpsweep.trainables.devices.failures import NoRoomError
from dpsweep.trainables.execution.checkpoints import CheckpointStore
from dpsweep.trainables.execution.delivered import named_scores, scores_on_test
from dpsweep.trainables.execution.settings import NOT_RELEASED, ExecutionSettings
from dpsweep.trainables.gradients.noise import noisy_accuracy
from dpsweep.trainables.hooks import PublicScores
from dpsweep.trainables.method import Method
from dpsweep.trainables.networks.pretrained.generation import generation_scores

if TYPE_CHECKING:
    from dpsweep.trainables.data.dataset import SweepData


class TrialScores:
    """Scores of the model that a trial has come to.

    Guarantees:
        Exact scores on validation records leave only where the study's ``validation`` is
        ``exact``. A noisy one is charged first, and there are never more of them than the task's
        ``validation_plan`` holds, nor than the ledger affords. Nothing else about its records
        leaves with it: where it cannot be computed it is noise around 0. That there is no room for
        a block of made-up records is told. Not covered: an ``evaluate`` of another package whose
        count one record moves by more than 1, as by an error.

    Args:
        method: With the model.
        data: The trial's records.
        task: The admitted trial.
        settings: What the study's trials share.
        ledger: The trial's.

    Attributes:
        missing: Part -> why its latest scores could not be computed.
    """

    def __init__(
        self,
        method: Method,
        data: SweepData,
        task: TrialTask,
        settings: ExecutionSettings,
        ledger: TrialLedger,
    ) -> None:
        self._method, self._data, self._task = method, data, task
        self._settings, self._ledger = settings, ledger
        self._noise = secret_numpy_generator()
        self.missing: dict[str, str] = {}
        self._dropped: set[str] = set()

    @property
    def note(self) -> str:
        """A line on how many scores of the method stay here; a name may be a record's."""
        number = len({name.partition("/")[2] for name in self._dropped})
        return f"its method returns {counted(number, 'score')} {NOT_RELEASED}" if number else ""

    def now(self) -> dict[str, float]:
        """Return the validation scores that may leave the actor, and the public ones."""
        scores = self._on_validation()
        if isinstance(self._method, PublicScores):
            own = self._method.public_scores
            scores |= self._computed("public", lambda: named_scores("public", own()))
        return scores

    def _on_validation(self) -> dict[str, float]:
        if self._settings.validation == "exact":
            return self._evaluate("validation")
        if self._settings.validation == "hidden" or not self.affords_a_noisy_one():
            return {}
        self._ledger.release(self.release())
        self.missing.pop("validation", None)
        try:
            num_correct = self._num_correct()
        except NoRoomError as error:
            self.missing["validation"] = described(error)
            return {}
        score = noisy_accuracy(
            num_correct,
            num_declared=self._data.info.num_validation,
            noise_multiplier=self._noise_multiplier,
            generator=self._noise,
        )
        return {"validation/accuracy": score}

    def _num_correct(self) -> int:
        """Return how many validation records are classified correctly; 0 where that is no number.

        A record that the model fails on moves it by 1 at most, as every other. What a method of
        another package computes may be no number for one record's sake, which the noise does not
        hide; at least nothing else tells of it: not that a score is missing, nor why.

        Raises:
            NoRoomError: There is no room for a block of made-up records.
        """
        num_records = len(self._data.parts["validation"][1])
        try:
            with failing_alone():
                scores = named_scores("validation", self._method.evaluate("validation"))
        except BaseException as error:
            is_of_none = isinstance(error, NoRoomError) and is_own(error)
            if is_of_none or is_signal(error):
                raise
            return 0
        correct = num_records * scores.get("validation/accuracy", 0.0)
        is_whole = abs(correct - round(correct)) <= min(1e-6 * num_records + 1e-9, 0.1)
        return round(correct) if is_whole else 0

    def on_test(self, store: CheckpointStore | None) -> dict[str, float]:
        """Return the test scores of the model that is delivered; see ``scores_on_test``."""
        return self._computed("test", lambda: scores_on_test(self._method, store, self._written))

    def _written(self) -> dict[str, float]:
        """Return the scores of texts that the model writes (``data.test.generation``), if it does.

        Its test records are public, as the spec's check sees to.
        """
        text = self._data.info.text
        if text is None or text.generation is None:
            return {}
        device, block = self._settings.device, int(self._task.hparams["batch.physical"])
        model = self._method.export().to(device)
        return generation_scores(model, self._data, block=block, device=device)

    def _evaluate(self, part: str) -> dict[str, float]:
        """Return the exact scores of the model that is here; none where they fail."""
        scores = self._computed(part, lambda: named_scores(part, self._method.evaluate(part)))
        metric = self._settings.metric
        if metric.startswith(f"{part}/") and metric not in scores:
            self.missing.setdefault(part, f"evaluate has returned no finite {metric}")
        return scores

    def _computed(self, part: str, scores: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Return the scores on a part that may leave; none where they cannot be computed.

        What has been trained is paid for: a score that fails is missing, and does not fail the
        trial. The report says why, by the kind of error and its place alone.
        """
        self.missing.pop(part, None)
        try:
            computed = scores()
        except BaseException as error:
            if is_signal(error):
                raise
            self.missing[part] = described(error)
            return {}
        allowed = self._settings.released
        if allowed is None:
            return computed
        self._dropped |= set(computed) - allowed
        return {name: value for name, value in computed.items() if name in allowed}

    @property
    def _noise_multiplier(self) -> float:
        assert self._settings.validation_noise is not None
        return self._settings.validation_noise

    def release(self, count: int = 1) -> Plan:
        """Return the events of noisy scores on validation records."""
        event = Gaussian(self._noise_multiplier)
        return Plan((EventRun(event, count=count, phase="score", part="validation"),))

    def affords_a_noisy_one(self) -> bool:
        """Say whether one more noisy score may be released; after retries it may not."""
        if self._settings.validation != "noisy":
            return False
        num_released = len(self._ledger.spent.part("validation"))
        is_planned = num_released < len(self._task.validation_plan)
        return is_planned and self._ledger.affords(self.release())
