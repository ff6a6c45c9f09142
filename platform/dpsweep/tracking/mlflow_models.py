"""The directory of a logged model: the exported graph, and the label that travels with it."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsweep.tracking.model_label import CARD_FILE, METADATA, ModelLabel

if TYPE_CHECKING:
    from mlflow import MlflowClient


def store_model(
    client: MlflowClient, entry: Any, run_id: str, model: Any, input_example: Any, label: ModelLabel
) -> None:
    """Write a model and its label into the directory of a logged model.

    Args:
        client: Of the store.
        entry: The logged model.
        run_id: Of the trial.
        model: On the CPU.
        input_example: Only its shape and dtype are used.
        label: What the model carries.
    """
    import mlflow.pytorch
    import numpy as np
    import torch
    from mlflow.models import Model, ModelSignature
    from mlflow.types import Schema, TensorSpec

    shape = tuple(input_example.shape[1:])
    # Two zero records: a batch of one would be frozen into the exported graph.
    example = np.zeros((2, *shape), dtype=np.asarray(input_example[:1]).dtype)
    inputs = Schema([TensorSpec(example.dtype, (-1, *shape))])
    with torch.no_grad():
        rank = model.eval()(torch.from_numpy(example)).ndim  # 3 for a language model
    outputs = Schema([TensorSpec(np.dtype(np.float32), (-1,) * rank)])
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # What torch.export says of its own internals is nothing a user can act on.
        warnings.simplefilter("ignore")
        path = str(Path(folder) / "model")
        mlflow.pytorch.save_model(
            model,
            path,
            mlflow_model=Model(
                artifact_path=entry.artifact_location,
                model_uuid=entry.model_id,
                run_id=run_id,
                model_id=entry.model_id,
                metadata={METADATA: dict(label.metadata)},
            ),
            signature=ModelSignature(inputs=inputs, outputs=outputs),
            input_example=example,
            serialization_format="pt2",
            pip_requirements=_requirements(),
        )
        Path(path, CARD_FILE).write_text(label.card)
        client.log_model_artifacts(entry.model_id, path)


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


def _requirements() -> list[str]:
    """Return what loading an exported graph needs, pinned, without MLflow's slow inference."""
    from importlib.metadata import version

    return [f"{name}=={version(name)}" for name in ("mlflow", "torch", "numpy")]
