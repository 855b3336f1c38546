"""ResNet-18 and ResNet-50 for small images: the papers' workloads in which compute outweighs communication.

The first layer is one 3x3 convolution of stride 1 without pooling, as in the residual network of the paper's section
4.2 for CIFAR-10; the four stages are those of its table 1. At width 64 and 10 classes ResNet-18 has 11,173,962
parameters and ResNet-50 23,520,842. Source: He et al., "Deep Residual Learning for Image Recognition" (2015).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from heterotrain.workloads.normalization import Norm, normalization


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    # Without bias: the normalisation that follows has one.
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class _Block(nn.Module):
    """Convolutions beside a shortcut, which is a 1x1 convolution where the shape changes (option B of section 4.1)."""

    def __init__(self, layers: nn.Sequential, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.layers = layers
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(_convolution(inputs, outputs, 1, stride), normalization(outputs, norm))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layers(images) + self.shortcut(images))


class _Basic(_Block):
    """Two 3x3 convolutions (figure 5, left)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        layers = nn.Sequential(
            _convolution(inputs, width, 3, stride),
            normalization(width, norm),
            nn.ReLU(),
            _convolution(width, width, 3),
            normalization(width, norm),
        )
        super().__init__(layers, inputs, width, stride, norm)


class _Bottleneck(_Block):
    """1x1, 3x3 and 1x1 convolutions (figure 5, right); the stride is at the 3x3, as all implementations since have."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        outputs = self.expansion * width
        layers = nn.Sequential(
            _convolution(inputs, width, 1),
            normalization(width, norm),
            nn.ReLU(),
            _convolution(width, width, 3, stride),
            normalization(width, norm),
            nn.ReLU(),
            _convolution(width, outputs, 1),
            normalization(outputs, norm),
        )
        super().__init__(layers, inputs, outputs, stride, norm)


class ResNet(nn.Module):
    """A residual network of four stages; use `resnet18()` or `resnet50()`."""

    def __init__(
        self,
        block: type[_Basic | _Bottleneck],
        depths: Sequence[int],
        *,
        norm: Norm,
        width: int,
        channels: int,
        classes: int,
    ) -> None:
        """`depths` are the stages' numbers of blocks, `width` the first stage's channels; it doubles per stage."""
        super().__init__()
        self.stem = nn.Sequential(_convolution(channels, width, 3), normalization(width, norm), nn.ReLU())
        blocks: list[nn.Module] = []
        inputs = width
        for stage, depth in enumerate(depths):
            stage_width = width * 2**stage
            for position in range(depth):
                stride = 2 if stage > 0 and position == 0 else 1
                blocks.append(block(inputs, stage_width, stride, norm))
                inputs = stage_width * block.expansion
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(n, channels, height, width) -> (n, classes) logits."""
        logits: torch.Tensor = self.head(self.blocks(self.stem(images)))
        return logits


def resnet18(*, norm: Norm = "group", width: int = 64, channels: int = 3, classes: int = 10) -> ResNet:
    """18 layers: 2, 2, 2, 2 blocks of two convolutions. A smaller `width` is quicker by about its square."""
    return ResNet(_Basic, (2, 2, 2, 2), norm=norm, width=width, channels=channels, classes=classes)


def resnet50(*, norm: Norm = "group", width: int = 64, channels: int = 3, classes: int = 10) -> ResNet:
    """50 layers: 3, 4, 6, 3 blocks of three convolutions. A smaller `width` is quicker by about its square."""
    return ResNet(_Bottleneck, (3, 4, 6, 3), norm=norm, width=width, channels=channels, classes=classes)
