"""Jobs on a cluster, found as kubectl finds it: objects of the resource, which the operator there carries out."""

from __future__ import annotations

import queue
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from heterotrain_client.backend import Document
from heterotrain_client.errors import (
    ClientError,
    ClusterError,
    ClusterUnreachableError,
    InvalidJobError,
    JobExistsError,
    JobNotFoundError,
    NothingThereError,
)
from heterotrain_client.models import WIDTH, Explanation, Job, Jobs, Report
from heterotrain_client.options import (
    FOR_FUNCTIONS,
    FOR_SCRIPTS,
    HERE,
    IN_MANIFESTS,
    RunOptions,
    options_of,
)
from heterotrain_operator.api import ManifestError, Problem, parse_manifest
from heterotrain_operator.cli.cluster.evidence import evidence_of
from heterotrain_operator.cli.cluster.explain import explanation
from heterotrain_operator.cli.cluster.job_state import read_job
from heterotrain_operator.cli.cluster.logs import chosen_workers, lines_of
from heterotrain_operator.cli.script_job import document_of
from heterotrain_operator.cli.script_look import look_at
from heterotrain_operator.clusters.kube import reading_errors as refusals
from heterotrain_operator.clusters.kube.api_server.access import Access, connect
from heterotrain_operator.clusters.kube.submitting import Submitter

NEW_PODS_SECONDS = 2.0
"""How often pods that have come meanwhile are looked for while logs are followed."""

MOST_FOLLOWED = 50
"""Logs that are followed at once: each is a thread here, and a stream through the API server."""

MOST_LINES = 256
"""Lines of logs that wait to be read, each of which may have 64 KiB; more are left with the cluster meanwhile."""

LAST_SECONDS = 60.0
"""Silence after a job's end, after which its logs are not waited for: a node that is lost ends no stream."""

_OPTIONS = {"--kubeconfig": "kubeconfig", "--context": "context", "(use -n)": "(name it as namespace)"}


@contextmanager
def _in_words() -> Iterator[None]:
    """A cluster's refusals as a client's errors."""
    try:
        yield
    except refusals.ReadingError as error:
        text = str(error)
        for option, word in _OPTIONS.items():
            text = text.replace(option, word)
        if isinstance(error, refusals.JobRefusedError):
            raise InvalidJobError([Problem("", f"the cluster refuses the job: {text}")]) from None
        kinds: dict[type[refusals.ReadingError], type[ClientError]] = {
            refusals.JobExistsError: JobExistsError,
            refusals.JobNotFoundError: JobNotFoundError,
            refusals.WorkerNotFoundError: JobNotFoundError,
            refusals.NoLogError: NothingThereError,
            refusals.UnreachableError: ClusterUnreachableError,
        }
        raise kinds.get(type(error), ClusterError)(text) from error


