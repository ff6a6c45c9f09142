"""Features of a block of records, computed where there is a core for it, written where they belong.

Loads no torch until a block is computed. A block's features do not depend on who computes it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpsweep.foundation.errors import ResourceError, SweepError, described
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.data.raw.reading import unquoted
from dpsweep.trainables.features.spec import FeatureSpec

if TYPE_CHECKING:
    from torch import nn

#: Records of one block: what a worker computes at a time.
BLOCK_ROWS = 512
#: Most records of one forward pass: more are no faster.
_FORWARD_ROWS = 128
#: Most input values of one forward pass, 16 MiB: activations of a network are a multiple of it.
_FORWARD_VALUES = 2**22


@dataclass(frozen=True)
class BlockJob:
    """The features of some rows, and where they go; a value that any process can work on.

    Attributes:
        path: File of an array under construction, seen by every worker.
        offset: Byte in it at which the features of ``inputs`` begin.
        spec: What to make of the records.
        info: Facts of the raw records.
        inputs: float32 (rows, *input_shape).
    """

    path: Path
    offset: int
    spec: FeatureSpec
    info: DatasetInfo
    inputs: np.ndarray


def compute_block(job: BlockJob) -> int:
    """Compute a block's features and write them, durably; return the number of rows.

    Raises:
        ResourceError: The file cannot be written.
    """
    return write_rows(job.path, *compute_rows(job))


def compute_rows(job: BlockJob) -> tuple[int, np.ndarray]:
    """Compute a block's features; return where they go in the file, and the features.

    An extractor of another package may warn of a single record, which is not heard.

    Raises:
        SweepError: It fails. Of another package's error the kind and the place are told, as its
            words, which Ray would log where a worker panics, may quote a record.
        SystemExit: It exits; with its status, and without its words.
    """
    with unquoted(_uncomputed):
        return job.offset, features_of(job.spec, job.info, job.inputs)


def _uncomputed(error: BaseException) -> SweepError:
    return SweepError(f"features cannot be computed: {described(error)}")


def write_rows(path: Path, offset: int, features: np.ndarray) -> int:
    """Write features to an array under construction, durably; return the number of rows.

    Raises:
        ResourceError: The file cannot be written.
    """
    try:
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(features.data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ResourceError(
            f"features cannot be written to {path}",
            because=error.strerror,
            fix="set storage.features to a directory that has room and that all nodes share",
        ) from error
    return len(features)


def feature_blocks(
    spec: FeatureSpec, info: DatasetInfo, inputs: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the features of records block by block, each with its first row."""
    for start in range(0, len(inputs), BLOCK_ROWS):
        yield start, features_of(spec, info, inputs[start : start + BLOCK_ROWS])


def features_of(spec: FeatureSpec, info: DatasetInfo, inputs: np.ndarray) -> np.ndarray:
    """Return the features of records: computed in float32, rounded once to ``spec.dtype``.

    A record that is not finite itself may have features that are not. A record's are a function of
    it alone, to the last bit: a network is given as many records each time, the last ones zeros.
    Not covered: kernels that round a row otherwise at another place.

    Args:
        spec: What to make of the records.
        info: Facts of the raw records.
        inputs: float32 (rows, *input_shape).
    Returns:
        (rows, *feature_shape), C-contiguous.
    """
    import torch

    from dpsweep.trainables.devices.places import filled

    module = _module(spec, info)
    rows = _forward_rows(spec, info)
    blocks = []
    with torch.no_grad():
        for start in range(0, len(inputs), rows):
            # A copy: inputs may be mapped read-only, of which torch would warn.
            x = torch.from_numpy(np.array(inputs[start : start + rows], np.float32))
            exact = module(filled(x, rows))[: len(x)]
            # Beyond the range of float16 lies infinity, and a record that is not finite adds
            # nothing to training. An error would tell that there is such a record.
            blocks.append(exact.to(getattr(torch, spec.dtype)).numpy())
    return np.concatenate(blocks)


def _forward_rows(spec: FeatureSpec, info: DatasetInfo) -> int:
    """Return how many records go through the extractor at once; it may enlarge them first."""
    values = math.prod(info.input_shape)
    side = dict(spec.settings).get("image_size") or 0
    return max(1, min(_FORWARD_ROWS, _FORWARD_VALUES // max(values, 3 * side**2, 1)))


@lru_cache(maxsize=1)
def _module(spec: FeatureSpec, info: DatasetInfo) -> nn.Module:
    return spec.build(info)
