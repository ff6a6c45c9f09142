"""A sweep's plan as one object: what ``dpsweep plan`` shows, for programs and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dpsweep.cli.memory_words import memory_warnings, memory_words
from dpsweep.cli.plan_words import plan_words
from dpsweep.cli.tables import wrapped
from dpsweep.planning.costs.dataset import DatasetLeft, dataset_left
from dpsweep.planning.forecast import Estimate, estimate
from dpsweep.planning.preflight import Preflight, preflight, valid
from dpsweep.planning.pretrain import plan_pretraining
from dpsweep.planning.sample import Sample, draw_sample
from dpsweep.planning.summary import PlanSummary, summarize_plan
from dpsweep.spec.study import SweepSpec
from dpsweep.study.launched import launch_note

_COLUMNS = 100


def plan_sweep(spec: SweepSpec) -> SweepPlan:
    """Say what a sweep will do and cost, before anything starts: ``dpsweep plan`` in Python.

    ``print`` it for its sentences; ``to_dict`` has every figure. It takes some seconds: plans are
    those of configurations drawn from the space, time and disk are measured with a few steps on
    made-up records.

    Guarantees:
        No private record is opened but a ``labels.csv``, and of texts the validation and test files
        of their own, and nothing is charged. Epsilons are those of ``SweepPlan.summary``, with
        their terms. What is claimed is decided by the run.

    Args:
        spec: A valid spec.
    Raises:
        BadInputError: Bad input, or something that cannot be had (``SpecError``, ``DataError``,
            ``ModelError``); ``InfeasibleBudgetError``: no configuration has a plan.
    """
    checked = preflight(valid(spec))
    checked.check_some_plan()
    return planned(checked)


def planned(checked: Preflight, on_stage: Callable[[str], None] = lambda _: None) -> SweepPlan:
    """Return the plan of a checked spec; its sample may be empty.

    Args:
        checked: The checked spec.
        on_stage: Hears of each step that takes seconds.
    """
    on_stage("planning configurations of the space")
    sample = draw_sample(checked)
    summary = summarize_plan(checked, sample)
    on_stage("measuring a few steps on made-up records")
    return SweepPlan(
        checked=checked,
        sample=sample,
        summary=summary,
        estimate=estimate(checked, sample.tasks, num_trials=summary.num_trials),
        pretrain=plan_pretraining(checked.spec),
        dataset=dataset_left(checked, summary.study_epsilon),
        refused=launch_note(checked.spec),
    )


@dataclass(frozen=True, repr=False)
class SweepPlan:
    """A sweep's work and cost, before it runs; shown as its sentences.

    Attributes:
        checked: The checked spec.
        sample: Planned configurations of the space.
        summary: Figures of the plan: trials, steps, noise, epsilons with their terms.
        estimate: Rough time, disk and memory.
        pretrain: A sentence on weights that are trained on public records first, or empty.
        dataset: What the dataset's budget has left; None where the spec names no ledger of it.
        refused: Why a run is refused for the study that is there already, or empty.
    """

    checked: Preflight
    sample: Sample
    summary: PlanSummary
    estimate: Estimate
    pretrain: str
    dataset: DatasetLeft | None
    refused: str = ""

    @property
    def notes(self) -> list[str]:
        """What is valid, but hardly meant so, or not to be run where a study is already."""
        refused = [self.refused] if self.refused else []
        return [*self.checked.notes, *refused, *self.summary.notes]

    @property
    def sentences(self) -> list[str]:
        """What the sweep will do, take and claim, in words; without a plan nothing."""
        if not self.sample.tasks:
            return []
        forecast = self.estimate.to_dict()
        words = plan_words(self.checked, self.summary, forecast, self.dataset)
        return [*words, *memory_words(self.checked, self.estimate)]

    def to_dict(self) -> dict[str, Any]:
        """Return the record that ``dpsweep plan --json`` prints (a stable interface)."""
        return {
            **self.summary.to_dict(),
            "pretrain": self.pretrain or None,
            "estimate": self.estimate.to_dict(),
            "methods": [method_row(self.sample, name) for name in sorted(self.checked.methods)],
            "dataset_ledger": self.dataset.to_dict() if self.dataset else None,
            "refused": self.refused or None,
        }

    def __repr__(self) -> str:
        notes = [f"note: {note}" for note in self.notes]
        lines = [*notes, *memory_warnings(self.estimate.memory), *self.sentences]
        return "\n".join(line for text in lines for line in wrapped(text, _COLUMNS))


def method_row(sample: Sample, name: str) -> dict[str, Any]:
    """Return what the sampled configurations of one method plan: smallest and largest figures."""
    tasks = [task for task in sample.tasks if task.method == name]

    def span(values: Sequence[float]) -> list[float] | None:
        return [min(values), max(values)] if values else None

    noise = [
        run.event.noise_multiplier
        for task in tasks
        for run in task.plan.runs
        if hasattr(run.event, "noise_multiplier")
    ]
    return {
        "method": name,
        "configurations_with_a_plan": len(tasks),
        "steps_per_trial": span([len(task.plan) for task in tasks]),
        "noise_multiplier": span(noise),
        "epsilon_per_trial": span([task.planned_epsilon for task in tasks if task.is_private]),
    }
