"""A residual network for small images, with GroupNorm in the place of BatchNorm."""

from __future__ import annotations

from functools import partial

from torch import nn

_CHANNELS = (32, 64, 128, 256)


def small_resnet(channels: int, num_classes: int) -> nn.Module:
    """Return a ResNet of 10 layers with half the usual channels: 1.24 million parameters.

    He et al. 2016 (https://arxiv.org/abs/1512.03385) with a first convolution of 3 x 3 and stride 2
    and no pooling after it, as suits images of 28 or 32 pixels, and GroupNorm in 16 groups, as in
    Luo et al. 2021 ("Scalable Differential Privacy with Sparse Network Finetuning", section 5.8):
    no image influences another. It is timm's class, so its classifier is found as timm's is.

    Args:
        channels: Channels of an image; 16 pixels or more make sense.
        num_classes: Outputs of the classifier.
    """
    from timm.layers import GroupNorm
    from timm.models.resnet import BasicBlock, ResNet

    network = ResNet(
        BasicBlock,
        [1, 1, 1, 1],
        num_classes=num_classes,
        in_chans=channels,
        channels=_CHANNELS,
        norm_layer=partial(GroupNorm, num_groups=16),
    )
    first = nn.Conv2d(channels, 64, kernel_size=3, stride=2, padding=1, bias=False)
    nn.init.kaiming_normal_(first.weight, mode="fan_out", nonlinearity="relu")
    network.conv1, network.maxpool = first, nn.Identity()
    return network
