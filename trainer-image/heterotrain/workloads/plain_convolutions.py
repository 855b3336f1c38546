"""AlexNet and VGG-11 for 32x32 images: convolutions without shortcuts, the papers' workloads with many parameters.

On small images the original classifiers' three linear layers, made for feature maps of 6x6 and 7x7, become one; that
is how both are commonly used on CIFAR-10. A normalisation follows every convolution, in place of AlexNet's local
response normalisation; dropout is left out, because its random numbers would depend on how the batch is split.

Parameters at 10 classes: VGG-11 9,231,114; AlexNet 2,474,570, which is 2,472,266 and the normalisations' 2,304.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import nn

from heterotrain.workloads.normalization import Norm, normalization

MIN_SIZE_PIXELS: Final = 32

# Columns A of table 1; None is a max-pooling.
_VGG11: Final = (1, None, 2, None, 4, 4, None, 8, 8, None, 8, 8, None)


class PlainConvolutions(nn.Module):
    """Convolutions and poolings, then one linear layer on each channel's mean; use `alexnet()` or `vgg11()`."""

    def __init__(self, layers: Sequence[nn.Module], features: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(n, channels, height, width) -> (n, classes) logits. Raises ValueError for images under 32x32 pixels."""
        if min(images.shape[-2:]) < MIN_SIZE_PIXELS:
            height, width = images.shape[-2:]
            raise ValueError(f"images: at least {MIN_SIZE_PIXELS}x{MIN_SIZE_PIXELS} pixels, found {height}x{width}")
        logits: torch.Tensor = self.head(self.layers(images))
        return logits


def _convolution(inputs: int, outputs: int, norm: Norm, *, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2)
    return [convolution, normalization(outputs, norm), nn.ReLU()]


def alexnet(*, norm: Norm = "group", width: int = 64, channels: int = 3, classes: int = 10) -> PlainConvolutions:
    """Five convolutions; `width` is the number of the first one's channels.

    Source: Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014), section 5: the
    network of Krizhevsky et al. (2012) in one column, with 64, 192, 384, 256 and 256 channels.
    """
    layers = [
        *_convolution(channels, width, norm, kernel=11, stride=4),
        nn.MaxPool2d(2),
        *_convolution(width, 3 * width, norm, kernel=5),
        nn.MaxPool2d(2),
        *_convolution(3 * width, 6 * width, norm),
        *_convolution(6 * width, 4 * width, norm),
        *_convolution(4 * width, 4 * width, norm),
        nn.MaxPool2d(2),
    ]
    return PlainConvolutions(layers, 4 * width, classes)


def vgg11(*, norm: Norm = "group", width: int = 64, channels: int = 3, classes: int = 10) -> PlainConvolutions:
    """Eight 3x3 convolutions, five poolings; `width` is the number of the first one's channels.

    Source: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (2014),
    table 1, configuration A.
    """
    layers: list[nn.Module] = []
    inputs = channels
    for factor in _VGG11:
        if factor is None:
            layers.append(nn.MaxPool2d(2))
        else:
            layers += _convolution(inputs, factor * width, norm)
            inputs = factor * width
    return PlainConvolutions(layers, inputs, classes)
