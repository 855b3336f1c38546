"""Linear regression on seeded synthetic data: the papers' workload that is bound by communication, not compute."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset


def linear_data(samples: int = 4096, features: int = 64, *, noise: float = 0.1, seed: int = 0) -> TensorDataset:
    """Inputs of shape (features,) and targets of shape (1,): a random linear map plus Gaussian noise."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, features, generator=generator)
    weights = torch.randn(features, 1, generator=generator)
    targets = inputs @ weights + noise * torch.randn(samples, 1, generator=generator)
    return TensorDataset(inputs, targets)


class LinearRegression(nn.Module):
    """One linear layer."""

    def __init__(self, features: int = 64) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(n, features) -> (n, 1)."""
        outputs: torch.Tensor = self.linear(inputs)
        return outputs
