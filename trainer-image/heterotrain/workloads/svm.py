"""A linear support vector machine in its primal form: a linear map, the hinge loss, and labelled points to separate.

The hinge loss is a mean over samples, so weighted gradients are exact for it like for any other. The penalty on the
weights' norm is the optimizer's weight decay. Source: Shalev-Shwartz et al., "Pegasos: Primal Estimated sub-GrAdient
SOlver for SVM" (2011), equations 1 and 2.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset


def labelled_points(
    samples: int = 4096, features: int = 64, *, flipped: float = 0.05, seed: int = 0, train: bool = True
) -> TensorDataset:
    """Inputs of shape (features,) and sides, -1.0 or 1.0: that of a random plane, of which a share is `flipped`."""
    plane = torch.randn(features, generator=torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(2 * seed + (1 if train else 2))
    inputs = torch.randn(samples, features, generator=generator)
    kept = torch.rand(samples, generator=generator) >= flipped
    sides = torch.where((inputs @ plane >= 0) == kept, 1.0, -1.0).to(inputs.dtype)
    return TensorDataset(inputs, sides)


class LinearSVM(nn.Module):
    """One linear layer; the sign of what it gives is the side."""

    def __init__(self, features: int = 64) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(n, features) -> (n,) signed distances, in units of the margin."""
        distances: torch.Tensor = self.linear(inputs).squeeze(-1)
        return distances


def hinge_loss(distances: torch.Tensor, sides: torch.Tensor) -> torch.Tensor:
    """The mean over n samples of `max(0, 1 - side * distance)`; both are of shape (n,), sides are -1 or 1."""
    return torch.clamp(1 - sides * distances, min=0).mean()
