"""Noise against gradient by layer: of a study's trial, from its declared public records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import BadInputError, StorageError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.foundation.words import counted
from dpsweep.results.origins import reading_data, supplies_of
from dpsweep.results.study import SweepResult
from dpsweep.study.files import StudyFiles
from dpsweep.study.trial import TrialTask
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.loading import describe_dataset, load_records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpsweep.spec.study import SweepSpec
    from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
    from dpsweep.trainables.data.supplies import Supplies
    from dpsweep.trainables.gradients.layer_noise import LayerNoise, NoiseFigures

At = Literal["initial", "best"]
#: Public records that gradients are estimated from, where nobody says how many.
NUM_RECORDS = 256
#: Colours of the paper's figure 3.
_COLOURS = {"conv": "tab:blue", "norm": "tab:green", "cls": "tab:red", "other": "tab:gray"}


@dataclass(frozen=True)
class TrialLayers:
    """The figures of one trial, and what they are of.

    Attributes:
        study: Name of the study.
        trial: Trial number.
        method: Name of its method.
        model: Network, as in a spec.
        at: Whether the weights are the initial ones or the best trained ones.
        figures: What one step does to each layer.
    """

    study: str
    trial: int
    method: str
    model: str
    at: At
    figures: NoiseFigures

    def to_dict(self) -> dict[str, Any]:
        """Return the record that ``dpsweep layers --json`` prints (a stable interface)."""
        head = {key: getattr(self, key) for key in ("study", "trial", "method", "model", "at")}
        return {**head, **self.figures.to_dict()}

    def title(self) -> str:
        """Return one line that says what the figures are of."""
        now = self.figures
        return (
            f"{self.study}, trial {self.trial} ({self.method}, {self.model}), {self.at} weights: "
            f"sigma={now.noise_multiplier:.3g}, C={now.max_grad_norm:g}, expected batch "
            f"{now.expected_batch:g}, {counted(now.num_records, 'public record')}"
        )


def study_layers(
    result: SweepResult,
    data: SweepData,
    *,
    trial: int | None = None,
    at: At = "initial",
    num_records: int = NUM_RECORDS,
) -> TrialLayers:
    """Return the figures of a study's best trial, or of another one.

    Args:
        result: The study.
        data: Its records (``study_records``); the method is handed the public ones alone.
        trial: Trial number; None: the best finished one.
        at: Weights before the first step, or those of the best checkpoint.
        num_records: Public records to estimate gradients from, at most.
    Raises:
        BadInputError: See ``check_layers``; or there is no such trial, or its method is no DP-SGD.
        NothingWithinBudgetError: No trial has finished.
    """
    check_layers(result.spec, data.info)
    if trial is not None:
        result.refuse_unknown(trial)
    number = result.best().trial_id if trial is None else trial
    task = result.files.task(number)
    _check_method(task)
    supplies = supplies_of(result.spec, result.files, result.view)
    return _layers_of(result.spec, result.files, task, data, supplies, at, num_records)


def study_records(result: SweepResult) -> SweepData:
    """Return the records of a study.

    Raises:
        BadInputError: See ``check_layers``; nothing is read then.
        DataError: The data cannot be read any more.
    """
    spec = result.spec
    with reading_data(spec):
        check_layers(spec, describe_dataset(spec.data))
        return load_records(spec)


def check_layers(spec: SweepSpec, info: DatasetInfo) -> None:
    """Refuse studies whose layers cannot be looked at without private records.

    Args:
        spec: Of the study.
        info: Declared sizes of its data.

    Raises:
        BadInputError: The study has no declared public records, or its accounting is ``select``.
    """
    if spec.privacy.mode.is_sealed:
        raise BadInputError(
            f"study {spec.name!r} has accounting select, which keeps no figure of a trial",
            because="its epsilon covers the winner's configuration, score and model alone",
            fix="run one trial of that configuration in a study of its own",
        )
    if info.num_public == 0:
        raise BadInputError(
            f"study {spec.name!r} declares no public records, and gradients of private ones are "
            "private",
            fix="declare some in a new study, if they are public: data.public.fraction: 0.05",
        )
    if info.public_labels != "known":
        raise BadInputError(
            f"study {spec.name!r} has public records whose labels are {info.public_labels}, and "
            "gradients need them",
            fix="say data.public.labels: known in a new study, where they are",
        )


def finished_trials() -> ModuleType:
    """Return the module that rebuilds trials; it loads torch, which takes more than a second."""
    from dpsweep.trainables.execution.finished import trials

    return trials


def _check_method(task: TrialTask) -> None:
    able = [name for name in TRAINABLES if finished_trials().has_noise_figures(TRAINABLES[name])]
    if task.method not in able:
        raise BadInputError(
            f"trial {task.trial} is of method {task.method}, which is not DP-SGD on a network",
            fix=f"name another trial: {', '.join(able)} have these figures",
        )


def _layers_of(
    spec: SweepSpec,
    files: StudyFiles,
    task: TrialTask,
    data: SweepData,
    supplies: Supplies,
    at: At,
    num_records: int,
) -> TrialLayers:
    figures = finished_trials().trial_noise(
        task,
        data,
        supplies=supplies,
        study_seed=spec.seed,
        num_records=num_records,
        checkpoints=files.trial(task.trial) if at == "best" else None,
    )
    model = str(task.hparams["model.name"])
    return TrialLayers(files.name, task.trial, task.method, model, at, figures)


def save_layers_figure(
    spec: SweepSpec, files: StudyFiles, task: TrialTask, data: SweepData, supplies: Supplies
) -> list[FilePath]:
    """Draw a trial's figures at its initial weights beside its checkpoints.

    Returns:
        The PNG file; nothing where ``dpsweep layers`` would refuse the trial.
    Raises:
        SweepError: The gradients of its network cannot be computed.
    """
    try:
        check_layers(spec, data.info)
        _check_method(task)
    except BadInputError:
        return []
    layers = _layers_of(spec, files, task, data, supplies, "initial", NUM_RECORDS)
    path = files.trial(task.trial) / "layers.png"
    write_figure(layers, path)
    return [path]


def write_figure(layers: TrialLayers, path: FilePath) -> None:
    """Write ``draw`` to a file; the name ends as one of matplotlib's formats, such as .png.

    Raises:
        BadInputError: The format is unknown, or the file cannot be written.
    """
    figure = draw(layers)
    kind = path.suffix.removeprefix(".").lower()
    formats = figure.canvas.get_supported_filetypes()
    if kind not in formats:
        raise BadInputError(
            f"cannot draw {path.name}: unknown format {kind!r}", fix=f"one of {', '.join(formats)}"
        )
    buffer = BytesIO()
    figure.savefig(buffer, format=kind, dpi=150)
    try:
        write_atomically(path, buffer.getvalue())
    except StorageError as error:
        raise BadInputError(error.message) from error


def draw(layers: TrialLayers) -> Figure:
    """Return figures 3 and 4 of Luo et al. 2021: ratio by layer, and trainable share by layer."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = layers.figures.layers
    figure = Figure(figsize=(max(6.4, 1.5 + 0.16 * len(rows)), 7.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    places = range(len(rows))
    colours = [_COLOURS[row.kind] for row in rows]
    above.bar(places, _finite_ratios(rows), color=colours)
    above.set_yscale("log")
    above.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
    above.set_ylabel("noise / gradient")
    above.set_title(layers.title(), fontsize="small", wrap=True)
    kinds = [kind for kind in _COLOURS if any(row.kind == kind for row in rows)]
    handles = [Patch(color=_COLOURS[kind], label=kind) for kind in kinds]
    figure.legend(handles=handles, loc="outside lower right", ncols=len(kinds))
    below.bar(places, [100.0 * row.share for row in rows], color=colours)
    below.set_ylabel("trainable entries, %")
    below.set_xlim(-1, len(rows))
    below.set_xticks(list(places), [row.layer or "(network)" for row in rows])
    below.tick_params(axis="x", rotation=90, labelsize=5)
    return figure


def _finite_ratios(rows: Sequence[LayerNoise]) -> list[float]:
    """Return heights of bars; none where nothing trains or the gradient is zero."""
    ratios = [row.ratio for row in rows]
    return [r if r is not None and 0 < r < float("inf") else float("nan") for r in ratios]
