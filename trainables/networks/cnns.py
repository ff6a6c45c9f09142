"""The convolutional networks that papers on DP-SGD train from scratch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.networks.small_resnet import small_resnet


def _upsample(info: DatasetInfo, smallest: int) -> tuple[list[nn.Module], int, int]:
    """Return a parameter-free enlargement to at least ``smallest`` pixels, and the new size."""
    _, height, width = info.input_shape
    factor = -(-smallest // min(height, width))
    layers: list[nn.Module] = [nn.Upsample(scale_factor=factor)] if factor > 1 else []
    return layers, height * factor, width * factor


def _tanh_cnn(info: DatasetInfo) -> nn.Sequential:
    """Table 6 (MNIST, Fashion-MNIST): 26,010 parameters at 1 x 28 x 28 and 10 classes."""
    channels = info.input_shape[0]
    upsample, height, width = _upsample(info, smallest=16)

    def after(size: int) -> int:
        first = (size + 2 * 2 - 8) // 2 + 1 - 1
        return (first - 4) // 2 + 1 - 1

    return nn.Sequential(
        *upsample,
        nn.Conv2d(channels, 16, kernel_size=8, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(kernel_size=2, stride=1),
        nn.Conv2d(16, 32, kernel_size=4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(kernel_size=2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * after(height) * after(width), 32),
        nn.Tanh(),
        nn.Linear(32, info.num_classes),
    )


def _tanh_cnn_deep(info: DatasetInfo) -> nn.Sequential:
    """Table 7 (CIFAR-10): 550,570 parameters at 3 x 32 x 32 and 10 classes."""
    return _tanh_blocks(info, ((32, 32), (64, 64), (128, 128)))


def _tanh_cnn_small(info: DatasetInfo) -> nn.Sequential:
    """Appendices C.2 and D.5, table 20 (CIFAR-10): 167,642 parameters at 3 x 32 x 32, 10 classes.

    Half the filters of table 7 and one convolution less; max-pooling after the second, fourth and
    fifth.
    """
    return _tanh_blocks(info, ((16, 16), (32, 32), (64,)))


def _tanh_blocks(info: DatasetInfo, blocks: Sequence[Sequence[int]]) -> nn.Sequential:
    """Return convolutions with as many filters, max-pooling after each of three blocks."""
    previous = info.input_shape[0]
    upsample, height, width = _upsample(info, smallest=8)
    layers: list[nn.Module] = [*upsample]
    for block in blocks:
        for filters in block:
            layers += [nn.Conv2d(previous, filters, kernel_size=3, padding=1), nn.Tanh()]
            previous = filters
        layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
    layers += [nn.Flatten(), nn.Linear(previous * (height // 8) * (width // 8), 128), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(128, info.num_classes))


def _scatter_cnn(info: DatasetInfo) -> nn.Sequential:
    """Table 8 (ScatterNet features of MNIST): 33,066 parameters at 81 x 7 x 7 and 10 classes.

    The table lists max-pooling after both convolutions; with it there would be 20,778 parameters,
    and table 4 says 33K, which is the network without.
    """
    channels, height, width = info.input_shape

    def after(size: int) -> int:
        return (size - 1) // 2 + 1

    return nn.Sequential(
        nn.Conv2d(channels, 16, kernel_size=3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(32 * after(height) * after(width), 32),
        nn.Tanh(),
        nn.Linear(32, info.num_classes),
    )


def _scatter_cnn_deep(info: DatasetInfo) -> nn.Sequential:
    """Table 9 (ScatterNet features of CIFAR-10): 187,210 parameters at 243 x 8 x 8, 10 classes.

    The table lists max-pooling after both convolutions; table 4 says 187K parameters, which is the
    network without the second one.
    """
    upsample, height, width = _upsample(info, smallest=2)
    return nn.Sequential(
        *upsample,
        nn.Conv2d(info.input_shape[0], 64, kernel_size=3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(kernel_size=2, stride=2),
        nn.Conv2d(64, 64, kernel_size=3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(64 * (height // 2) * (width // 2), info.num_classes),
    )


def _scatter_cnn_small(info: DatasetInfo) -> nn.Sequential:
    """Table 9's smaller variant, of 16-16-32-32 filters: 56,346 parameters at 243 x 8 x 8.

    The paper gives its filters and neither its poolings nor its size; here max-pooling follows the
    second convolution, one pooling in all as in ``_scatter_cnn_deep``.
    """
    channels = info.input_shape[0]
    upsample, height, width = _upsample(info, smallest=2)
    layers: list[nn.Module] = [*upsample]
    for place, filters in enumerate((16, 16, 32, 32)):
        layers += [nn.Conv2d(channels, filters, kernel_size=3, padding=1), nn.Tanh()]
        channels = filters
        if place == 1:
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
    head = nn.Linear(channels * (height // 2) * (width // 2), info.num_classes)
    return nn.Sequential(*layers, nn.Flatten(), head)


CNNS: dict[str, Callable[[DatasetInfo], nn.Module]] = {
    "tanh_cnn": _tanh_cnn,
    "tanh_cnn_deep": _tanh_cnn_deep,
    "tanh_cnn_small": _tanh_cnn_small,
    "small_resnet": lambda info: small_resnet(info.input_shape[0], info.num_classes),
    "scatter_cnn": _scatter_cnn,
    "scatter_cnn_deep": _scatter_cnn_deep,
    "scatter_cnn_small": _scatter_cnn_small,
}
