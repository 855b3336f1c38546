"""Workers that somebody else has started, torchrun mostly, behind the port of a cluster: only batches are changed.

The launcher starts workers, sees them end, and starts all again, so they are always seen to run, and nothing creates or
deletes one. Plan and memory lie in a folder, as on one machine; rank 0 reads it.
"""

from __future__ import annotations

import logging
from pathlib import Path

from heterotrain.contract import Launch
from heterotrain_operator.clusters.local.volume import PlanVolume
from heterotrain_operator.core.model import Decision, Group, Job, Seen, Stragglers, WorkerSeen
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.metrics.pods import PodReader

logger = logging.getLogger(__name__)

_NEVER = 1e9
"""Seconds: whether workers live, start in time or hang is the launcher's business."""


def job_of(launch: Launch) -> Job:
    """What decisions are to know of the job: groups in the order of their lowest ranks, so that rank 0 leads."""
    groups = dict.fromkeys(worker.group for worker in launch.workers)
    of_group = {name: [worker for worker in launch.workers if worker.group == name] for name in groups}
    return Job(
        name="launched",
        groups=tuple(Group(name, len(workers), workers[0].device) for name, workers in of_group.items()),
        global_batch=launch.global_batch_size,
        initial="Uniform",
        stragglers=Stragglers(action="Rebalance"),
        startup_deadline_seconds=_NEVER,
        finish_deadline_seconds=_NEVER,
        heartbeat_timeout_seconds=_NEVER,
        progress_timeout_seconds=_NEVER,
    )


class LaunchedCluster:
    """See the module. It has the methods of `Cluster`, and must be closed."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._volume = PlanVolume(Path(launch.plan_dir))
        self._version: str | None = None
        self._memory: Remembered | None = None
        self._reader = PodReader()

    def observe(self, _: None = None, /) -> tuple[Seen, Remembered | None]:
        """The plan, and what workers export; one that cannot be read keeps its batch."""
        stored = self._volume.read()
        self._version = stored.version
        metrics = self._reader.read({worker.name: worker.metrics_address for worker in self._launch.workers})
        workers = tuple(
            WorkerSeen(
                each.name, each.uid, each.group, each.index, "Running", each.address, metrics=metrics.get(each.name)
            )
            for each in self._launch.workers
        )
        return Seen(workers, stored.plan), self._memory

    def act(self, decision: Decision, memory: Remembered) -> None:
        """Store plan and memory. Raises PlanConflictError if somebody else did since `observe`."""
        for name in (*(key.name for key in decision.create), *decision.delete):
            logger.warning("worker %s: left to the launcher: %s", name, decision.reason)
        self._version = self._volume.write(self._version, decision.plan, memory.to_json())
        self._memory = memory

    def close(self) -> None:
        """Close all connections."""
        self._reader.close()
