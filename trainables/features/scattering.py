"""The scattering transform: wavelet features of an image that need no training (ScatterNet)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from dpsweep.foundation.errors import ModelError

if TYPE_CHECKING:
    from dpsweep.trainables.data.dataset import DatasetInfo


def build_scattering(settings: Mapping[str, Any], info: DatasetInfo) -> nn.Module:
    """Return the second order scattering network of Oyallon & Mallat (2015) on images.

    The transform of Tramer & Boneh (2021, https://arxiv.org/abs/2011.11660): (n, channels, H, W)
    -> (n, channels * K, H // 2^J, W // 2^J) with J = ``depth``, L = ``angles`` and
    K = 1 + L J + L^2 J (J - 1) / 2 coefficients of every channel, the channels one after the
    other; K = 81 for J = 2 and L = 8.

    Args:
        settings: ``depth`` (2) and ``angles`` (8).
        info: Shape of the images.
    Raises:
        ModelError: kymatio is not installed, or it cannot take records of this shape.
    """
    depth, angles = int(settings.get("depth", 2)), int(settings.get("angles", 8))
    shape = info.input_shape
    if len(shape) != 3:
        raise ModelError(
            f"scatternet needs images, and a record of {info.name} has shape {shape}",
            fix="set features.name: none, or use a dataset of images",
        )
    if depth < 1 or angles < 1:
        raise ModelError(f"scatternet needs depth and angles >= 1, got {depth} and {angles}")
    if min(shape[1:]) < 2**depth:
        raise ModelError(
            f"scatternet of depth {depth} needs images of at least {2**depth} x {2**depth} "
            f"pixels, and those of {info.name} have {shape[1]} x {shape[2]}",
            fix="set features.name: none, or use larger images",
        )
    try:
        # Not `kymatio.torch`, whose 3-D transform imports what SciPy has removed.
        from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D
    except ImportError as error:
        raise ModelError(
            "scatternet needs the package kymatio, which cannot be imported",
            because=f"{type(error).__name__}: {error}",
            fix="pip install 'dpsweep[scatternet]'",
        ) from error
    return nn.Sequential(ScatteringTorch2D(J=depth, shape=shape[1:], L=angles), nn.Flatten(1, 2))
