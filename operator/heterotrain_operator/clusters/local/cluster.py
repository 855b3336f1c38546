"""A job on this machine, behind the port of a cluster: pods are processes, the plan is a folder."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from heterotrain_operator.api import HeteroTrainingJob
from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.limits import Mechanism, detect
from heterotrain_operator.clusters.local.pod import Pod, move
from heterotrain_operator.clusters.local.process import WorkerFiles, WorkerProcess
from heterotrain_operator.clusters.local.starting import Starter, check_working_dirs
from heterotrain_operator.clusters.local.template import read_templates
from heterotrain_operator.clusters.local.volume import PlanVolume
from heterotrain_operator.core.model import SHORT_GRACE_SECONDS, Decision, Seen
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.metrics.pods import PodReader

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05


class LocalCluster:
    """Runs one job's pods as processes. A context manager; leaving it leaves no process and no cgroup behind.

    CPU limits hold from a worker's first plan on: before it there is nothing to measure, and a small worker would take
    a minute to load torch.

    `ignored` are the paths of the manifest's fields that mean nothing here. Make it, and act on it, in a
    thread that lives as long as the run (best the main one): the kernel ends the workers with the thread that
    started them.
    """

    def __init__(
        self,
        job: HeteroTrainingJob,
        directory: Path,
        checkpoint_path: str | None,
        *,
        mechanism: Mechanism | None = None,
        cpus: Mapping[str, int] | None = None,
        endless: bool = False,
        logs: Path | None = None,
    ) -> None:
        """Use `directory` for plan, logs and series; `checkpoint_path` replaces the manifest's. `cpus` keeps workers,
        by name, to one CPU each. Workers of an `endless` job go on until they are stopped. `logs` is where their logs
        lie instead, in a folder for each worker.

        Raises ManifestError if a template asks for what a process cannot have. Without a `mechanism` the best
        that works here limits the workers.
        """
        self.job = job
        self.directory = directory.absolute()
        self._logs = self.directory / "workers" if logs is None else logs.absolute()
        self._templates = read_templates(job)
        check_working_dirs(job, self._templates)
        self.ignored = tuple(path for template in self._templates.values() for path in template.ignored)
        self.mechanism = detect() if mechanism is None else mechanism
        self._cpus = dict(cpus or {})
        self._token = leftovers.new_token()
        self._reader = PodReader()
        self._pods: dict[str, Pod] = {}
        self._history: dict[str, list[WorkerFiles]] = {}
        self._reported: set[str] = set()
        self._closed = False
        if not leftovers.sweep(self.mechanism.parents):
            logger.warning("some processes of an earlier run that was killed could not be removed")
        self._volume = PlanVolume(self.directory / "plan")
        self._version: str | None = None
        self._starter = Starter(
            job,
            self._templates,
            checkpoint_path,
            endless=endless,
            directory=self.directory,
            logs=self._logs,
            plan_directory=self._volume.directory,
            mechanism=self.mechanism,
            token=self._token,
        )
        # Last, so that nothing above leaves it behind.
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", leftovers.__file__, self._token, *map(str, self.mechanism.parents)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    # --- the port -------------------------------------------------------------------------------------------

    def observe(self, _: None = None, /) -> tuple[Seen, Remembered | None]:
        """Processes, plan and metrics as they are now, and the memory beside the plan."""
        self._tend()
        stored = self._volume.read()
        self._version = stored.version
        alive = {name: pod.metrics_address for name, pod in self._pods.items() if pod.is_running}
        metrics = self._reader.read(alive)
        workers = tuple(pod.seen(metrics.get(name)) for name, pod in self._pods.items())
        self._reported = {worker.uid for worker in workers if worker.exit_code is not None}
        return Seen(workers, stored.plan), _memory(stored.memory)

    def act(self, decision: Decision, memory: Remembered) -> None:
        """Publish, delete, create; what is done already is not done again.

        Raises PlanConflictError if plan or memory changed since `observe`, and LimitError or OSError if a
        process cannot be had.
        """
        if decision.plan is not None:
            named = (*decision.plan.members, decision.plan.server)
            self._confine({each.name for each in named if each is not None})
        self._version = self._volume.write(self._version, decision.plan, memory.to_json())
        for name in decision.delete:
            if (pod := self._pods.get(name)) is not None:
                pod.deleted = True
                usual = self._templates[pod.key.group].grace_seconds
                pod.process.terminate(min(usual, SHORT_GRACE_SECONDS) if name in decision.short_grace else usual)
        self._tend()
        for key in decision.create:
            if key.name in self._pods:
                logger.info("worker %s exists still; it is created once the old one is gone", key.name)
            else:
                taken = [pod.gpu for pod in self._pods.values() if pod.gpu is not None and pod.is_running]
                pod = self._starter.start(key, beside_training=decision.beside_training, taken=taken)
                self._pods[key.name] = pod
                self._history.setdefault(key.name, []).append(pod.files)

    # --- beside the port ------------------------------------------------------------------------------------

    def set_cpu_limit(self, name: str, cores: float | None) -> None:
        """Change a worker's CPU limit; nothing changes for one that has ended. Raises ValueError without such a worker,
        LimitError if refused.
        """
        pod = self._pod(name)
        if pod.is_running:
            if pod.confined:
                pod.process.limits.set_cores(cores)
            pod.cores = cores

    def keep_to_cpu(self, name: str, cpu: int) -> None:
        """Let a worker, all of its threads, run on that CPU alone, and those that take its place. Raises ValueError
        without such a worker.
        """
        pod = self._pod(name)
        self._cpus[name] = cpu
        if pod.confined and pod.is_running:
            move(pod.process.limits.pids(), cpu)

    def set_neighbours(self, name: str, count: int) -> None:
        """Let so many busy processes share a worker's limits with it, from its first plan on, as its limits; nothing
        changes for one that has ended. Raises ValueError without such a worker, LimitError if that is not possible.
        """
        pod = self._pod(name)
        if pod.is_running:
            if pod.confined:
                pod.process.limits.set_neighbours(count, self._cpus.get(name))
            pod.neighbours = count

    def cpu_limit(self, name: str) -> float | None:
        """A worker's CPU limit, in cores. Raises ValueError without such a worker."""
        return self._pod(name).cores

    def neighbours(self, name: str) -> int:
        """How many busy processes share a worker's limits. Raises ValueError without such a worker."""
        return self._pod(name).neighbours

    def evict(self, name: str) -> None:
        """Let a worker leave as one whose machine is reclaimed: SIGTERM, and SIGKILL after its grace period. Raises
        ValueError without such a worker.
        """
        pod = self._pod(name)
        pod.evicted = True
        pod.process.terminate(self._templates[pod.key.group].grace_seconds)

    def names(self) -> tuple[str, ...]:
        """The workers that there are now, running or ended."""
        return tuple(self._pods)

    def process(self, name: str) -> WorkerProcess:
        """A worker's processes, running or ended. Raises ValueError without such a worker."""
        return self._pod(name).process

    def live_processes(self) -> dict[str, set[int]]:
        """The processes that each worker still has, by its uid; any thread may ask."""
        return {pod.uid: pod.process.limits.pids() for pod in list(self._pods.values())}

    def wait(self, seconds: float, meanwhile: Callable[[], None] | None = None) -> None:
        """Let time pass, but no longer than until there is an end of a worker that was not observed yet.

        `meanwhile` is called now and then.
        """
        deadline = time.monotonic() + seconds
        while not self._tend() and not self._unreported() and (left := deadline - time.monotonic()) > 0:
            if meanwhile is not None:
                meanwhile()
            time.sleep(min(POLL_SECONDS, left))

    def interrupt(self, grace_seconds: float) -> bool:
        """Ask all workers to end, and wait; kill those left. Returns whether all ended by themselves."""
        for pod in self._pods.values():
            pod.process.terminate(grace_seconds)
        deadline = time.monotonic() + grace_seconds
        while time.monotonic() < deadline and self._running():
            time.sleep(POLL_SECONDS)
        in_order = not self._running()
        self._end_all()
        return in_order

    def series_files(self) -> dict[str, list[Path]]:
        """The files of step records of each worker, oldest incarnation first; only those that exist."""
        return {
            name: [files.series for files in history if files.series.exists()]
            for name, history in self._history.items()
        }

    def log_file(self, name: str) -> Path:
        """The log of a worker, all its incarnations in one."""
        return self._logs / name / "log"

    def close(self) -> None:
        """Kill what is left and remove every limit; harmless when done already."""
        if self._closed:
            return
        self._end_all()
        if not leftovers.sweep(self.mechanism.parents, self._token):
            logger.error("job %s: some processes or cgroups could not be removed", self.job.metadata.name)
        self._reader.close()
        self._guardian.kill()
        self._guardian.wait()
        if self._guardian.stdin is not None:
            self._guardian.stdin.close()
        self._starter.close()
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- inside ---------------------------------------------------------------------------------------------

    def _pod(self, name: str) -> Pod:
        if name not in self._pods:
            raise ValueError(f"there is no worker {name!r}; there are {', '.join(self._pods) or 'none'}")
        return self._pods[name]

    def _confine(self, names: Collection[str]) -> None:
        """Set the CPU limits, and the CPU, of those that are about to get their first plan."""
        for name, pod in self._pods.items():
            if name in names and not pod.confined and pod.is_running:
                pod.confine(self._cpus.get(name))

    def _running(self) -> bool:
        return any(pod.is_running for pod in self._pods.values())

    def _unreported(self) -> bool:
        pods = self._pods.values()
        return any(pod.uid not in self._reported and not pod.is_running for pod in pods)

    def _tend(self) -> bool:
        """Do what is due for all processes. Returns whether a deleted one went."""
        gone = [name for name, pod in self._pods.items() if pod.process.tend() and pod.deleted]
        for name in gone:
            del self._pods[name]
        return bool(gone)

    def _end_all(self) -> None:
        deadline = time.monotonic() + leftovers.PATIENCE_SECONDS
        for pod in self._pods.values():
            pod.process.kill()
        for name, pod in self._pods.items():
            if not pod.process.close(deadline):
                logger.error("worker %s cannot be removed: processes %s", name, sorted(pod.process.limits.pids()))


def _memory(text: str | None) -> Remembered | None:
    """The stored memory; None, and so a fresh start, if there is none or it cannot be understood."""
    if text is None:
        return None
    try:
        return Remembered.from_json(text)
    except ValueError as error:
        logger.warning("what was remembered of earlier decisions is lost: %s", error)
        return None
