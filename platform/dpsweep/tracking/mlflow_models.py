"""Models in an MLflow store: the exported graph, and the label that travels with it."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsweep.foundation.blotting import blotted
from dpsweep.study.model_graph import ModelGraph
from dpsweep.tracking.labels import downgraded_card
from dpsweep.tracking.model_label import (
    CARD_FILE,
    METADATA,
    ModelLabel,
    given_up,
    metadata_given_up,
)
from dpsweep.tracking.schema import OBJECTIVE, is_of_model

if TYPE_CHECKING:
    from mlflow import MlflowClient


# What a logged model has of its run; the rest of its label is its own.
_CAP = "dp.trial_epsilon"  # of an earlier version, beside a claim that it is not about
_TAGS_OF_RUN = ("dp.private", "dp.records", "dp.validation", "dp.test", "dp.inherited_events")
_MAX_TAG = 8000
DESCRIPTION = "mlflow.note.content"
_DATA = "data"  # folder of a logged model
#: Tag that a version has from the start if dpsweep has made it.
OURS = "dpsweep.trial"
#: Kind of a logged model that is a version of the registry: it takes raw records.
REGISTERED = "dpsweep-registered"


class LoggedModels:
    """The logged models of one experiment: stored once, each with the label that holds.

    A label is in the store (tags and description of the logged model) and in the model's own
    directory (metadata in ``MLmodel``, the privacy card), which goes wherever the model goes.

    Args:
        client: Of the store.
        uri: Of the store.
        experiment_id: The experiment.
    """

    def __init__(self, client: MlflowClient, uri: str, experiment_id: str) -> None:
        self._client, self._uri, self._experiment_id = client, uri, experiment_id

    def of_run(self, run_id: str, kind: str | None = None) -> list[Any]:
        """Return the logged models of a run: its network (None), or ``REGISTERED``."""
        return [model for model in self._all(run_id) if (model.model_type or None) == kind]

    def _all(self, run_id: str) -> list[Any]:
        query = f"source_run_id = '{run_id}'"
        return list(self._client.search_logged_models([self._experiment_id], filter_string=query))

    def _ready(self, run_id: str) -> list[Any]:
        return [model for model in self._all(run_id) if model.status == "READY"]

    def whole(self, run_id: str, kind: str | None = None) -> list[Any]:
        """Return those of ``of_run`` that were stored to their end, and have their files."""
        models = self.of_run(run_id, kind)
        return [model for model in models if model.status == "READY" and self._has_files(model)]

    def _has_files(self, model: Any) -> bool:
        """Say whether a model's files are where the store says: a folder may have been moved."""
        files = self._client.list_logged_model_artifacts(model.model_id)
        return any(file.path == "MLmodel" for file in files)

    def is_stored(self, run_id: str) -> bool:
        """Say whether the model of a run is in the store, whole."""
        return bool(self.whole(run_id))

    def store(
        self,
        name: str,
        run_id: str,
        write: Callable[[Path, Mapping[str, Any]], None],
        constants: Mapping[str, str],
        kind: str | None = None,
    ) -> str:
        """Store a model of a run, unless one of its kind is there, whole; return its id.

        Its parameters are its run's and the ``constants``, which that run leaves to the study's.

        Args:
            name: Of the logged model.
            run_id: Of the trial.
            write: Writes the model to a directory, which it makes, under an identity: arguments of
                MLflow's ``Model``.
            constants: Parameters.
            kind: What of the run it is, as ``of_run`` takes it.
        """
        whole = self.whole(run_id, kind)
        if whole:
            return str(whole[0].model_id)
        pending = [entry for entry in self.of_run(run_id, kind) if entry.status != "READY"]
        if pending:
            entry = pending[0]  # a killed process left it pending: complete it, leave none behind
        else:
            entry = self._client.create_logged_model(
                self._experiment_id,
                name=name,
                source_run_id=run_id,
                params={**constants, **self._client.get_run(run_id).data.params},
                model_type=kind,
            )
        identity = {
            "artifact_path": entry.artifact_location,
            "model_uuid": entry.model_id,
            "run_id": run_id,
            "model_id": entry.model_id,
        }
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model")
            write(path, identity)
            self._client.log_model_artifacts(entry.model_id, str(path))
        self._client.finalize_logged_model(entry.model_id, "READY")
        return str(entry.model_id)

    def label(self, run_id: str, label: ModelLabel) -> list[str]:
        """Give the models of a run, and their versions in the registry, the label that holds now.

        That is none of a claim that the run has lost.

        Returns:
            What could not be done.
        """
        run_tags, models = self._client.get_run(run_id).data.tags, self._ready(run_id)
        for tags in (run_tags, *(model.tags for model in models)):  # a deleted run takes no tag
            if "dp.downgraded" in tags and "dp.downgraded" not in label.tags:
                return self.give_up_claim(run_id, tags["dp.downgraded"])
        own = {name: run_tags[name] for name in _TAGS_OF_RUN if name in run_tags}
        tags, problems = {**label.tags, **own}, []
        for model in models:
            if _CAP in model.tags:
                self._client.delete_logged_model_tag(model.model_id, _CAP)
            self._tag(model.model_id, tags, label.description)
            problems += self._rewrite(model, lambda _: dict(label.metadata), label.card)
        return problems + self._tag_versions(run_id, tags, label.description, is_for_all=False)

    def give_up_claim(self, run_id: str, reason: str) -> list[str]:
        """Take the claim off the models of a run and their versions in the registry.

        Returns:
            What could not be done.
        """
        tags, description = given_up(reason)
        change, card = partial(metadata_given_up, reason=reason), downgraded_card(None, reason)
        problems, lost = [], "are not at their place: wherever they are, they keep the claim"
        for model in self._ready(run_id):
            self._tag(model.model_id, tags, description)
            problems += self._rewrite(model, change, card, if_lost=lost)
        return problems + self._tag_versions(run_id, tags, description, is_for_all=True)

    def _rewrite(
        self,
        model: Any,
        change: Callable[[Mapping[str, Any]], dict[str, Any]],
        card: str,
        if_lost: str = "",
    ) -> list[str]:
        from mlflow.exceptions import MlflowException

        of = f"model {model.model_id}"
        try:
            if not self._has_files(model):
                lost = f"{of}: its files {if_lost} ({model.artifact_location})"
                return [lost] if if_lost else []
            rewrite_label(self._client, self._uri, model.model_id, change, card)
        except (MlflowException, OSError) as error:  # the next launch tries again
            why = blotted(str(error))
            return [f"{of}: its file MLmodel still has the old label, not its tags: {why}"]
        return []

    def _tag(self, model_id: str, tags: Mapping[str, str], description: str) -> None:
        tags = {**tags, DESCRIPTION: fitting_text(description)}
        self._client.set_logged_model_tags(model_id, fitting(tags))

    def _tag_versions(
        self, run_id: str, tags: Mapping[str, str], description: str, *, is_for_all: bool
    ) -> list[str]:
        """Label the versions that dpsweep has made; tag those of users, too, if asked."""
        from mlflow.exceptions import MlflowException

        try:
            for version in versions_of(self._client, run_id):
                is_ours = OURS in version.tags
                if not is_ours and not is_for_all:
                    continue
                for name, text in fitting(tags).items():
                    if version.tags.get(name) != text:
                        self._client.set_model_version_tag(
                            version.name, version.version, name, text
                        )
                text = fitting_text(description)
                if is_ours and version.description != text:
                    self._client.update_model_version(version.name, version.version, text)
        except MlflowException as error:  # the next launch tries again
            why = blotted(str(error))
            return [f"registered versions of run {run_id} still have the old label: {why}"]
        return []

    def link(self, model_id: str, run_id: str, parent: str | None) -> None:
        """Show the model at its run and the study's, with the scores of its own step.

        Not with the run's epsilon, which is that of a trial alone: a number without words would be
        read as the claim. The label has both.
        """
        from mlflow.entities import LoggedModelOutput, Metric

        run = self._client.get_run(run_id)
        histories = {
            name: self._client.get_metric_history(run_id, name) for name in run.data.metrics
        }
        step = histories[OBJECTIVE][-1].step if OBJECTIVE in histories else None
        metrics = []
        for name, points in histories.items():
            own = [p for p in points if step is None or p.step == step]
            if own and (is_of_model(name) or name == OBJECTIVE):
                point = max(own, key=lambda p: (p.step, p.timestamp))
                metrics.append(
                    Metric(name, point.value, point.timestamp, point.step, model_id=model_id)
                )
        self._client.log_batch(run_id, metrics=metrics)
        for linked in [run, *([self._client.get_run(parent)] if parent else [])]:
            if model_id not in [output.model_id for output in linked.outputs.model_outputs]:
                output = LoggedModelOutput(model_id, step=step or 0)
                self._client.log_outputs(linked.info.run_id, [output])


