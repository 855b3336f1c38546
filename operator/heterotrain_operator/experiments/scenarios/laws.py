"""How long a step takes by its batch: the laws that a scenario's worker may follow."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from heterotrain_operator.api.base import Model
from heterotrain_operator.clusters.simulated import laws
from heterotrain_operator.experiments.scenarios.base import PositiveStepSeconds, Samples, StepSeconds
from heterotrain_operator.experiments.scenarios.choice import Choice

_FIXED = Field(default=0.0, description="Seconds of a step whatever its batch.")
_PER_SAMPLE = Field(description="Seconds for each sample.")


class Affine(Model):
    """fixedSeconds + secondsPerSample * samples."""

    fixed_seconds: StepSeconds = _FIXED
    seconds_per_sample: PositiveStepSeconds = _PER_SAMPLE

    def law(self) -> laws.TimeLaw:
        """As the simulation takes it."""
        return laws.Affine(self.fixed_seconds, self.seconds_per_sample)


class Plateau(Model):
    """As affine, but at least leastSeconds: a GPU that is not full takes as long for fewer samples."""

    least_seconds: PositiveStepSeconds = Field(description="Seconds of every step up to where the line exceeds them.")
    fixed_seconds: StepSeconds = _FIXED
    seconds_per_sample: PositiveStepSeconds = _PER_SAMPLE

    def law(self) -> laws.TimeLaw:
        """As the simulation takes it."""
        return laws.Plateau(self.least_seconds, self.fixed_seconds, self.seconds_per_sample)


class Power(Model):
    """fixedSeconds + secondsPerSample * atSamples * (samples / atSamples) ** exponent."""

    exponent: Annotated[float, Field(gt=0, le=4)] = Field(
        description="1 is affine; above it every further sample is dearer, as where attention spans the batch."
    )
    at_samples: Samples = Field(default=64, description="The batch at which it is as long as by the affine law.")
    fixed_seconds: StepSeconds = _FIXED
    seconds_per_sample: PositiveStepSeconds = _PER_SAMPLE

    def law(self) -> laws.TimeLaw:
        """As the simulation takes it."""
        return laws.Power(self.exponent, self.fixed_seconds, self.seconds_per_sample, float(self.at_samples))


class MemoryCliff(Model):
    """Samples beyond a batch are much dearer: memory is swapped or recomputed."""

    above_samples: Samples = Field(description="The greatest batch without them.")
    factor: Annotated[float, Field(ge=1, le=1000)] = Field(
        default=4.0, description="Each sample beyond it takes this many times as long."
    )


class StepTime(Choice):
    """How long a worker's step takes by its batch, without noise: one of three laws, and what modifies it."""

    affine: Affine | None = Field(default=None, description="A fixed part, and a part for each sample.")
    plateau: Plateau | None = Field(default=None, description="The same time for all small batches, as on GPUs.")
    power: Power | None = Field(default=None, description="A part that grows with a power of the batch.")
    multiple_of: Samples | None = Field(
        default=None, description="The time is that of the next multiple of so many samples, as kernels compute them."
    )
    memory_cliff: MemoryCliff | None = Field(default=None, description="From which batch on samples are dearer.")
    penalty_of_last: Annotated[float, Field(ge=1, le=100)] | None = Field(
        default=None,
        description="Whoever keeps all others waiting takes this many times as long, as with short steps under a CPU "
        "quota, which waiting saves up.",
    )

    @classmethod
    def is_kind(cls, name: str) -> bool:
        """The laws, not what modifies them."""
        return name in ("affine", "plateau", "power")

    def law(self) -> laws.TimeLaw:
        """As the simulation takes it; there is exactly one."""
        chosen = self.chosen
        assert isinstance(chosen, Affine | Plateau | Power)
        law = chosen.law()
        if self.multiple_of is not None:
            law = laws.Padded(law, self.multiple_of)
        if self.memory_cliff is not None:
            law = laws.MemoryCliff(law, self.memory_cliff.above_samples, self.memory_cliff.factor)
        return law if self.penalty_of_last is None else laws.Throttled(law, self.penalty_of_last)
