"""The client: one class for jobs on this machine and on a cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Unpack

from heterotrain_client.backend import Backend, Document
from heterotrain_client.errors import (
    ClusterUnreachableError,
    InvalidJobError,
    JobFailedError,
    WaitTimeoutError,
)
from heterotrain_client.functions import script_of
from heterotrain_client.models import Explanation, Job, Jobs, Report
from heterotrain_client.options import RunArguments, Workers, workers_text
from heterotrain_operator.api import HeteroTrainingJob, ManifestError, Problem
from heterotrain_operator.api.document import near_miss, read_document
from heterotrain_operator.api.problems import did_you_mean

BACKENDS = ("local", "kubernetes")
FAULTS = ("Invalid", "Failed")
PHASES = ("Created", "Invalid", "Running", "Restarting", "Suspended", "Succeeded", "Failed")

PATIENCE_SECONDS = 300.0
"""For a cluster that does not answer while somebody waits for a job, which trains on meanwhile."""


class Client:
    """Runs jobs, and looks at them. Everything it raises is a ClientError (`heterotrain_client.errors`).

    `list_jobs`, `get_job`, `get_job_logs`, `delete_job` and `wait_for_job_status` are the names of Kubeflow's
    `TrainerClient` for what means the same.
    """

    def __init__(
        self,
        backend: str = "local",
        *,
        folder: str | Path | None = None,
        kubeconfig: str | None = None,
        context: str | None = None,
        namespace: str | None = None,
    ) -> None:
        """`local` runs jobs on this machine, from `folder` (default: the current one), where it finds those of
        `heterotrain run`, too. `kubernetes` finds a cluster as kubectl does: by `kubeconfig`, `context` and
        `namespace`, else KUBECONFIG, ~/.kube/config, or the account of this pod. Raises InvalidJobError for options
        that do not belong to the backend, ClusterError if there is no usable kubeconfig.
        """
        if backend not in BACKENDS:
            known = did_you_mean(str(backend), BACKENDS) or f"; there are {', '.join(BACKENDS)}"
            raise InvalidJobError([Problem("backend", f"there is no {backend!r}{known}")])
        others = {"kubeconfig": kubeconfig, "context": context, "namespace": namespace}
        others = others if backend == "local" else {"folder": None if folder is None else str(folder)}
        misplaced = [Problem(name, f"is not for the backend {backend}") for name, value in others.items() if value]
        if misplaced:
            raise InvalidJobError(misplaced)
        self._folder = Path.cwd() if folder is None else Path(folder)
        self._backend: Backend
        if backend == "local":
            from heterotrain_client.local import LocalJobs  # noqa: PLC0415

            self._backend = LocalJobs(self._folder)
        else:
            # The Kubernetes client takes its time to load.
            from heterotrain_client.cluster import ClusterJobs  # noqa: PLC0415

            self._backend = ClusterJobs(kubeconfig, context, namespace)

    def run(
        self,
        script_or_function: str | Path | Callable[..., Any],
        workers: Workers | None = None,
        **options: Unpack[RunArguments],
    ) -> Job:
        """Run a training script, or a function, and return at once; see `wait`, `logs` and `status`.

        `workers` are those of `heterotrain run --workers`: 3, "3x1.0,2x0.5", [1.0, 0.5, "gpu:0"]. Options are named as
        there: `global_batch` (samples per step), `epochs` or `steps`, `seed`, `policy`, `arguments` (of the script),
        `checkpoints`, `resume`, `fresh`, `compare`, `rounds`; on a cluster `image`. `name` is the job's, else that of
        the script or function; `func_args` are keyword arguments of a function, which must bring its imports with it.
        Raises InvalidJobError with all that is wrong, JobExistsError.
        """
        given: dict[str, Any] = dict(options)
        text = workers_text(workers)
        if isinstance(script_or_function, str | Path):
            return self._backend.run(Path(script_or_function), text, given)
        arguments = given.get("func_args") or {}
        if not isinstance(arguments, Mapping):
            raise InvalidJobError([Problem("func_args", f"must be a dict, found {arguments!r:.60}")])
        source = script_of(script_or_function, arguments)
        return self._backend.run_source(script_or_function.__name__, source, text, given)

    def submit(
        self, manifest: str | Path | Mapping[str, Any] | HeteroTrainingJob, **options: Unpack[RunArguments]
    ) -> Job:
        """Run a job as its manifest says: a YAML file, its content as a dict, or the model.

        Here, `policy`, `compare`, `rounds`, `seed`, `resume` and `fresh` are as for `heterotrain run`. Raises
        InvalidJobError, whose problems are those of `heterotrain validate`, and JobExistsError.
        """
        path: Path | None = None
        if isinstance(manifest, HeteroTrainingJob):
            document: Document = manifest.model_dump(mode="json", by_alias=True, exclude_unset=True)
        elif isinstance(manifest, Mapping):
            document = dict(manifest)
        else:
            path = Path(manifest)
            place = self._folder / path
            try:
                found = read_document(place)
            except ManifestError as error:
                raise InvalidJobError(
                    Problem(str(path), f"{each}{near_miss(place)}") for each in error.problems
                ) from None
            document = found if isinstance(found, dict) else {}
        return self._backend.submit(document, path, dict(options))

    def list(self) -> Jobs:
        """All jobs of the folder or the namespace."""
        return self._backend.list()

    def status(self, name: str) -> Job:
        """A job as it is now. Raises JobNotFoundError."""
        return self._backend.status(name)

    def wait(
        self,
        name: str,
        timeout: float | None = None,
        until: str | Iterable[str] = "Succeeded",
        *,
        show: bool | None = None,
    ) -> Job:
        """Wait until a job is in one of these phases, for at most `timeout` seconds (None: for ever), and return it.

        In a notebook its table is shown and follows it (`show`: whether). A job that has succeeded has run, too. Raises
        JobFailedError if the job ends otherwise, WaitTimeoutError (a TimeoutError) if it does not come so far in time,
        and JobNotFoundError.
        """
        phases = _phases(until)
        if timeout is not None and (isinstance(timeout, bool) or not timeout >= 0):
            raise InvalidJobError([Problem("timeout", f"must be seconds of at least 0, found {timeout!r:.40}")])
        table = _LiveTable(show)
        deadline = None if timeout is None else time.monotonic() + timeout
        job, answered = self._backend.status(name), time.monotonic()
        while True:
            table.show(job)
            # Who waits for a job to run may come when it is over.
            if job.phase in phases or (job.phase == "Succeeded" and not phases <= {*FAULTS}):
                return job
            if job.ended or job.phase in FAULTS:
                wanted = " or ".join(sorted(phases))
                raise JobFailedError(f"job {name} has {job.phase.lower()}, not {wanted}: {job.status.reason}", job)
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                where = f"{job.phase}, step {job.status.step}" if job.status.step is not None else job.phase
                raise WaitTimeoutError(f"job {name} did not come to an end in {timeout:g} s; it is {where}", job)
            pause = self._backend.look_every_seconds
            time.sleep(pause if left is None else min(pause, left))
            try:
                job, answered = self._backend.status(name), time.monotonic()
            except ClusterUnreachableError:
                if time.monotonic() - answered > PATIENCE_SECONDS:
                    raise

    def logs(
        self, name: str, follow: bool = False, *, worker: str | None = None, tail: int | None = None
    ) -> Iterator[str]:
        """The lines that the workers have printed, each after its worker's name; those of one `worker` as they are.

        `follow` goes on until the job ends; `tail` leaves out all but each worker's last lines. Raises
        JobNotFoundError for a job or worker that does not exist, NothingThereError where no worker has a log, and
        InvalidJobError where the logs of more than 50 workers of a cluster are to be followed at once.
        """
        return self._backend.logs(name, worker, follow=follow, tail=tail)

    def explain(self, name: str) -> Explanation:
        """Why a job's batches are as they are. Raises JobNotFoundError, NothingThereError."""
        return self._backend.explain(name)

    def report(self, name: str) -> Report:
        """What came of a job: its figures, and the page with the plots. Raises NothingThereError while it runs."""
        return self._backend.report(name)

    def delete(self, name: str) -> None:
        """End a job, and remove it with its logs; checkpoints stay. Raises JobNotFoundError."""
        self._backend.delete(name)

    list_jobs = list  # noqa: A003 - the method above, not the builtin
    get_job = status
    get_job_logs = logs
    delete_job = delete

    def wait_for_job_status(self, name: str, status: Iterable[str] = ("Succeeded",), timeout: float = 600) -> Job:
        """As `wait`."""
        return self.wait(name, timeout, status)


def _phases(until: str | Iterable[str]) -> set[str]:
    phases = {until} if isinstance(until, str) else set(until)
    for each in sorted(phases - {*PHASES}):
        known = did_you_mean(each, PHASES) or f"; there are {', '.join(PHASES)}"
        raise InvalidJobError([Problem("until", f"there is no phase {each!r}{known}")])
    return phases


class _LiveTable:
    """A job's table in a notebook, which is replaced as the job changes; elsewhere nothing."""

    def __init__(self, wanted: bool | None) -> None:
        # Where no notebook runs, IPython has not been imported, and is not needed.
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython is not None else None
        in_notebook = shell is not None and shell.__class__.__name__ == "ZMQInteractiveShell"
        self._wanted = in_notebook if wanted is None else wanted and ipython is not None
        self._handle: Any = None
        self._shown: Document | None = None

    def show(self, job: Job) -> None:
        """The job as it is now."""
        if not self._wanted or job.document == self._shown:
            return
        self._shown = job.document
        if self._handle is None:
            from IPython.display import display  # noqa: PLC0415

            self._handle = display(job, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(job)
