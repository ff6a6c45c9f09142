"""The graph of a network: a file of ``torch.export``, and what can be said of it without torch."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsweep.foundation.kept import keep_compiled
from dpsweep.foundation.process.garbage import unsearched

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ModelGraph:
    """A network as a graph of ``torch.export``, for any number of records.

    Guarantees:
        The file holds a graph, the network's tensors and an input of zeros: no pickled code and no
        record. (It names the source files that it was traced through, by their paths here.)

    Attributes:
        archive: The file, as ``torch.export.load`` reads it.
        dtype: Of the input, numpy's name.
        shape: Of one record.
        rank: Number of dimensions of the output, that of the batch included.
        torch_version: Of the torch that has written it.
    """

    archive: bytes
    dtype: str
    shape: tuple[int, ...]
    rank: int
    torch_version: str

    @classmethod
    def of(cls, model: torch.nn.Module, input_example: Any) -> ModelGraph:
        """Trace a network on two records of zeros.

        Args:
            model: On the CPU.
            input_example: Array or tensor, shape (batch, ...): only its shape and dtype are used.
        Raises:
            Exception: ``torch.export`` cannot trace it, or its own code fails.
        """
        import torch

        shape = tuple(map(int, input_example.shape[1:]))
        # Two: a batch of one would be frozen into the graph.
        zeros = np.zeros((2, *shape), dtype=np.asarray(input_example[:1]).dtype)
        file = BytesIO()
        # Of 1.5 s that torch.export takes to load, .5 s would be a search for garbage.
        with unsearched(), warnings.catch_warnings(), torch.no_grad():
            # What torch.export says of its own internals is nothing a user can act on.
            warnings.simplefilter("ignore")
            rank = model.eval()(torch.from_numpy(zeros)).ndim  # 3 for a language model
            torch.export.save(trace(model, torch.from_numpy(zeros)), file)
        return cls(file.getvalue(), zeros.dtype.name, shape, rank, str(torch.__version__))

    def zeros(self) -> np.ndarray:
        """Return two records of zeros, as the network takes them."""
        return np.zeros((2, *self.shape), dtype=self.dtype)


def trace(model: torch.nn.Module, records: torch.Tensor) -> torch.export.ExportedProgram:
    """Return the graph of a network whose first dimension is free.

    Args:
        model: On the CPU, in evaluation mode.
        records: (n, ...) with n > 1; their values do not matter.
    """
    import torch

    keep_compiled()
    return torch.export.export(model, (records,), dynamic_shapes=[{0: torch.export.Dim.AUTO}])
