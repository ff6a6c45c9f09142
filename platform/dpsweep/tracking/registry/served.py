"""Served model: raw records in, a data frame of classes and probabilities out.

A copy of this file goes with each registered model, and MLflow runs it there. It imports torch,
MLflow and what MLflow brings, and nothing of dpsweep, which never imports it either.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import mlflow.models
import mlflow.pyfunc
import mlflow.pytorch
import numpy as np
import pandas as pd
import torch

_BLOCK = 256
_IS_SERVER = "_MLFLOW_IS_IN_SERVING_ENVIRONMENT"  # MLflow's own name


class TrialModel(mlflow.pyfunc.PythonModel):
    """The network of a trial behind the preparation of its records."""

    def load_context(self, context: Any) -> None:
        """Load the network and the preparation from the model's own directory."""
        folder = Path(context.artifacts["preparation"])
        code = _module(folder / "preparation.py")
        self._preparation, self._facts = code.load(folder)
        self._network = mlflow.pytorch.load_model(context.artifacts["network"])

    # MLflow looks at the types, warns of most, and lets columns and arrays through for this one.
    def predict(
        self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Return a row for each record.

        Args:
            context: Of MLflow.
            model_input: Records as their files hold them: an array of numbers (records, ...), or a
                column, series or list of images or texts; the columns ``text`` and ``text_pair``
                of pairs.
            params: Of MLflow; there are none.
        Returns:
            ``class``, ``probability`` and ``probability/NAME`` of each class; where a record has
            several attributes ``attribute/NAME`` and ``probability/NAME`` of each.
        """
        inputs = self._preparation.prepare(self._records(model_input))
        blocks = [inputs[begin : begin + _BLOCK] for begin in range(0, len(inputs), _BLOCK)]
        outputs = [self._logits(block) for block in blocks]
        names = self._facts["classes"]
        logits = torch.cat(outputs) if outputs else torch.zeros(0, len(names))
        if self._facts["task"] == "multi_label":
            shares = torch.sigmoid(logits.double()).numpy()
            decided = dict(zip((f"attribute/{n}" for n in names), (logits > 0).numpy().T))
        else:
            shares = torch.softmax(logits.double(), dim=1).numpy()
            chosen = logits.argmax(dim=1).numpy()
            decided = {
                "class": np.array(names, object)[chosen],
                "probability": shares[np.arange(len(chosen)), chosen],
            }
        each = dict(zip((f"probability/{name}" for name in names), shares.T))
        return pd.DataFrame({**decided, **each})

    def _records(self, model_input: Any) -> Any:
        if isinstance(model_input, pd.DataFrame):
            is_column = model_input.shape[1] == 1
            model_input = model_input.iloc[:, 0] if is_column else model_input.to_numpy()
        records = list(model_input) if isinstance(model_input, pd.Series) else model_input
        if isinstance(records, (str, bytes)):
            records = [records]
        is_path = self._facts["kind"] == "image" and any(isinstance(r, str) for r in records)
        if is_path and os.environ.get(_IS_SERVER, "").lower() == "true":
            raise ValueError("a server opens no path: send the bytes of the image")
        return records

    def _logits(self, block: np.ndarray) -> torch.Tensor:
        # A graph may want a batch of two and more.
        records = np.repeat(block, 2, axis=0) if len(block) == 1 else block
        with torch.no_grad():
            return self._network(torch.from_numpy(records))[: len(block)].cpu()


def _module(path: Path) -> Any:
    """Return the module of a file under a name of its own: models may bring other versions."""
    name = f"_preparation_of_{abs(hash(str(path)))}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[name] = module  # dataclasses look it up
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


mlflow.models.set_model(TrialModel())
