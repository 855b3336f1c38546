"""Laws of time: the mean own seconds of a step, without noise, by the samples in it.

Own time never falls as the batch grows, so that the best split exists and greedy finds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from heterotrain_operator.clusters.simulated.valid import above, at_least


class TimeLaw(Protocol):
    """A law of time."""

    def seconds(self, batch: float, /) -> float:
        """Mean own seconds of a step with so many samples, which may be 0; it never falls as they grow."""
        ...


@dataclass(frozen=True, slots=True)
class Affine:
    """`fixed + per_sample * b` seconds: a CPU, and any device that the batch keeps busy."""

    fixed: float = 0.002
    per_sample: float = 0.001

    def __post_init__(self) -> None:
        at_least(0, fixed=self.fixed)
        above(0, per_sample=self.per_sample)

    def seconds(self, batch: float, /) -> float:
        """Mean own seconds of a step with so many samples."""
        return self.fixed + self.per_sample * batch


@dataclass(frozen=True, slots=True)
class Plateau:
    """`max(floor, fixed + per_sample * b)` seconds: a GPU that small batches do not fill.

    With no samples at all only the fixed part is done.
    """

    floor: float
    fixed: float = 0.002
    per_sample: float = 0.001

    def __post_init__(self) -> None:
        at_least(0, floor=self.floor, fixed=self.fixed)
        above(0, per_sample=self.per_sample)

    def seconds(self, batch: float, /) -> float:
        """Mean own seconds of a step with so many samples."""
        if batch <= 0:
            return min(self.fixed, self.floor)
        return max(self.floor, self.fixed + self.per_sample * batch)


@dataclass(frozen=True, slots=True)
class Power:
    """`fixed + per_sample * b * (b / reference) ** (exponent - 1)` seconds: at the reference batch as an affine law.

    Beyond exponent 1 every further sample is dearer, as where caches overflow or attention spans the batch; `exponent`
    may be any number above 0.
    """

    exponent: float
    fixed: float = 0.0
    per_sample: float = 0.001
    reference: float = 64.0

    def __post_init__(self) -> None:
        at_least(0, fixed=self.fixed)
        above(0, exponent=self.exponent, per_sample=self.per_sample, reference=self.reference)

    def seconds(self, batch: float, /) -> float:
        """Mean own seconds of a step with so many samples."""
        if batch <= 0:
            return self.fixed
        return self.fixed + self.per_sample * self.reference * math.pow(batch / self.reference, self.exponent)


@dataclass(frozen=True, slots=True)
class Padded:
    """The seconds of another law at the next multiple of so many samples: kernels that compute whole tiles."""

    law: TimeLaw
    multiple: int

    def __post_init__(self) -> None:
        at_least(1, multiple=self.multiple)

    def seconds(self, batch: float, /) -> float:
        """Mean own seconds of a step with so many samples."""
        return self.law.seconds(-(-batch // self.multiple) * self.multiple)


@dataclass(frozen=True, slots=True)
class MemoryCliff:
    """Another law, but each sample beyond `batch` takes `factor` times as long: memory is swapped or recomputed."""

    law: TimeLaw
    batch: float
    factor: float = 4.0

    def __post_init__(self) -> None:
        at_least(0, batch=self.batch)
        at_least(1, factor=self.factor)

    def seconds(self, batch: float, /) -> float:
        """Mean own seconds of a step with so many samples."""
        if batch <= self.batch:
            return self.law.seconds(batch)
        edge = self.law.seconds(self.batch)
        return edge + self.factor * (self.law.seconds(batch) - edge)


@dataclass(frozen=True, slots=True)
class Throttled:
    """Another law, but whoever keeps all others waiting takes `penalty` times as long.

    So it is with short steps under a CPU quota: waiting saves up quota for the next step. Seen on two containers of
    600 and 300 millicores: the small one took 28 ms for 55 samples while it waited, and 50 ms for 66 while the other
    waited for it. `seconds` are those of a worker that waits.
    """

    law: TimeLaw
    penalty: float = 1.5

    def __post_init__(self) -> None:
        at_least(1, penalty=self.penalty)

    def seconds(self, batch: float, /) -> float:
        """Mean own seconds of a step with so many samples, of a worker that waits for others."""
        return self.law.seconds(batch)