def logged_name(study: str, trial: int) -> str:
    """Return the name of a trial's logged model, in which MLflow takes no dot.

    >>> logged_name("digits_v1.2", 7)
    'digits_v1-2-trial-0007'
    """
    return f"{study.replace('.', '-')}-trial-{trial:04d}"


def versions_of(client: MlflowClient, run_id: str) -> list[Any]:
    """Return the versions in the registry that models of a run are, under whatever names."""
    return list(client.search_model_versions(f"run_id = '{run_id}'"))


def write_model(
    path: Path, identity: Mapping[str, Any], *, graph: ModelGraph, label: ModelLabel
) -> None:
    """Write a network and its label to a directory, which is made.

    Args:
        path: The directory.
        identity: Arguments of MLflow's ``Model``.
        graph: The network.
        label: What the model carries.
    """
    from mlflow.models import Model

    whole = Model(**identity, metadata={METADATA: dict(label.metadata)})
    save_graph(graph, path, whole)
    (path / CARD_FILE).write_text(label.card)


def save_graph(graph: ModelGraph, path: Path, identity: Any = None) -> None:
    """Write a network as ``mlflow.pytorch.save_model`` does in the format ``pt2``, without torch.

    Args:
        graph: The network.
        path: A directory, which is made.
        identity: MLflow's ``Model`` that is written, or None.
    """
    with warnings.catch_warnings():
        # What MLflow says of its own internals is nothing a user can act on.
        warnings.simplefilter("ignore")
        _lay_out(graph, path, identity)


