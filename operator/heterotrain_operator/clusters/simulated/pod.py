"""A simulated pod with the worker in it: what it is, where it is in its life, and what becomes of several at once.

Trainers whose members can change while they train do something by themselves: those that are left share the batches.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from heterotrain.contract import MEMBERS_MAY_END, PHASE_HOLDING, PHASE_PREPARING, PHASE_TRAINING, PHASE_WAITING, Plan
from heterotrain_operator.clusters.simulated.events import EndOfWorker
from heterotrain_operator.clusters.simulated.laws import TimeLaw
from heterotrain_operator.clusters.simulated.scenario import MemoryUse
from heterotrain_operator.core.model import PodPhase, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.split.allocation import split_proportionally
from heterotrain_operator.core.split.passes import at_once

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
    leader: bool | None = None
    last_step: int = 0
    answers: bool = True
    least_batch: int = 1
    protocol: int = 1
    exports_use: bool = True
    column: int = 0
    created_at: float | None = None
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
            leader=self.leader,
            deleting_since=self.gone_at,
            node=self.node,
            gated=self.gated,
            metrics=reported if running else None,
            created_at=self.created_at,
        )

    @property
    def is_ready(self) -> bool:
        """Whether it can take part in steps."""
        return self.exit_code is None and self.runs_at is None and self.ready_at is None and self.gone_at is None

    @property
    def next_moment(self) -> float:
        """When its life goes on: it runs, is ready, or is gone."""
        return min([at for at in (self.runs_at, self.ready_at, self.gone_at) if at is not None], default=math.inf)

    def end(
        self,
        exit_code: int,
        *,
        finished: bool = False,
        leader: bool | None = None,
        message: str = "",
        disrupted: bool = False,
        out_of_memory: bool = False,
    ) -> None:
        """Its process ends, after the job's last step if it has `finished`, as the `leader` or not; `out_of_memory`:
        the kernel killed it, for its memory.
        """
        self.phase = "Succeeded" if exit_code == 0 else "Failed"
        self.runs_at = self.ready_at = None
        self.exit_code, self.finished, self.message, self.disrupted = exit_code, finished, message, disrupted
        self.out_of_memory, self.leader = out_of_memory, leader

    def end_out_of_memory(self, message: str) -> None:
        """The kernel killed it, for its memory."""
        self.end(137, message=message, out_of_memory=True)

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


def kill_beyond_limits(pods: Sequence[SimulatedPod], plan: Plan) -> bool:
    """Kill members of the plan, by rank, whose memory does not hold their batches; whether there are any."""
    killed = False
    for pod, member in zip(pods, plan.members, strict=True):
        use = pod.memory
        if use is not None and use.limit_bytes is not None and use.peak_bytes(at_once(member)) > use.limit_bytes:
            pod.end_out_of_memory(f"out of memory (limit {use.limit_bytes / 2**20:.0f} MiB)")
            killed = True
    return killed


def can_change(pods: Sequence[SimulatedPod]) -> bool:
    """Whether these members can go on with others, and without some of them."""
    return all(pod.protocol >= MEMBERS_MAY_END for pod in pods)


def reformed(plan: Plan, survivors: Sequence[SimulatedPod]) -> Plan:
    """The plan with those that are left of its members, and their batches as many times as large, in whole samples; a
    member computes no more of them at once than before.
    """
    uids = {pod.uid for pod in survivors}
    members = [member for member in plan.members if member.uid in uids]
    total = plan.global_batch_size
    batches = split_proportionally([member.batch_size for member in members], total, [(0, total)] * len(members))
    return replace(
        plan,
        members=tuple(
            replace(member, batch_size=batch, micro_batch_size=at_once(member) if batch > at_once(member) else 0)
            for member, batch in zip(members, batches, strict=True)
        ),
    )


def present_of(plan: Plan, pods: Mapping[str, SimulatedPod]) -> list[SimulatedPod]:
    """The plan's members that are there and can take part in steps, by rank."""
    found = ((pods.get(member.name), member.uid) for member in plan.members)
    return [pod for pod, uid in found if pod is not None and pod.uid == uid and pod.is_ready]


def leave(pods: Sequence[SimulatedPod], staying: Collection[str], step: int) -> None:
    """Members whose UIDs are not among those that stay end in order, after so many committed steps."""
    for pod in pods:
        if pod.uid not in staying and pod.exit_code is None and pod.gone_at is None:
            pod.end_in_order(step)


def end_due(ends: list[EndOfWorker], executed: int, pods: Mapping[str, SimulatedPod], step: int) -> bool:
    """What is due by so many executed steps, of which so many are committed, happens: pods end. Whether one did."""
    ended = False
    while ends and ends[0].at <= executed:
        event = ends.pop(0)
        for pod in pods.values():
            if pod.exit_code is None and event.concerns(pod.name, pod.group):
                pod.last_step = step
                event.end(pod)
                ended = True
    return ended


def first_metrics(plan: Plan, rank: int, step: int, epoch: int, total_steps: int | None) -> WorkerMetrics:
    """What the member of that rank exports as it begins to follow a plan."""
    return WorkerMetrics(
        plan_version=plan.version,
        generation=plan.generation,
        batch_size=plan.members[rank].batch_size,
        step=step,
        epoch=epoch,
        total_steps=total_steps or 0,
        phase=PHASE_HOLDING if plan.holds else PHASE_TRAINING,
        rank=rank,
        members=len(plan.members),
    )
