"""The ceiling: how fast the job could be if every batch were split with perfect knowledge of the workers; pure.

A speed-up alone says little: it grows with how badly the uniform split fits. The share of the ceiling says
how much of what was possible has been reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heterotrain_operator.core.split.allocation import oracle_split
from heterotrain_operator.experiments.figures.profile import Profile

FAULT_ABOVE = 1.02
"""A share of the ceiling above this cannot be speed; the measurement is at fault."""


@dataclass(frozen=True, slots=True)
class MeasuredCeiling:
    """The oracle's iteration for one global batch: its split, the longest own time, with all-reduce."""

    global_batch: int
    batches: Mapping[str, int]
    own_seconds: float
    iteration_seconds: float


Ceilings = Mapping[int, MeasuredCeiling]
"""By global batch, in samples."""


def ceilings_at(levels: Sequence[Ceilings], level: int) -> Ceilings:
    """The ceilings under the limits of this level; empty where they were not measured."""
    return levels[level] if level < len(levels) else {}


def ceiling_of(profile: Profile, global_batch: int, bounds: Mapping[str, tuple[int, int]]) -> MeasuredCeiling:
    """The oracle's iteration for `global_batch` samples under each worker's (least, most) samples.

    Raises ValueError if the bounds cannot hold the global batch.
    """
    own = [{p.batch: p.own_seconds for p in worker.points} for worker in profile.workers]
    names = [worker.name for worker in profile.workers]
    split, seconds = oracle_split(own, global_batch, [bounds[name] for name in names])
    batches = dict(zip(names, split, strict=True))
    return MeasuredCeiling(global_batch, batches, seconds, seconds + profile.allreduce.seconds)
