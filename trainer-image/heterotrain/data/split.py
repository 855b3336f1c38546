"""How a plan splits steps among its workers, remembered: a step of hundreds of workers should not compute it each
time."""

from __future__ import annotations

from dataclasses import dataclass, field

from heterotrain.contract import Plan
from heterotrain.data.sampler import micro_batches, rank_slices


@dataclass(frozen=True, slots=True)
class Parts:
    """`slices` are the parts [start, stop) of a step's samples, by rank; `source` is the first rank that has some, if
    another has none; None if all have."""

    slices: tuple[tuple[int, int], ...]
    source: int | None


@dataclass(slots=True)
class Split:
    """Of one plan. Steps have few different sizes, so little is remembered."""

    plan: Plan
    batch_sizes: tuple[int, ...]
    global_batch_size: int
    _known: dict[tuple[int, int], Parts] = field(default_factory=dict)
    _passes: dict[tuple[int, int, int], tuple[tuple[int, int], ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan) -> Split:
        """That of a plan."""
        return cls(plan, plan.batch_sizes, plan.global_batch_size)

    def parts(self, samples: int, least: int) -> Parts:
        """Of a step with so many samples; see `sampler.rank_slices`."""
        known = self._known.get((samples, least))
        if known is None:
            slices = tuple(rank_slices(self.batch_sizes, samples, least))
            busy = [rank for rank, (start, stop) in enumerate(slices) if start < stop]
            known = Parts(slices, None if len(busy) == len(slices) else busy[0])
            self._known[samples, least] = known
        return known

    def micro_batches(self, samples: int, least: int, rank: int) -> tuple[tuple[int, int], ...]:
        """Those of a rank in such a step, as parts [start, stop) of its samples; see `sampler.micro_batches`."""
        known = self._passes.get((samples, least, rank))
        if known is None:
            start, stop = self.parts(samples, least).slices[rank]
            known = tuple(micro_batches(start, stop, self.plan.members[rank].micro_batch_size, least))
            self._passes[samples, least, rank] = known
        return known
