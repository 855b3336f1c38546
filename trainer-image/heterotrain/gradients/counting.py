"""Weights that make the sum of the workers' losses a mean: over samples, or over whatever the script counts.

With the loss of each rank scaled by its share of the global batch, `lambda_k = b_k / sum(b)`, a plain sum over the
ranks is the gradient of the mean over the global batch, whatever the split. Source: Taming, section III-A; OmniLearn,
section IV-B. (Taming's eq. 3 has a further 1/K, which would shrink the step.) The global number of samples is known
before a step; that of tokens, or of weights, is not. So gradients are first scaled as if it were the number of samples,
and their sum is multiplied by a factor that is known soon after the last forward.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from heterotrain.groups.generation import Generation


class LossKind(NamedTuple):
    """What the script's loss is: a "mean" or a "sum" (`reduction`); if `counted`, over what the script counts, not over
    samples."""

    reduction: str = "mean"
    counted: bool = False


def sample_weight(samples: float, global_samples: float, reduction: str) -> float:
    """Factor on a rank's loss that makes the sum over ranks the mean over the global batch.

    `samples` are this rank's, `global_samples` the step's (both real counts, of samples or of what else is counted). A
    loss that is the mean over the rank's samples is weighted with `lambda_k = b_k / sum(b)`, one that is their sum with
    `1 / sum(b)`. Source: Taming, section III-A; OmniLearn, section IV-B.
    """
    return samples / global_samples if reduction == "mean" else 1 / global_samples


def checked_count(count: float | torch.Tensor) -> float:
    """A count as a plain number. Raises ValueError for one that is negative or no number."""
    number = float(count)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"count: expected a number of at least 0, found {number}")
    return number


class GlobalCount:
    """The sum of all workers' counts in one step, under way."""

    def __init__(self, count: float, samples: int, generation: Generation) -> None:
        """`count` is this worker's; gradients and losses were scaled for `samples`. Raises RuntimeError if the group is
        broken."""
        self._total = torch.tensor([count], dtype=torch.float64)
        self._samples = samples
        self._end = generation.sum(self._total)

    def factor(self) -> float:
        """By what to multiply sums; 0 if no worker counted anything. Raises RuntimeError if the group broke.

        A worker with a summed bucket does not wait here, since all workers send their counts before their gradients.
        """
        total = self.total()
        return self._samples / total if total > 0 else 0.0

    def total(self) -> float:
        """The sum. Raises RuntimeError as `factor`."""
        self._end.wait()
        return self._total.item()
