"""A small CNN on scikit-learn's handwritten digits: 1,797 real 8x8 images that need no download.

It normalises over groups of channels, not over the batch: statistics of local batches would make the model depend on
how the global batch is split.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

TEST_SAMPLES = 297


def digits(*, train: bool = True, dtype: torch.dtype | None = None) -> TensorDataset:
    """Images of shape (1, 8, 8) in [0, 1] with their labels; the last 297 samples are the test set."""
    bunch = load_digits()
    images = torch.tensor(bunch.images / 16.0, dtype=dtype or torch.get_default_dtype()).unsqueeze(1)
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    part = slice(None, -TEST_SAMPLES) if train else slice(-TEST_SAMPLES, None)
    return TensorDataset(images[part], labels[part])


class DigitsCNN(nn.Module):
    """Two convolutions and two linear layers; `width` is the first convolution's number of channels."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.GroupNorm(4, 2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * width * 16, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(n, 1, 8, 8) -> (n, 10) logits."""
        logits: torch.Tensor = self.layers(images)
        return logits
