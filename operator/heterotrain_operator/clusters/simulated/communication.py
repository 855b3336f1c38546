"""Communication: what a step takes beside the slowest worker, by the number of workers."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import AfterValidator

from heterotrain_operator.clusters.simulated.described import (
    Choice,
    Described,
    PositiveCount,
    PositiveMebibytes,
    StepSeconds,
    Written,
    kind,
    said,
)

Size = Annotated[PositiveMebibytes, said("Size of the gradients of the whole model.", alias="modelMebibytes")]
Bandwidth = Annotated[PositiveMebibytes, said("Bandwidth of each one's network.", alias="mebibytesPerSecond")]
Latency = Annotated[StepSeconds, said("Seconds of one message, whatever its size.")]


class Communication(Protocol):
    """How gradients are summed."""

    def seconds(self, workers: int, /) -> float:
        """Seconds of a step after the slowest of so many workers has its gradients."""
        ...


@dataclass(frozen=True, slots=True)
class NoCommunication:
    """It costs nothing, or all of it is hidden behind the backward pass."""

    def seconds(self, workers: int, /) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class RingAllReduce(Described):
    """All-reduce, as gloo and NCCL do it.

    Twice (K - 1) messages of 1/K of the gradients round the ring of K workers.
    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms (2009), section 4.
    """

    size_bytes: Size
    bandwidth_bytes_per_second: Bandwidth
    latency_seconds: Latency = 0.0

    def seconds(self, workers: int, /) -> float:
        if workers < 2:
            return 0.0
        part = self.size_bytes / workers / self.bandwidth_bytes_per_second
        return 2 * (workers - 1) * (part + self.latency_seconds)


@dataclass(frozen=True, slots=True)
class ParameterServer(Described):
    """Servers that all workers share.

    Every worker sends its gradients to the servers and gets parameters back; the servers' links are shared. Where
    servers outnumber workers, a worker's own link, of the same bandwidth, is what holds it up.
    """

    size_bytes: Size
    bandwidth_bytes_per_second: Bandwidth
    latency_seconds: Latency = 0.0
    servers: Annotated[PositiveCount, said("Servers that each hold a part of the parameters.")] = 1

    def seconds(self, workers: int, /) -> float:
        sent = max(workers / self.servers, 1) * self.size_bytes / self.bandwidth_bytes_per_second
        return 2 * (sent + self.latency_seconds)


MOST_MEASURED = 256
GREATEST_SECONDS = 1e6


def _sound(points: dict[int, float]) -> dict[int, float]:
    if not 1 <= len(points) <= MOST_MEASURED:
        raise ValueError(f"expected 1 to {MOST_MEASURED} numbers of workers, found {len(points)}")
    for workers, seconds in points.items():
        if workers < 1:
            raise ValueError(f"expected numbers of workers of at least 1, found {workers}")
        if not 0 <= seconds <= GREATEST_SECONDS:
            raise ValueError(f"expected seconds from 0 to {GREATEST_SECONDS:g} for {workers} workers, found {seconds}")
    return dict(sorted(points.items()))


@dataclass(frozen=True, slots=True)
class Measured(Described):
    """Seconds that were measured, by number of workers.

    Between two numbers of workers they run in a line, and are flat beyond the first and the last.
    """

    by_workers: Annotated[
        dict[int, float],
        AfterValidator(_sound),
        said("Seconds of a step after the slowest worker's own time, by number of workers."),
    ]

    def __post_init__(self) -> None:
        """Raises ValueError, with figures, if a number makes no sense."""
        object.__setattr__(self, "by_workers", _sound(self.by_workers))

    def seconds(self, workers: int, /) -> float:
        counts = [*self.by_workers]
        place = bisect.bisect_left(counts, workers)
        if place == 0 or place == len(counts):
            return self.by_workers[counts[min(place, len(counts) - 1)]]
        low, high = counts[place - 1], counts[place]
        before, after = self.by_workers[low], self.by_workers[high]
        return before + (after - before) * (workers - low) / (high - low)


class CommunicationChoice(Choice):
    """What a step takes after the slowest worker's own time."""

    ring: Written[RingAllReduce] | None = kind(RingAllReduce)
    parameter_server: Written[ParameterServer] | None = kind(ParameterServer)
    measured: Written[Measured] | None = kind(Measured)
