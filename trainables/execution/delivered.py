"""The scores of the model that a trial delivers: its best checkpoint, else its last model.

Value, validation scores and test scores are of one model, the one that is exported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from dpsweep.foundation.errors import SweepError
from dpsweep.trainables.execution.checkpoints import Checkpoint, CheckpointStore
from dpsweep.trainables.method import Method


def named_scores(part: str, values: Mapping[str, float]) -> dict[str, float]:
    """Prefix scores with their part; values that are not finite numbers are left out.

    >>> named_scores("test", {"accuracy": 0.5, "loss": float("nan")})
    {'test/accuracy': 0.5}

    Raises:
        SweepError: An accuracy is no share, by which a study would be led.
    """
    numbers = {name: float(value) for name, value in values.items()}
    if not 0 <= numbers.get("accuracy", 0.0) <= 1 and math.isfinite(numbers["accuracy"]):
        raise SweepError(
            "an accuracy is not between 0 and 1", fix="let evaluate return the share that is right"
        )
    return {f"{part}/{name}": value for name, value in numbers.items() if math.isfinite(value)}


def scores_on_test(
    method: Method,
    store: CheckpointStore | None,
    written: Callable[[], Mapping[str, float]] = dict,
) -> dict[str, float]:
    """Return the test scores of the model that is delivered.

    Whatever the last steps did to the model that is here, it stays as it is. Test records are
    declared public, so looking at them costs nothing; no other record is looked at.

    Args:
        method: With the model that the trial has come to.
        store: Where the best checkpoint is, or None if the model that is here is delivered.
        written: Returns further scores of the model that the method has then.
    """

    def scores() -> dict[str, float]:
        return named_scores("test", {**method.evaluate("test"), **written()})

    best = store.load("best") if store else None
    if best is None:
        return scores()
    here = method.state_dict()
    method.load_state_dict(best.state)
    try:
        return scores()
    finally:
        method.load_state_dict(here)


def delivered_scores(last: Checkpoint | None, best: Checkpoint | None) -> dict[str, float]:
    """Return the scores of the model that would be delivered, by the newer of two checkpoints."""
    if last is None or best is None:
        saved = best or last
        return saved.metrics if saved else {}
    is_newer = (best.step, best.value) != (last.best_step, last.value)
    if is_newer or last.delivered is None:
        return best.metrics
    return last.delivered
