"""The two normalisations that every image model here has, by name, so that a job can choose.

Statistics of local batches (BatchNorm) make a model depend on how the global batch is split: workers with unequal
batches then train another model than one machine would. GroupNorm's are of each sample alone, so any split is exact;
it has as many parameters and holds no state. Source: Wu and He, "Group Normalization" (2018), section 3.
"""

from __future__ import annotations

from math import gcd
from typing import Literal, get_args

from torch import nn

Norm = Literal["batch", "group"]
NORMS: tuple[Norm, ...] = get_args(Norm)

# Table 3 of the paper: the best of those tried.
GROUPS = 32


def normalization(channels: int, norm: Norm, *, groups: int = GROUPS) -> nn.Module:
    """A layer on (n, channels, height, width).

    Few channels make fewer groups, of at least two channels each: a group of one would lose that channel's mean.
    Raises ValueError for an unknown name.
    """
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        return nn.GroupNorm(gcd(groups, channels, max(1, channels // 2)), channels)
    raise ValueError(f"norm: expected one of {', '.join(NORMS)}, found {norm!r}")
