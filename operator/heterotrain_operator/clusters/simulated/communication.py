"""Communication: what a step takes beside the slowest worker, by the number of workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from heterotrain_operator.clusters.simulated.valid import above, at_least


class Communication(Protocol):
    """How gradients are summed."""

    def seconds(self, workers: int, /) -> float:
        """Seconds of a step after the slowest of so many workers has its gradients."""
        ...


@dataclass(frozen=True, slots=True)
class NoCommunication:
    """It costs nothing, or all of it is hidden behind the backward pass."""

    def seconds(self, workers: int, /) -> float:
        """Seconds of a step after the slowest worker."""
        return 0.0


@dataclass(frozen=True, slots=True)
class RingAllReduce:
    """Twice (K - 1) messages of 1/K of the gradients round the ring of K workers.

    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms (2009), section 4.
    """

    size_bytes: float
    bandwidth_bytes_per_second: float
    latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        at_least(0, size_bytes=self.size_bytes, latency_seconds=self.latency_seconds)
        above(0, bandwidth_bytes_per_second=self.bandwidth_bytes_per_second)

    def seconds(self, workers: int, /) -> float:
        """Seconds of a step after the slowest worker."""
        if workers < 2:
            return 0.0
        part = self.size_bytes / workers / self.bandwidth_bytes_per_second
        return 2 * (workers - 1) * (part + self.latency_seconds)


@dataclass(frozen=True, slots=True)
class ParameterServer:
    """Every worker sends its gradients to the servers and gets parameters back; the servers' links are shared.

    Where servers outnumber workers, a worker's own link, of the same bandwidth, is what holds it up.
    """

    size_bytes: float
    bandwidth_bytes_per_second: float
    latency_seconds: float = 0.0
    servers: int = 1

    def __post_init__(self) -> None:
        at_least(0, size_bytes=self.size_bytes, latency_seconds=self.latency_seconds)
        at_least(1, servers=self.servers)
        above(0, bandwidth_bytes_per_second=self.bandwidth_bytes_per_second)

    def seconds(self, workers: int, /) -> float:
        """Seconds of a step after the slowest worker."""
        sent = max(workers / self.servers, 1) * self.size_bytes / self.bandwidth_bytes_per_second
        return 2 * (sent + self.latency_seconds)
