"""Faults of a running job's workers, on purpose: what happens to machines, done to processes.

A fault belongs to the process that it befell: whoever takes the place of a worker that has ended starts without it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.clusters.local.limits import LimitError
from heterotrain_operator.clusters.local.partition import Partition, PartitionError

logger = logging.getLogger(__name__)

Fault = Literal["kill", "stop", "slow", "starve", "partition", "leave"]
FAULTS: tuple[Fault, ...] = get_args(Fault)

UNDOES: dict[str, tuple[Fault, ...]] = {
    "continue": ("stop",),
    "heal": ("partition",),
    "restore": ("slow", "starve"),
}
"""What takes faults back, and which; kill and leave cannot be."""

LASTING: tuple[Fault, ...] = tuple(fault for faults in UNDOES.values() for fault in faults)

STARVED_CORES = 0.05
"""The CPU limit of a starved worker: what a machine leaves to it that somebody else has taken over."""

GREATEST_NEIGHBOURS = 64

T = TypeVar("T")


class ChaosError(Exception):
    """A fault could not be had; the text names the worker, and what is missing."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A fault that lasts, of the worker's process with this uid; `until` by the monotonic clock, None: until the
    process ends. `undo` takes it back.
    """

    worker: str
    uid: str
    fault: Fault
    until: float | None
    undo: Callable[[], None]


class Chaos:
    """The faults of one cluster's workers. Made, used and closed in the cluster's thread; a context manager."""

    def __init__(self, cluster: LocalCluster, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._monotonic = monotonic
        self._standing: dict[tuple[str, Fault], Standing] = {}
        self._partition = Partition(cluster.live_processes)

    @property
    def standing(self) -> tuple[Standing, ...]:
        """The faults that last."""
        return tuple(self._standing.values())

    def begin(self, fault: Fault, worker: str, *, seconds: float | None = None, neighbours: int = 1) -> None:
        """Let a worker have a fault, for so many seconds if it is one of LASTING (None: until it is taken back).

        A fault that it has already goes on, and ends by the last word. Raises ValueError if there is no such worker,
        ChaosError if it has ended or the fault cannot be had here.
        """
        process = self._cluster.process(worker)
        if process.exit_code() is not None:
            raise ChaosError(f"{worker} has ended")
        uid = process.files.uid
        undo = self._standing[uid, fault].undo if (uid, fault) in self._standing else None
        if undo is None:
            undo = self._done(fault, worker, uid, neighbours)
        if undo is not None:
            until = None if seconds is None else self._monotonic() + seconds
            self._standing[uid, fault] = Standing(worker, uid, fault, until, undo)

    def end(self, worker: str, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
        """Take back faults of a worker. Returns those that it had. Raises ValueError if there is no such worker,
        ChaosError if one cannot be taken back.
        """
        uid = self._cluster.process(worker).files.uid
        found = tuple(fault for fault in faults if (uid, fault) in self._standing)
        for fault in found:
            self._take_back(self._standing[uid, fault])
        return found

    def tend(self) -> tuple[Standing, ...]:
        """Take back what is due, and forget the faults of those that have ended. Returns what was taken back."""
        ended = []
        for each in self.standing:
            if self._has_ended(each):
                del self._standing[each.uid, each.fault]
                if each.fault == "partition":
                    self._partition.heal(each.uid)
            elif each.until is not None and self._monotonic() >= each.until:
                self._take_back_if_possible(each)
                ended.append(each)
        return tuple(ended)

    def close(self) -> None:
        """Take everything back, so that workers can be asked to end."""
        for each in self.standing:
            if not self._has_ended(each):
                self._take_back_if_possible(each)
        self._standing.clear()
        self._partition.close()

    def _has_ended(self, standing: Standing) -> bool:
        try:
            process = self._cluster.process(standing.worker)
        except ValueError:
            return True
        return process.files.uid != standing.uid or process.exit_code() is not None

    def _take_back(self, standing: Standing) -> None:
        del self._standing[standing.uid, standing.fault]
        self._tried(standing.worker, standing.undo)

    def _take_back_if_possible(self, standing: Standing) -> None:
        try:
            self._take_back(standing)
        except ChaosError as error:
            logger.warning("%s of %s could not be taken back: %s", standing.fault, standing.worker, error)

    def _done(self, fault: Fault, worker: str, uid: str, neighbours: int) -> Callable[[], None] | None:
        """Do it. Returns what takes it back, None if nothing can."""
        cluster, process = self._cluster, self._cluster.process(worker)
        if fault == "kill":
            process.kill()
            return None
        if fault == "leave":
            cluster.evict(worker)
            return None
        if fault == "stop":
            process.set_stopped(True)
            return lambda: process.set_stopped(False)
        if fault == "partition":
            self._tried(worker, lambda: self._partition.cut(uid))
            return lambda: self._partition.heal(uid)
        if fault == "slow":
            return self._slowed(worker, neighbours)
        return self._starved(worker)

    def _slowed(self, worker: str, more: int) -> Callable[[], None]:
        before = self._cluster.neighbours(worker)

        def undo() -> None:
            if self._cluster.neighbours(worker) == before + more:  # else a schedule has changed them since
                self._cluster.set_neighbours(worker, before)

        self._tried(worker, lambda: self._cluster.set_neighbours(worker, before + more))
        return undo

    def _starved(self, worker: str) -> Callable[[], None]:
        before = self._cluster.cpu_limit(worker)

        def undo() -> None:
            if self._cluster.cpu_limit(worker) == STARVED_CORES:
                self._cluster.set_cpu_limit(worker, before)

        self._tried(worker, lambda: self._cluster.set_cpu_limit(worker, STARVED_CORES))
        return undo

    def _tried(self, worker: str, act: Callable[[], T]) -> T:
        try:
            return act()
        except (LimitError, PartitionError, OSError) as error:
            raise ChaosError(str(error) if worker in str(error) else f"{worker}: {error}") from error
