"""Laws of time: the mean own seconds of a step, without noise, by the samples in it.

Own time never falls as the batch grows, so that the best split exists and greedy finds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol

from pydantic import Field

from heterotrain_operator.clusters.simulated.described import (
    Choice,
    Described,
    PositiveStepSeconds,
    Samples,
    StepSeconds,
    Written,
    kind,
    said,
)

Fixed = Annotated[StepSeconds, said("Seconds of a step whatever its batch.", default=0.0, alias="fixedSeconds")]
PerSample = Annotated[PositiveStepSeconds, said("Seconds for each sample.", alias="secondsPerSample")]


class TimeLaw(Protocol):
    """A law of time."""

    def seconds(self, batch: float, /) -> float:
        """Mean own seconds of a step with so many samples, which may be 0; it never falls as they grow."""
        ...


@dataclass(frozen=True, slots=True)
class Affine(Described):
    """A fixed part, and a part for each sample.

    `fixed + per_sample * b` seconds: a CPU, and any device that the batch keeps busy.
    """

    fixed: Fixed
    per_sample: PerSample

    def seconds(self, batch: float, /) -> float:
        return self.fixed + self.per_sample * batch


@dataclass(frozen=True, slots=True)
class Plateau(Described):
    """The same time for all small batches, as on GPUs.

    `max(floor, fixed + per_sample * b)` seconds. With no samples at all only the fixed part is done.
    """

    floor: Annotated[
        PositiveStepSeconds, said("Seconds of every step up to where the line exceeds them.", alias="leastSeconds")
    ]
    fixed: Fixed
    per_sample: PerSample

    def seconds(self, batch: float, /) -> float:
        if batch <= 0:
            return min(self.fixed, self.floor)
        return max(self.floor, self.fixed + self.per_sample * batch)


@dataclass(frozen=True, slots=True)
class Power(Described):
    """A part that grows with a power of the batch.

    `fixed + per_sample * b * (b / reference) ** (exponent - 1)` seconds: at the reference batch as an affine law.
    Beyond exponent 1 every further sample is dearer, as where caches overflow or attention spans the batch.
    """

    exponent: Annotated[
        float,
        said("1 is affine; above it every further sample is dearer, as where attention spans the batch.", gt=0, le=4),
    ]
    fixed: Fixed
    per_sample: PerSample
    reference: Annotated[
        Samples,
        said("The batch at which it is as long as by the affine law.", alias="atSamples"),
    ] = 64

    def seconds(self, batch: float, /) -> float:
        if batch <= 0:
            return self.fixed
        return self.fixed + self.per_sample * self.reference * math.pow(batch / self.reference, self.exponent)


@dataclass(frozen=True, slots=True)
class Padded:
    """The seconds of another law at the next multiple of so many samples: kernels that compute whole tiles."""

    law: TimeLaw
    multiple: int

    def seconds(self, batch: float, /) -> float:
        return self.law.seconds(-(-batch // self.multiple) * self.multiple)


@dataclass(frozen=True, slots=True)
class MemoryCliff(Described):
    """From which batch on samples are dearer.

    Another law, but each sample beyond `batch` takes `factor` times as long: memory is swapped or recomputed.
    """

    law: TimeLaw
    batch: Annotated[Samples, said("The greatest batch without them.", alias="aboveSamples")]
    factor: Annotated[float, said("Each sample beyond it takes this many times as long.", ge=1, le=1000)] = 4.0

    def seconds(self, batch: float, /) -> float:
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

    def seconds(self, batch: float, /) -> float:
        return self.law.seconds(batch)


class StepTime(Choice):
    """How long a worker's step takes by its batch, without noise: one of the laws, and what modifies it."""

    beside: ClassVar[tuple[str, ...]] = ("multiple_of", "memory_cliff", "penalty_of_last")

    affine: Written[Affine] | None = kind(Affine)
    plateau: Written[Plateau] | None = kind(Plateau)
    power: Written[Power] | None = kind(Power)
    multiple_of: Samples | None = Field(
        default=None, description="The time is that of the next multiple of so many samples, as kernels compute them."
    )
    memory_cliff: Written[MemoryCliff] | None = kind(MemoryCliff)
    penalty_of_last: Annotated[float, Field(ge=1, le=100)] | None = Field(
        default=None,
        description="Whoever keeps all others waiting takes this many times as long, as with short steps under a CPU "
        "quota, which waiting saves up.",
    )

    def law(self) -> TimeLaw:
        """The law; there is exactly one."""
        law: TimeLaw = self.chosen.value()
        if self.multiple_of is not None:
            law = Padded(law, self.multiple_of)
        if self.memory_cliff is not None:
            law = self.memory_cliff.value(law=law)
        return law if self.penalty_of_last is None else Throttled(law, self.penalty_of_last)
