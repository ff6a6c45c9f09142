"""Configurations of a method, trained in this process as trials are, without a study around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.spec.study import DataSpec
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.data.loading import load_dataset
from dpsweep.trainables.method import PlanContext, RunContext

DELTA = 1e-5


class Task:
    """Records of a built-in dataset, so many of them in each part."""

    def __init__(self, dataset: str, *, num_validation: int, num_test: int) -> None:
        spec = DataSpec(dataset=dataset, validation={"fraction": 0.1, "visibility": "public"})
        data = load_dataset(spec)
        parts = dict(data.parts)
        for part, count in (("validation", num_validation), ("test", num_test)):
            parts[part] = tuple(values[:count] for values in parts[part])
        self.data: SweepData = replace(data, parts=parts)


def train(
    task: Task, name: str, given: Mapping[str, Any], *, epsilon: float, seed: int
) -> dict[str, float]:
    """Return the accuracies of one configuration on validation and test records."""
    method, data = TRAINABLES[name], task.data
    context = PlanContext(
        PrivacyBudget(epsilon, DELTA), "pld", data.info.num_private, given=frozenset(given)
    )
    hparams = method.complete(resolve(method.hyperparameters, given), context)
    plan = method.plan(hparams, context)
    trial = method()
    trial.prepare(data, hparams, plan, RunContext(seed, 0))
    trial.run(0, len(plan))
    return {part: trial.evaluate(part)["accuracy"] for part in ("validation", "test")}


def differences(rows: Sequence[Mapping[str, Any]], *, of: str) -> Iterator[str]:
    """Yield lines of a table: each variant at its best value of ``of`` on validation records."""
    yield f"| epsilon | variant | {of} | test accuracy | spread | over the first |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for epsilon in dict.fromkeys(row["epsilon"] for row in rows):
        here = [row for row in rows if row["epsilon"] == epsilon]
        bases: list[float] = []
        for variant in dict.fromkeys(row["variant"] for row in here):
            own = [row for row in here if row["variant"] == variant]
            means = {
                value: np.mean([row["validation"] for row in own if row[of] == value])
                for value in dict.fromkeys(row[of] for row in own)
            }
            best = max(means, key=lambda value: means[value])
            tests = [row["test"] for row in own if row[of] == best]
            bases = bases or tests
            over = [100 * (test - plain) for test, plain in zip(tests, bases)]
            yield (
                f"| {epsilon:g} | {variant} | {best:g} | {100 * np.mean(tests):.2f} | "
                f"{100 * np.std(tests, ddof=1):.2f} | {np.mean(over):+.2f} "
                f"({', '.join(f'{each:+.2f}' for each in over)}) |"
            )
