"""One worker of the job on this machine: its process, its limits, its CPU, and what an observation says of it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heterotrain_operator.clusters.local.limits import machine_cores
from heterotrain_operator.clusters.local.process import WorkerFiles, WorkerProcess
from heterotrain_operator.core.model import PodPhase, WorkerKey, WorkerMetrics, WorkerSeen


@dataclass(slots=True)
class Pod:
    """A process in the place of a pod. Its limits hold once it is `confined`; `gpu` is how CUDA knows the GPU that it
    was given."""

    key: WorkerKey
    files: WorkerFiles
    address: str
    metrics_address: str
    cores: float | None
    process: WorkerProcess
    gpu: str | None = None
    neighbours: int = 0
    confined: bool = False
    deleted: bool = False
    evicted: bool = False
    created_at: float = field(default_factory=time.time)

    @property
    def uid(self) -> str:
        """Of this process, and of no other that takes its place."""
        return self.files.uid

    @property
    def is_running(self) -> bool:
        """Whether its process has not ended."""
        return self.process.exit_code() is None

    def confine(self, cpu: int | None) -> None:
        """Set its CPU limit, the CPU that it is kept to, if any, and its neighbours. Raises LimitError if refused."""
        self.process.limits.set_cores(self.cores)
        if cpu is not None:
            move({self.process.pid, *self.process.limits.pids()}, cpu)
        if self.neighbours:
            self.process.limits.set_neighbours(self.neighbours, cpu)
        self.confined = True

    def seen(self, metrics: WorkerMetrics | None) -> WorkerSeen:
        """What an observation says of it."""
        code = self.process.exit_code()
        phase: PodPhase = "Running"
        finished, step, message, evaluated = False, 0, "", None
        out_of_memory = script_error = fatal = left = False
        leader: bool | None = None
        if code is not None:
            phase = "Failed" if code else "Succeeded"
            words = self.process.last_words()
            finished, step, message = words.finished, words.step, words.message
            script_error, fatal, evaluated = words.script_error, words.fatal, words.evaluated
            left, leader = words.left and code == 0, words.leader
            out_of_memory = (code != 0 and self.process.out_of_memory) or (words.out_of_memory and not words.finished)
        return WorkerSeen(
            name=self.key.name,
            uid=self.uid,
            group=self.key.group,
            index=self.key.index,
            phase=phase,
            address=self.address,
            cpu_limit=usable(self.cores),
            exit_code=code,
            finished=finished,
            step=step,
            message=message,
            disrupted=self.deleted or self.evicted,
            out_of_memory=out_of_memory,
            script_error=script_error,
            fatal=fatal,
            left=left,
            leader=leader,
            metrics=metrics,
            evaluated=evaluated,
            created_at=self.created_at,
        )


def usable(cores: float | None) -> float | None:
    """A CPU limit as far as this machine can give it."""
    return None if cores is None else min(cores, float(machine_cores()))


def place(limits: Mapping[str, float | None], cpus: Sequence[int]) -> dict[str, int]:
    """A CPU for each worker so that the limits on each CPU, in cores, add up to at most one; first fit, largest first.

    Empty if that cannot be: a worker without a limit or with more than one core, or too many for the machine. Policies
    are compared so: left alone, the scheduler now and then puts two workers on one CPU while another idles, and workers
    on machines of their own would not disturb each other.
    """
    free = dict.fromkeys(cpus, 1.0)
    placed: dict[str, int] = {}
    for name, cores in sorted(limits.items(), key=lambda item: (-(item[1] or 0.0), item[0])):
        fitting = [cpu for cpu in cpus if cores is not None and cores <= free[cpu] + 1e-9]
        if cores is None or not fitting:
            return {}
        placed[name] = fitting[0]
        free[fitting[0]] -= cores
    return placed


def move(pids: Iterable[int], cpu: int) -> None:
    """Let all threads of these processes run on that CPU alone; those that have ended meanwhile are passed over."""
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # The first thread first: those that start meanwhile inherit from it.
            for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda task: int(task.name)):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(task.name), {cpu})
