"""Package of a model: the directory that a version of the registry is, and nothing beside."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpsweep.study.model_graph import ModelGraph
from dpsweep.tracking.mlflow_models import requirements, save_graph
from dpsweep.tracking.mlflow_reach import quiet
from dpsweep.tracking.model_label import CARD_FILE, METADATA, ModelLabel

#: Columns of records that are pairs of texts, as a served model takes them.
PAIR = ["text", "text_pair"]
_SERVED = Path(__file__).with_name("served.py")


@dataclass(frozen=True)
class Package:
    """All that a registered model is made of.

    Attributes:
        network: A ``torch.nn.Module`` on the CPU.
        inputs: What it reads, (records, ...): only shape and dtype are used.
        preparation: Folder with ``preparation.py`` and what it loads.
        zero: A record of zeros, as a file would hold it: an array, the bytes of an image, a text or
            a pair of texts.
        classes: Name of each class or attribute.
        task: ``classification`` or ``multi_label``.
        packages: Packages that the preparation imports beside those of every model.
        label: What the model must carry.
    """

    network: Any
    inputs: np.ndarray
    preparation: Path
    zero: Any
    classes: Sequence[str]
    task: str
    packages: Sequence[str]
    label: ModelLabel

    def save(self, path: Path, identity: Mapping[str, Any]) -> None:
        """Write the model's directory.

        Guarantees:
            What is written is the network, the preparation, the label and zeros: no record of the
            data. It loads without dpsweep. (The graph names the source files that it was traced
            through, by their paths on this machine.)

        Args:
            path: The directory; it is made.
            identity: Arguments of MLflow's ``Model``.
        """
        quiet()
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            # What torch.export and MLflow say of their own internals is nothing a user can act on.
            warnings.simplefilter("ignore")
            import mlflow.pyfunc
            from mlflow.models import Model

            network = Path(folder, "network")
            save_graph(ModelGraph.of(self.network, self.inputs), network)
            mlflow.pyfunc.save_model(
                str(path),
                python_model=str(_SERVED),
                artifacts={"network": str(network), "preparation": str(self.preparation)},
                mlflow_model=Model(**identity, metadata={METADATA: dict(self.label.metadata)}),
                signature=self._signature(),
                input_example=self._example(),
                pip_requirements=requirements(self.packages),
            )
        for cache in path.rglob("__pycache__"):
            shutil.rmtree(cache)
        (path / CARD_FILE).write_text(self.label.card)

    def _signature(self) -> Any:
        from mlflow.models import ModelSignature
        from mlflow.types import ColSpec, Schema, TensorSpec

        if isinstance(self.zero, np.ndarray):
            inputs = [TensorSpec(self.zero.dtype, (-1, *self.zero.shape))]
        elif isinstance(self.zero, tuple):
            inputs = [ColSpec("string", name) for name in PAIR]
        else:  # without a name, so that a list will do as well as a column
            inputs = [ColSpec("string" if isinstance(self.zero, str) else "binary")]
        shares = [ColSpec("double", f"probability/{name}") for name in self.classes]
        if self.task == "multi_label":
            decided = [ColSpec("boolean", f"attribute/{name}") for name in self.classes]
        else:
            decided = [ColSpec("string", "class"), ColSpec("double", "probability")]
        return ModelSignature(inputs=Schema(inputs), outputs=Schema([*decided, *shares]))

    def _example(self) -> Any:
        import pandas as pd

        if isinstance(self.zero, np.ndarray):
            return np.stack([self.zero])
        if isinstance(self.zero, tuple):
            return pd.DataFrame([self.zero], columns=PAIR)
        return pd.DataFrame({"text" if isinstance(self.zero, str) else "image": [self.zero]})
