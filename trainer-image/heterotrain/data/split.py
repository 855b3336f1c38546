"""How a plan splits steps among its workers, remembered: a step of hundreds of workers should not compute it each
time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from heterotrain.contract import Plan
from heterotrain.data.sampler import micro_batches, rank_slices


class Portion(NamedTuple):
    """One worker's part of a step.

    `samples` are all workers', `own_samples` this worker's; `parts` are its micro-batches, as [start, stop) of the
    step's samples (see `sampler.micro_batches`). `source` is the first rank that has samples, if another rank has none;
    None if all have.
    """

    samples: int
    own_samples: int
    parts: tuple[tuple[int, int], ...]
    source: int | None


@dataclass(slots=True)
class Split:
    """How one plan splits steps. Steps have few different sizes, so little is remembered."""

    plan: Plan
    batch_sizes: tuple[int, ...]
    global_batch_size: int
    _known: dict[tuple[int, int, int], Portion] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan) -> Split:
        """The split that a plan asks for."""
        return cls(plan, plan.batch_sizes, plan.global_batch_size)

    def portion(self, samples: int, least: int, rank: int) -> Portion:
        """What `rank` has of a step with so many samples; `least` as for `sampler.rank_slices`."""
        known = self._known.get((samples, least, rank))
        if known is None:
            known = self._known[samples, least, rank] = self._computed(samples, least, rank)
        return known

    def _computed(self, samples: int, least: int, rank: int) -> Portion:
        slices = rank_slices(self.batch_sizes, samples, least)
        busy = [each for each, (start, stop) in enumerate(slices) if start < stop]
        start, stop = slices[rank]
        parts = tuple(micro_batches(start, stop, self.plan.members[rank].micro_batch_size, least))
        return Portion(samples, stop - start, parts, None if len(busy) == len(slices) else busy[0])
