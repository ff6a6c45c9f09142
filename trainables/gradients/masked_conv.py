"""Per-example gradients of the chosen entries of a convolution: mask * (G_n A_n^T), and no more.

How a product is computed depends on shapes, the mask and the device, never on records.

A depthwise convolution has a kernel of its own for each channel, so the gradient of one of its
entries is a product of two images summed over positions: the gradient by the output, and the input
shifted by the tap. With channels last both lie in memory as they are used, and nothing is unfolded;
taps that only ever meet padding are not computed.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from dpsweep.foundation.errors import ModelError
from dpsweep.trainables.devices.places import even_block
from dpsweep.trainables.gradients.sparse_mask import MaskedWeight
from dpsweep.trainables.gradients.weight_products import block_bytes
from dpsweep.trainables.networks.layers import is_depthwise

#: Largest table of positions that is kept for a layer, in elements of four bytes.
TABLE_SIZE = 2**17
#: Time of one product of a tap, in nanoseconds: see ``_choose``.
TAP_NS = 0.45


class MaskedConv:
    """Per-example gradients of the chosen entries of one convolution: mask * (G_n A_n^T).

    G_n is the gradient by example n's output, (out channels, positions), and A_n its unfolded
    input, (columns, positions). For each size of images it is planned once which columns are
    formed and whether entries are sampled (``torch.sparse.sampled_addmm``) or picked out of the
    whole product, or computed tap by tap (``DepthwiseTaps``), block of examples by block.

    Raises:
        ModelError: The layer does more to its weight or input than a convolution does.
    """

    def __init__(self, mask: MaskedWeight) -> None:
        layer = mask.layer
        if not is_plain(layer):
            raise ModelError(
                f"layer {mask.name} ({type(layer).__name__}) is no plain convolution",
                because="the gradient by its weight is not that of the convolution alone",
                fix="leave it out of the mask, or use another model",
            )
        self._mask = mask
        self._plans: dict[tuple[int, int], _Plan] = {}
        _consume_sparse_warnings()

    def __call__(
        self, inputs: list[torch.Tensor], gradient: torch.Tensor
    ) -> dict[object, torch.Tensor]:
        """Return the gradients of the mask, float (batch, nnz), and of the bias if it trains.

        Args:
            inputs: The layer's input alone, float (batch, channels, height, width).
            gradient: The loss's gradient by the layer's output.
        """
        x = inputs[0]
        size = (x.shape[2], x.shape[3])
        if size not in self._plans:
            self._plans[size] = _Plan(self._mask, size, x.device)
        samples: dict[object, torch.Tensor] = {self._mask: self._plans[size].samples(x, gradient)}
        bias = self._mask.layer.bias
        if bias is not None and bias.requires_grad:
            samples[bias] = gradient.flatten(2).sum(dim=2)
        return samples


class _Plan:
    """How the product is computed for one layer, mask, size of images and device."""

    def __init__(self, mask: MaskedWeight, size: tuple[int, int], device: torch.device) -> None:
        layer = mask.layer
        self._layer, self._nnz = layer, mask.nnz
        self._pads = _pads(layer, size)
        self._kernel = (layer.kernel_size[0], layer.kernel_size[1])
        width = layer.weight[0].numel()  # columns that one output channel sees
        taps = self._kernel[0] * self._kernel[1]
        rows = mask.index // width
        columns = mask.index % width + rows // (layer.out_channels // layer.groups) * width
        # On small images, taps that only ever meet padding have gradient zero.
        ones = self._windows(self._padded(torch.ones(1, 1, *size)))[0, 0]
        self._out = (ones.shape[2], ones.shape[3])
        live = ones.flatten(2).any(-1).flatten()[columns % taps]
        self._where = None if bool(live.all()) else live.nonzero().flatten().to(device)
        rows, columns = rows[live], columns[live]
        num_columns = layer.in_channels * taps
        used = columns.unique()
        self.some_columns, self.dense, cost = _choose(
            layer.groups, layer.out_channels, num_columns, len(used), len(rows), self._out, device
        )
        self._none, self._taps = len(rows) == 0, None
        met, place = (columns % taps).unique(return_inverse=True)
        products = len(met) * layer.out_channels * self._out[0] * self._out[1]
        if is_depthwise(layer) and TAP_NS * products + len(rows) < cost:
            self._taps = DepthwiseTaps(layer, self._pads, size, self._out, met.tolist())
            self._flat = place * layer.out_channels + rows
            self._block = max(1, block_bytes(device) // self._taps.bytes_each)
            return
        if self.some_columns:
            columns = torch.searchsorted(used, columns)
            num_columns = width = len(used)
            self._used = used.to(device)
            self._table = self._positions(used, size).to(device)
        else:
            self._used = None
        self._shape = (layer.out_channels, num_columns)
        product = layer.out_channels * num_columns // layer.groups
        if self.dense:
            flat = rows * (num_columns // layer.groups) + columns % width
            self._whole = len(flat) == product
            self._flat = flat.to(device)
        else:
            starts = torch.zeros(layer.out_channels + 1, dtype=torch.int64)
            starts[1:] = torch.bincount(rows, minlength=layer.out_channels).cumsum(0)
            self._starts, self._columns = starts.to(device), columns.to(device)
        bytes_each = 4 * num_columns * self._out[0] * self._out[1]
        if self.dense and not self._whole:
            bytes_each = max(bytes_each, 4 * product)
        budget = block_bytes(device)
        self._block = max(1, budget // max(1, bytes_each))

    def _windows(self, x: torch.Tensor) -> torch.Tensor:
        """Return a view (batch, channels, kernel height and width, output height and width)."""
        high, wide = self._kernel
        (down, right), (tall, broad) = self._layer.stride, self._layer.dilation
        batch, channels, height, width = x.shape
        rows = (height - tall * (high - 1) - 1) // down + 1
        columns = (width - broad * (wide - 1) - 1) // right + 1
        a, b, c, d = x.stride()
        shape = (batch, channels, high, wide, rows, columns)
        return x.as_strided(shape, (a, b, c * tall, d * broad, c * down, d * right))

    def _padded(self, x: torch.Tensor) -> torch.Tensor:
        if any(self._pads):
            mode = self._layer.padding_mode
            x = F.pad(x, self._pads, mode="constant" if mode == "zeros" else mode)
        return x.contiguous()

    def _positions(self, used: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """Return where an example's used columns stand in its padded input; empty if too many."""
        if len(used) * self._out[0] * self._out[1] > TABLE_SIZE:
            return torch.empty(0, dtype=torch.int32)
        pads, channels = self._pads, self._layer.in_channels
        padded = (1, channels, size[0] + pads[2] + pads[3], size[1] + pads[0] + pads[1])
        count = padded[1] * padded[2] * padded[3]
        places = torch.arange(count, dtype=torch.int32).view(padded)
        return self._windows(places).flatten(4).flatten(0, 3)[used].flatten()

    def _patches(self, x: torch.Tensor) -> torch.Tensor:
        """Return the wanted columns of the unfolded input, (batch, columns, positions)."""
        x = self._padded(x)
        if self._used is None:
            return self._windows(x).reshape(len(x), self._shape[1], -1)
        if len(self._table):
            return x.flatten(1).index_select(1, self._table).view(len(x), self._shape[1], -1)
        high, wide = self._kernel
        column = self._used
        channel, down, right = column // (high * wide), column // wide % high, column % wide
        return self._windows(x)[:, channel, down, right].flatten(2)

    def samples(self, x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradients of the chosen entries, float (batch, nnz)."""
        samples = x.new_zeros(len(x), self._nnz)
        if self._none:
            return samples
        block = even_block(len(x), self._block)  # products of fewer may be rounded otherwise
        for begin in range(0, len(x), block):
            part = slice(begin, begin + block)
            into = samples[part]
            if self._where is not None:
                into = x.new_zeros(len(into), len(self._where))
            if self._taps is not None:
                product = self._taps(x[part], gradient[part]).flatten(1)
                torch.index_select(product, 1, self._flat, out=into)
            else:
                patches, by_output = self._patches(x[part]), gradient[part].flatten(2)
                (self._pick if self.dense else self._sample)(by_output, patches, into)
            if self._where is not None:
                samples[part].index_copy_(1, self._where, into)
        return samples

    def _sample(self, by_output: torch.Tensor, patches: torch.Tensor, into: torch.Tensor) -> None:
        """Write the chosen entries of the product to ``into``, which must hold zeros.

        With beta = 0 torch still multiplies what is there by 0, so that a NaN would stay.
        """
        count, positions = len(by_output), by_output.shape[2]
        if 1 < positions < 8:  # sampled_addmm is ten times slower below one vector of floats
            by_output, patches = (F.pad(t, (0, 8 - positions)) for t in (by_output, patches))
        sparse = torch.sparse_csr_tensor(
            self._starts.expand(count, -1),
            self._columns.expand(count, -1),
            into,
            (count, *self._shape),
            check_invariants=False,
        )
        torch.sparse.sampled_addmm(sparse, by_output, patches.mT, beta=0.0, out=sparse)

    def _pick(self, by_output: torch.Tensor, patches: torch.Tensor, into: torch.Tensor) -> None:
        count, groups = len(by_output), self._layer.groups
        rows, columns = self._shape
        left = by_output.contiguous().view(count * groups, rows // groups, -1)
        right = patches.reshape(count * groups, columns // groups, -1).mT
        if self._whole:
            torch.bmm(left, right, out=into.view(count * groups, rows // groups, -1))
        else:
            product = torch.bmm(left, right).view(count, -1)
            torch.index_select(product, 1, self._flat, out=into)


def _choose(
    groups: int,
    rows: int,
    columns: int,
    used: int,
    nnz: int,
    out: tuple[int, int],
    device: torch.device,
) -> tuple[bool, bool, float]:
    """Return whether to form the used columns alone, whether the whole product, and its cost.

    Estimates in nanoseconds per example, fitted to one core with AVX-512. On CUDA the whole
    product of few columns is taken; it needs nothing but large dense products, and no other way
    is cheaper.
    """
    positions = out[0] * out[1]
    if device.type == "cuda":
        return groups == 1 and 2 * used < columns, True, 0.0
    all_columns = columns * positions * (0.1 + 6.0 / out[1])
    some_columns = used * positions * (1.0 if used * positions <= TABLE_SIZE else 2.3)
    some, formed = some_columns < all_columns, min(some_columns, all_columns)
    product = rows * (used if some else columns) // groups
    whole = product * (0.5 + 0.033 * positions) + nnz
    sampled = nnz * (2.0 + 0.15 * max(8, positions))
    # The whole product of a grouped convolution needs the columns of all its groups.
    if groups > 1 and whole <= sampled:
        some, formed = False, all_columns
    return some, whole < sampled, formed + min(whole, sampled)


def is_plain(layer: nn.Conv2d) -> bool:
    """Say whether a layer is a convolution and no more, so that ``MaskedConv`` has a rule for it.

    >>> is_plain(nn.Conv2d(1, 1, 3))
    True
    """
    return type(layer).forward is nn.Conv2d.forward or _pads_dynamically(layer)


def is_grouped_or_padded(module: nn.Module) -> bool:
    """Say whether a convolution has groups, or another padding than zeros, and weights to train.

    Opacus forms the columns of all groups for each, and pads with zeros whatever a layer does.
    """
    return (
        isinstance(module, nn.Conv2d)
        and module.weight.requires_grad
        and is_plain(module)
        and (module.groups > 1 or type(module) is not nn.Conv2d or module.padding_mode != "zeros")
    )


def _pads_dynamically(layer: nn.Conv2d) -> bool:
    """Say whether this is timm's convolution that pads as TensorFlow does, by the input's size."""
    from timm.layers import Conv2dSame

    return type(layer).forward is Conv2dSame.forward


def _pads(layer: nn.Conv2d, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the zeros, or repetitions, to the left, right, top and bottom of an input."""
    sides = []
    for axis in (1, 0):
        reach = layer.dilation[axis] * (layer.kernel_size[axis] - 1)
        if _pads_dynamically(layer):
            stride = layer.stride[axis]
            total = max(0, (-(-size[axis] // stride) - 1) * stride + reach + 1 - size[axis])
            sides += [total // 2, total - total // 2]
        elif layer.padding == "same":
            sides += [reach // 2, reach - reach // 2]
        elif isinstance(layer.padding, str):
            sides += [0, 0]
        else:
            sides += [layer.padding[axis]] * 2
    return (sides[0], sides[1], sides[2], sides[3])


def _consume_sparse_warnings() -> None:
    """Let torch say, once per process and unheard, that its sparse tensors are in beta state."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.eye(1).to_sparse_csr()


class _Tap(NamedTuple):
    """Where an entry of the kernel meets the input: rows and columns of output and input."""

    output: tuple[slice, slice]
    input: tuple[slice, slice]


class DepthwiseTaps:
    """Per-example gradients of some taps of a depthwise convolution, of all channels.

    Args:
        layer: See ``is_depthwise``.
        pads: Zeros to the left, right, top and bottom of an input.
        size: Height and width of the inputs, pixels.
        out: Height and width of the outputs.
        taps: Which taps, as positions in the flattened kernel. Each meets the input somewhere.
    """

    def __init__(
        self,
        layer: nn.Conv2d,
        pads: tuple[int, int, int, int],
        size: tuple[int, int],
        out: tuple[int, int],
        taps: list[int],
    ) -> None:
        wide, places = layer.kernel_size[1], size[0] * size[1] + 2 * out[0] * out[1]
        #: Bytes of one example's input, gradient and one product.
        self.bytes_each = 4 * layer.in_channels * places
        self._taps = []
        for tap in taps:
            down, right = divmod(tap, wide)
            offsets = down * layer.dilation[0] - pads[2], right * layer.dilation[1] - pads[0]
            ranges = [
                _range(offset, layer.stride[axis], size[axis], out[axis])
                for axis, offset in enumerate(offsets)
            ]
            (rows, from_rows), (columns, from_columns) = ranges
            self._taps.append(_Tap((rows, columns), (from_rows, from_columns)))

    def __call__(self, x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradients, float (batch, taps, channels).

        Args:
            x: The layer's input, float (batch, channels, height, width).
            gradient: By its output, of the same batch and channels.
        """
        x, gradient = (t.permute(0, 2, 3, 1).contiguous() for t in (x, gradient))
        sums = x.new_empty(len(x), len(self._taps), x.shape[3])
        for index, (output, source) in enumerate(self._taps):
            product = gradient[:, output[0], output[1]] * x[:, source[0], source[1]]
            torch.sum(product, dim=(1, 2), out=sums[:, index])
        return sums


def _range(offset: int, stride: int, size: int, out: int) -> tuple[slice, slice]:
    """Return which outputs along one axis meet the input, and where.

    Output ``k`` meets the input at ``offset + k * stride``, if that is one of ``size`` places.
    """
    first = max(0, -(offset // stride))
    last = min(out - 1, (size - 1 - offset) // stride)
    begin = offset + first * stride
    return slice(first, last + 1), slice(begin, offset + last * stride + 1, stride)
