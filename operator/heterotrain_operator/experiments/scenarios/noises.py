"""How the times of steps vary: the kinds of noise that a scenario's worker may have. All have a mean of 1."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from heterotrain_operator.api.base import MAX_COUNT, Model
from heterotrain_operator.clusters.simulated import noise
from heterotrain_operator.experiments.scenarios.base import MAX_RECORDED, MAX_SERIES, PositiveStepSeconds, Variation
from heterotrain_operator.experiments.scenarios.choice import Choice

_VARIATION = Field(description="Coefficient of variation of one step's time: standard deviation over mean.")


class Independent(Model):
    """Every step by itself, from a gamma distribution: positive, and skewed to the right."""

    variation: Variation = _VARIATION

    def noise(self) -> noise.Noise:
        """As the simulation takes it."""
        return noise.Independent(self.variation)


class Autoregressive(Model):
    """AR(1): a slow step is followed by another slow one, as real ones are."""

    variation: Variation = _VARIATION
    correlation: Annotated[float, Field(ge=-0.999, le=0.999)] = Field(
        description="Correlation of the logarithms of two steps in a row."
    )

    def noise(self) -> noise.Noise:
        """As the simulation takes it."""
        return noise.AR1(self.correlation, self.variation)


class HeavyTailed(Model):
    """Now and then a step takes many times as long: a shifted Pareto distribution."""

    variation: Annotated[float, Field(gt=0, le=1)] = _VARIATION
    index: Annotated[float, Field(gt=2, le=100)] = Field(
        default=3.0, description="Moments of the distribution from this one on are infinite; the lower, the wilder."
    )

    def noise(self) -> noise.Noise:
        """As the simulation takes it."""
        return noise.HeavyTailed(self.variation, self.index)


Series = Annotated[tuple[PositiveStepSeconds, ...], Field(min_length=2, max_length=MAX_SERIES)]


class Replayed(Model):
    """Own times as they were recorded, each over the mean of its neighbourhood. Every worker plays one of the series
    from a place of its own on, round and round.
    """

    series: Annotated[tuple[Series, ...], Field(min_length=1, max_length=MAX_RECORDED)] = Field(
        description="Recorded own seconds of one worker each, step by step."
    )
    window: Annotated[int, Field(ge=0, le=MAX_COUNT)] = Field(
        default=0,
        description="How many steps around it a step is compared with. 0: the whole series, which keeps slow waves.",
    )

    def noise(self) -> noise.Noise:
        """As the simulation takes it."""
        return noise.Replayed(self.series, self.window)


class Noise(Choice):
    """How the times of a worker's steps vary around its law."""

    independent: Independent | None = Field(default=None, description="Each step by itself.")
    autoregressive: Autoregressive | None = Field(default=None, description="Slow steps come in a row.")
    heavy_tailed: HeavyTailed | None = Field(default=None, description="Rare steps of many times the length.")
    replayed: Replayed | None = Field(default=None, description="As recorded.")

    def noise(self) -> noise.Noise:
        """As the simulation takes it; there is exactly one."""
        chosen = self.chosen
        assert isinstance(chosen, Independent | Autoregressive | HeavyTailed | Replayed)
        return chosen.noise()
