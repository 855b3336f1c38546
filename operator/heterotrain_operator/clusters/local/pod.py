"""One worker of the job on this machine: its process, how it is limited, and what an observation says of it."""

from __future__ import annotations

from dataclasses import dataclass

from heterotrain_operator.clusters.local.limits import machine_cores
from heterotrain_operator.clusters.local.placement import move
from heterotrain_operator.clusters.local.process import WorkerFiles, WorkerProcess
from heterotrain_operator.core.model import PodPhase, WorkerKey, WorkerMetrics, WorkerSeen


@dataclass(slots=True)
class Pod:
    """A process in the place of a pod. Its limits hold once it is `confined`."""

    key: WorkerKey
    files: WorkerFiles
    address: str
    metrics_address: str
    cores: float | None
    process: WorkerProcess
    neighbours: int = 0
    confined: bool = False
    deleted: bool = False
    evicted: bool = False

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
        if code is not None:
            phase = "Failed" if code else "Succeeded"
            words = self.process.last_words()
            finished, step, message = words.finished, words.step, words.message
            script_error, fatal, evaluated = words.script_error, words.fatal, words.evaluated
            left = words.left and code == 0
            out_of_memory = code != 0 and (self.process.out_of_memory or words.out_of_memory)
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
            metrics=metrics,
            evaluated=evaluated,
        )


def usable(cores: float | None) -> float | None:
    """A CPU limit as far as this machine can give it."""
    return None if cores is None else min(cores, float(machine_cores()))
