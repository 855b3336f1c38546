"""A small CNN on scikit-learn's handwritten digits: 1,797 real 8x8 images that need no download.

They are read from the file that it comes with, without importing it, which takes each worker nearly as long as
importing torch.

It normalises over groups of channels unless it is asked for something else: statistics of local batches would make the
model depend on how the global batch is split. The model also takes images of other sizes.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from heterotrain.workloads.normalization import Norm, normalization

TEST_SAMPLES = 297
PIXELS = 64


def digits(*, train: bool = True, dtype: torch.dtype | None = None) -> TensorDataset:
    """Images of shape (1, 8, 8) in [0, 1] with their labels; the last 297 samples are the test set.

    Raises:
        ModuleNotFoundError: if scikit-learn is not installed
    """
    import numpy as np  # noqa: PLC0415 - models and synthetic data work without it

    rows = np.loadtxt(_file(), delimiter=",")  # of pixels from 0 to 16, and the digit
    images = torch.tensor(rows[:, :PIXELS] / 16.0, dtype=dtype or torch.get_default_dtype()).reshape(-1, 1, 8, 8)
    labels = torch.tensor(rows[:, PIXELS], dtype=torch.int64)
    part = slice(None, -TEST_SAMPLES) if train else slice(-TEST_SAMPLES, None)
    return TensorDataset(images[part], labels[part])


def _file() -> Path:
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("the handwritten digits come with scikit-learn, which is not installed")
    return Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"


class DigitsCNN(nn.Module):
    """Two convolutions and two linear layers; `width` is the first convolution's number of channels."""

    def __init__(
        self, width: int = 32, *, norm: Norm = "group", channels: int = 1, size: int = 8, classes: int = 10
    ) -> None:
        """`size` is the images' height and width in pixels, an even number."""
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            normalization(width, norm, groups=4),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            normalization(2 * width, norm, groups=4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * width * (size // 2) ** 2, 64),
            nn.ReLU(),
            nn.Linear(64, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(n, channels, size, size) -> (n, classes) logits."""
        logits: torch.Tensor = self.layers(images)
        return logits
