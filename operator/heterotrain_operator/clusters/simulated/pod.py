"""A simulated pod with the worker in it: what it is, and where it is in its life."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from heterotrain.contract import PHASE_PREPARING, PHASE_WAITING
from heterotrain_operator.clusters.simulated.laws import TimeLaw
from heterotrain_operator.clusters.simulated.scenario import MemoryUse
from heterotrain_operator.core.model import PodPhase, WorkerMetrics, WorkerSeen

FIRST_WORDS = WorkerMetrics(plan_version=0, phase=PHASE_PREPARING)
READY = WorkerMetrics(plan_version=0, phase=PHASE_WAITING)


@dataclass(eq=False)
class SimulatedPod:
    """A pod whose steps take `scale * law.seconds(batch)` seconds of its own, times noise and what events do.

    Whoever holds the simulation may change it at any time, as real ones are changed. `column` is its place in the
    draws. `runs_at` and `ready_at` (seconds of the simulation's clock) are when its process starts and when its script
    is ready; None: that is behind it. It is being deleted since `deleted_at`.
    """

    name: str
    group: str
    index: int
    uid: str
    law: TimeLaw
    scale: float = 1.0
    memory: MemoryUse | None = None
    cpu_limit: float | None = None
    phase: PodPhase = "Running"
    exit_code: int | None = None
    finished: bool = False
    message: str = ""
    disrupted: bool = False
    out_of_memory: bool = False
    script_error: bool = False
    fatal: bool = False
    gated: bool = False
    node: str = ""
    asked_to_stop: bool = False
    left: bool = False
    last_step: int = 0
    answers: bool = True
    least_batch: int = 1
    protocol: int = 1
    exports_use: bool = True
    column: int = 0
    started_step: int = 0
    begun_limit: float | None = None
    runs_at: float | None = None
    ready_at: float | None = None
    gone_at: float | None = None
    metrics: WorkerMetrics = field(default=READY)

    def seen(self, metrics: WorkerMetrics | None = None) -> WorkerSeen:
        """As an observation shows it, with what could be read of it (None: its metrics as they are)."""
        reported = self.metrics if metrics is None else metrics
        if (reported.least_batch_size, reported.protocol) != (self.least_batch, self.protocol):
            reported = replace(reported, least_batch_size=self.least_batch, protocol=self.protocol)
        running = self.answers and self.exit_code is None and self.runs_at is None
        return WorkerSeen(
            name=self.name,
            uid=self.uid,
            group=self.group,
            index=self.index,
            phase=self.phase,
            address=f"10.0.0.{self.index}:29500",
            cpu_limit=self.cpu_limit,
            exit_code=self.exit_code,
            finished=self.finished,
            step=self.last_step,
            message=self.message,
            disrupted=self.disrupted,
            out_of_memory=self.out_of_memory,
            script_error=self.script_error,
            fatal=self.fatal,
            asked_to_stop=self.asked_to_stop,
            left=self.left,
            deleting_since=self.gone_at,
            node=self.node,
            gated=self.gated,
            metrics=reported if running else None,
        )

    @property
    def is_ready(self) -> bool:
        """Whether it can take part in steps."""
        return self.exit_code is None and self.runs_at is None and self.ready_at is None and self.gone_at is None

    @property
    def next_moment(self) -> float:
        """When its life goes on: it runs, is ready, or is gone."""
        return min([at for at in (self.runs_at, self.ready_at, self.gone_at) if at is not None], default=math.inf)

    def end(self, exit_code: int, *, finished: bool = False, message: str = "", disrupted: bool = False) -> None:
        """Its process ends."""
        self.phase = "Succeeded" if exit_code == 0 else "Failed"
        self.runs_at = self.ready_at = None
        self.exit_code, self.finished, self.message, self.disrupted = exit_code, finished, message, disrupted

    def end_out_of_memory(self, message: str) -> None:
        """The kernel killed it, for its memory."""
        self.end(137, message=message)
        self.out_of_memory = True

    def end_by_script(self, step: int, message: str = "ValueError: label 17") -> None:
        """The script raised, after so many committed steps."""
        self.end(1, message=message)
        self.script_error, self.last_step = True, step

    def end_asked(self) -> None:
        """As it says, because somebody asked it to stop."""
        self.end(143, message="was asked to stop")
        self.asked_to_stop = True

    def end_in_order(self, step: int, message: str = "left the job in order") -> None:
        """As it says, the job goes on without it, after so many committed steps."""
        self.end(0, message=message)
        self.left, self.last_step = True, step

    def end_for_good(self, message: str) -> None:
        """With an error after which no other try may be made."""
        self.end(1, message=message)
        self.fatal = True