def _lay_out(graph: ModelGraph, path: Path, identity: Any) -> None:
    import mlflow.pyfunc
    import yaml
    from mlflow.models import Model, ModelSignature
    from mlflow.models.utils import _save_example
    from mlflow.types import Schema, TensorSpec
    from mlflow.utils.environment import _mlflow_conda_env, _PythonEnv

    zeros, whole = graph.zeros(), identity or Model()
    inputs = Schema([TensorSpec(zeros.dtype, (-1, *graph.shape))])
    outputs = Schema([TensorSpec(np.dtype(np.float32), (-1,) * graph.rank)])
    (path / _DATA).mkdir(parents=True)
    (path / _DATA / "model.pt2").write_bytes(graph.archive)
    _save_example(whole, zeros, str(path))
    whole.signature = ModelSignature(inputs=inputs, outputs=outputs)
    whole.add_flavor("pytorch", model_data=_DATA, pytorch_version=graph.torch_version, code=None)
    mlflow.pyfunc.add_to_model(
        whole,
        loader_module="mlflow.pytorch",
        data=_DATA,
        conda_env="conda.yaml",
        python_env="python_env.yaml",
        model_config={"device": None},
        pickle_module_name="mlflow.pytorch.pickle_module",  # a name that its loader asks for
    )
    whole.model_size_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    whole.save(str(path / "MLmodel"))
    needed = requirements()
    (path / "requirements.txt").write_text("\n".join(needed))
    conda = _mlflow_conda_env(additional_pip_deps=needed, install_mlflow=False)
    (path / "conda.yaml").write_text(yaml.safe_dump(conda, default_flow_style=False))
    _PythonEnv.current().to_yaml(str(path / "python_env.yaml"))


def rewrite_label(
    client: MlflowClient,
    uri: str,
    model_id: str,
    change: Callable[[Mapping[str, Any]], dict[str, Any]],
    card: str,
) -> None:
    """Replace the label in a logged model's own directory, if it is another one.

    Args:
        client: Of the store.
        uri: Of the store.
        model_id: The logged model.
        change: From the metadata that the model has to those that it is to have.
        card: The privacy card beside it.
    """
    import yaml
    from mlflow.artifacts import download_artifacts

    location = client.get_logged_model(model_id).artifact_location
    with tempfile.TemporaryDirectory() as folder:
        path = Path(
            download_artifacts(
                artifact_uri=f"{location}/MLmodel",
                dst_path=folder,
                tracking_uri=uri,
            )
        )
        stored = yaml.safe_load(path.read_text())
        metadata = stored.get("metadata") or {}
        new = change(metadata.get(METADATA) or {})
        if metadata.get(METADATA) == new:
            return
        stored["metadata"] = {**metadata, METADATA: new}
        path.write_text(yaml.safe_dump(stored, default_flow_style=False))
        beside = path.with_name(CARD_FILE)
        beside.write_text(card)
        for file in (path, beside):
            client.log_model_artifact(model_id, str(file))


def requirements(more: Sequence[str] = ()) -> list[str]:
    """Return what loading an exported graph needs, pinned, without MLflow's slow inference.

    Args:
        more: Names of other installed packages.
    """
    return [f"{name}=={version(name)}" for name in ("mlflow", "torch", "numpy", *more)]


def fitting(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags cut to what MLflow takes."""
    return {name: text[:_MAX_TAG] for name, text in tags.items()}


def fitting_text(card: str) -> str:
    """Return the card as a run description; a longer one ends with a pointer to the whole."""
    if len(card) <= _MAX_TAG:
        return card
    pointer = "\n\n(continued in the artifact privacy_card.md)"
    return card[: _MAX_TAG - len(pointer)].rpartition("\n")[0] + pointer