class ClusterJobs:
    """The jobs of one namespace of a cluster."""

    look_every_seconds = 2.0

    def __init__(self, kubeconfig: str | None, context: str | None, namespace: str | None) -> None:
        """Nothing is sent yet. Raises ClusterError if there is no usable kubeconfig."""
        with _in_words():
            self._jobs = Submitter(connect(Access(kubeconfig, context, namespace)))

    def run(self, script: Path, workers: str | None, options: Mapping[str, Any]) -> Job:
        """Run a script that is in the image, at the same path, as `heterotrain init` has it."""
        return self._create(self._document(script, workers, options_of(options, FOR_FUNCTIONS | HERE)))

    def run_source(self, name: str, source: str, workers: str | None, options: Mapping[str, Any]) -> Job:
        """Run the text of a script, which goes along in the pods' command."""
        asked = options_of(options, HERE)
        with tempfile.TemporaryDirectory(prefix="heterotrain-function-") as folder:
            script = Path(folder) / f"{name}.py"
            script.write_text(source, encoding="utf-8")
            document = self._document(script, workers, asked)
        for group in document["spec"]["workerGroups"]:
            group["template"]["spec"]["containers"][0]["command"] = ["python", "-c", source, *asked.arguments]
        return self._create(document)

    def submit(self, document: Document, path: Path | None, options: Mapping[str, Any]) -> Job:
        """Create the job of a manifest."""
        options_of(options, HERE | IN_MANIFESTS | FOR_SCRIPTS)
        return self._create(document)

    def list(self) -> Jobs:
        """The jobs of the namespace, by name."""
        with _in_words():
            return Jobs(Job.of(each, "kubernetes") for each in self._jobs.jobs())

    def status(self, name: str) -> Job:
        """One job as it is now."""
        with _in_words():
            return Job.of(self._jobs.job(name), "kubernetes")

    def logs(self, name: str, worker: str | None, *, follow: bool, tail: int | None) -> Iterator[str]:
        """What the workers' pods have printed; of several, each line after its worker's name."""
        with _in_words():
            yield from self._followed(name, worker, tail) if follow else self._printed(name, worker, tail)

    def explain(self, name: str) -> Explanation:
        """What `heterotrain explain` shows of a job on a cluster."""
        with _in_words():
            found = explanation(evidence_of(self._jobs, name), datetime.now(UTC), WIDTH)
        return Explanation.of(name, lambda console: console.print(found))

    def report(self, name: str) -> Report:
        """The job with its explanation: figures of single steps stay with the workers."""
        return Report(job=self.status(name), explanation=self.explain(name))

    def delete(self, name: str) -> None:
        """Delete the job; its pods end and go with it, which takes their grace period."""
        with _in_words():
            self._jobs.delete(name)

    # --- inside ---------------------------------------------------------------------------------------------

    def _document(self, script: Path, workers: str | None, asked: RunOptions) -> Document:
        job = asked.job_of(script, workers, asked.name)
        try:
            document_of(job)  # that a script is not there is said before it is looked at
            if not job.is_complete:
                if threading.current_thread() is not threading.main_thread():
                    why = "must be named in a thread, with epochs or steps: there, no script is asked for them"
                    raise InvalidJobError([Problem("global_batch, seed", why)])
                job = replace(job, asked=look_at(script, asked.arguments))
            document = document_of(job, for_cluster=True, image=asked.image)
        except ManifestError as error:
            raise InvalidJobError.of(error) from None
        if asked.policy is not None:
            document["spec"]["batching"] = {"policy": asked.policy}
        return document

    def _create(self, document: Document) -> Job:
        try:
            job = parse_manifest(document)
        except ManifestError as error:
            raise InvalidJobError.of(error) from None
        named = job.metadata.namespace
        if named not in (None, self._jobs.namespace):
            why = f"is {named}, but this client's is {self._jobs.namespace}; name it as Client(namespace={named!r})"
            raise InvalidJobError([Problem("metadata.namespace", why)])
        with _in_words():
            return Job.of(self._jobs.create(document), "kubernetes")

    def _pods(self, name: str, worker: str | None) -> dict[str, Document]:
        pods = {pod["metadata"]["name"]: pod for pod in self._jobs.worker_pods(name)}
        return {each: pods[each] for each in chosen_workers(name, worker, [*pods])} if pods else {}

    def _printed(self, name: str, worker: str | None, tail: int | None) -> Iterator[str]:
        self._jobs.job(name)
        pods = self._pods(name, worker)
        if not pods:
            raise refusals.NoLogError(f"job {name} has no pods now; what they have printed is gone with them")
        silent = 0
        for each, pod in pods.items():
            try:
                yield from _printed_lines(each, self._jobs.log(pod, tail=tail), alone=worker is not None)
            except refusals.NoLogError:
                silent += 1
                if silent == len(pods):
                    raise

    def _followed(self, name: str, worker: str | None, tail: int | None) -> Iterator[str]:
        """A thread reads each pod's log, since each may be silent for long; pods that come later are read, too, once
        there is room for them. One whose stream breaks off is given up with a warning, where others go on."""
        lines: queue.Queue[str | refusals.ReadingError] = queue.Queue(MOST_LINES)
        readers: dict[str, threading.Thread] = {}
        over = threading.Event()

        def read(each: str, pod: Document) -> None:
            try:
                log = self._jobs.log(pod, tail=tail, follow=True)
                for line in _printed_lines(each, log, alone=worker is not None):
                    if not _put(lines, line, over):
                        return  # the last reference to the stream, which thereby ends
            except refusals.NoLogError:
                readers.pop(pod["metadata"]["uid"])  # it has not started: look again
            except refusals.ReadingError as error:
                _put(lines, error, over)

        pods: dict[str, Document] = {}
        gone: refusals.JobNotFoundError | None = None
        try:
            while True:
                try:
                    ended = read_job(self._jobs.job(name)).ended
                    pods = self._pods(name, worker)
                except refusals.JobNotFoundError as error:
                    if not readers:
                        raise
                    ended, pods, gone = True, {}, error  # its workers' last words come yet
                new = {pod["metadata"]["uid"]: each for each, pod in pods.items()}
                if not readers and len(new) > MOST_FOLLOWED:
                    why = f"name one: job {name} has {len(new)} workers, and {MOST_FOLLOWED} logs at most are followed"
                    raise InvalidJobError([Problem("worker", why)])
                for uid, each in new.items():
                    busy = sum(thread.is_alive() for thread in [*readers.values()])  # they take themselves out
                    if uid not in readers and busy < MOST_FOLLOWED:
                        readers[uid] = threading.Thread(target=read, args=(each, pods[each]), daemon=True)
                        readers[uid].start()
                for line in _arrived(lines, NEW_PODS_SECONDS, [*readers.values()] if ended else None):
                    if isinstance(line, str):
                        yield line
                    elif worker is None and isinstance(line, refusals.UnreachableError):
                        warnings.warn(f"{line}; the other workers' logs are followed on", stacklevel=3)
                    else:
                        raise line
                if ended:
                    break
            if gone is not None:
                raise gone
        finally:
            over.set()


def _printed_lines(worker: str, pieces: Iterable[bytes], *, alone: bool) -> Iterator[str]:
    head = "" if alone else f"{worker} | "
    return (head + line[:-1].decode(errors="replace") for line in lines_of(pieces))


def _put(
    lines: queue.Queue[str | refusals.ReadingError], line: str | refusals.ReadingError, over: threading.Event
) -> bool:
    """Whether anybody still reads."""
    while not over.is_set():
        try:
            lines.put(line, timeout=1.0)
        except queue.Full:
            continue
        return True
    return False


def _arrived(
    lines: queue.Queue[str | refusals.ReadingError], seconds: float, until: list[threading.Thread] | None
) -> Iterator[str | refusals.ReadingError]:
    """What arrives within so many seconds; or, if these threads are named, until they have ended or none has brought
    anything for LAST_SECONDS, which raises UnreachableError."""
    deadline = time.monotonic() + (seconds if until is None else LAST_SECONDS)
    while True:
        in_time = time.monotonic() < deadline
        going_on = in_time if until is None else any(each.is_alive() for each in until)
        if going_on and not in_time and lines.empty():
            raise refusals.UnreachableError(f"the job is over, but a log of it has not ended in {LAST_SECONDS:g} s")
        try:
            line = lines.get(timeout=0.1) if going_on else lines.get_nowait()
        except queue.Empty:
            if going_on:
                continue
            return
        yield line
        if until is not None:
            deadline = time.monotonic() + LAST_SECONDS
