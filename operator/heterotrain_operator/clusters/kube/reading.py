"""What people ask a cluster about jobs, in terms of the gateway; nothing is ever written.

Every refusal becomes words that name what was asked and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import NoReturn

from heterotrain_operator.clusters.kube.api_server.access import Connection
from heterotrain_operator.clusters.kube.api_server.gateway import JOB_KIND, Gateway, GatewayError
from heterotrain_operator.clusters.kube.api_server.transport import BrokenOffError, Document
from heterotrain_operator.clusters.kube.objects import names
from heterotrain_operator.clusters.kube.objects.plan_map import StoredPlan, read_plan_map
from heterotrain_operator.clusters.kube.reading_errors import (
    ExpiredError,
    JobNotFoundError,
    NoLogError,
    NotInstalledError,
    ReadingError,
    RefusedError,
    UnreachableError,
)

CONNECT_SECONDS = 5.0
READ_SECONDS = 20.0
FOLLOW_SECONDS = 4 * 3600.0
"""A log that is followed breaks off once its container has printed nothing for so long; so kubelets end it."""
WATCH_SECONDS = 60
"""One watch request lasts at most so long: a dead connection is noticed when the next one fails."""

RESOURCE = f"{names.PLURAL}.{names.GROUP}"
INSTALL = "helm install heterotrain helm/heterotrain --namespace heterotrain --create-namespace --wait"

BAD_REQUEST, NOT_FOUND = 400, 404
Answers = Mapping[int, Callable[[str], ReadingError]]
_NO_ANSWERS: Answers = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Look:
    """A job as it is now, None if there is none, and the version from which to watch it."""

    job: Document | None
    version: str


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a watch: the job as it is then (None: only the version moved on), or as it last was."""

    job: Document | None
    version: str
    deleted: bool = False


def _never_write() -> NoReturn:
    raise AssertionError("people's questions write nothing")


class Reader:
    """Read-only access to one cluster, in the namespace that is meant. Use it as a context manager.

    All methods raise ReadingError in its kinds.
    """

    def __init__(self, connection: Connection, fence: Callable[[], None] = _never_write) -> None:
        """`fence` is asked before every write; a reader has none."""
        self._connection = connection
        self._server = connection.server
        self._gateway = Gateway(connection.api, fence, lambda verb, kind: None, timeout=(CONNECT_SECONDS, READ_SECONDS))
        self.namespace = connection.namespace

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.api.close()

    def jobs(self, *, everywhere: bool = False) -> list[Document]:
        """The jobs of the namespace, or of all, by namespace and name."""
        where = "in all namespaces" if everywhere else self._where
        with self._in_words("list", f"{RESOURCE} {where}", answers={NOT_FOUND: self._not_installed}):
            found: list[Document] = self._gateway.listed(JOB_KIND, None if everywhere else self.namespace)["items"]
        return sorted(found, key=lambda job: (job["metadata"].get("namespace", ""), job["metadata"]["name"]))

    def job(self, name: str) -> Document:
        """One job of the namespace. Raises JobNotFoundError, naming those that exist."""
        found = self.look(name).job
        if found is None:
            raise self.not_found(name)
        return found

    def look(self, name: str) -> Look:
        """The job as it is now, and the version from which to watch it; by a list, whose version is never too old."""
        with self._in_words("list", f"{RESOURCE} {self._where}", answers={NOT_FOUND: self._not_installed}):
            listing = self._gateway.listed(JOB_KIND, self.namespace, fields=f"metadata.name={name}")
        items = listing["items"]
        return Look(items[0] if items else None, listing["metadata"].get("resourceVersion", ""))

    def changes(self, name: str, version: str) -> Iterator[Change]:
        """What happens to a job from a version on, for at most WATCH_SECONDS.

        Raises ExpiredError if the cluster has forgotten that version.
        """
        timeout = (CONNECT_SECONDS, WATCH_SECONDS + READ_SECONDS)
        with self._in_words("watch", f"{RESOURCE} {self._where}", stream=f"the watch on {self._server}"):
            for event in self._gateway.changes(
                JOB_KIND,
                self.namespace,
                version,
                fields=f"metadata.name={name}",
                seconds=WATCH_SECONDS,
                timeout=timeout,
            ):
                yield self._change(event)

    def plan(self, job: str) -> StoredPlan:
        """What is stored of a job's plan and memory; empty if nothing is yet."""
        name = names.plan_name(job)
        with self._in_words("get", f"configmap {name} {self._where}"):
            return read_plan_map(self._gateway.read("ConfigMap", self.namespace, name))

    def events(self, name: str, uid: str) -> list[Document]:
        """The events of a job, oldest first; the cluster forgets them after a while."""
        selector = f"involvedObject.kind={JOB_KIND},involvedObject.name={name},involvedObject.uid={uid}"
        with self._in_words("list", f"events {self._where}"):
            found: list[Document] = self._gateway.listed("Event", self.namespace, fields=selector)["items"]
        return sorted(found, key=_moment_of)

    def worker_pods(self, job: str) -> list[Document]:
        """The pods of a job's workers, and of its parameter server, by group and index."""
        selector = names.pod_selector(job)
        with self._in_words("list", f"pods {self._where}"):
            found: list[Document] = self._gateway.listed("Pod", self.namespace, labels=selector)["items"]
        return sorted(found, key=_place_of)

    def log(self, pod: Document, *, tail: int | None = None, follow: bool = False) -> Iterator[bytes]:
        """What the trainer of a pod has printed, or its last `tail` lines, piece by piece; with `follow` until it ends.

        Raises NoLogError if it has not started, or is gone.
        """
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]

        answers: Answers = {
            BAD_REQUEST: NoLogError,
            NOT_FOUND: lambda _: NoLogError(f"pod {name} is gone, and its log with it"),
        }
        with self._in_words("get", f"pods/log {name} {self._where}", answers=answers, stream=f"the log of {name}"):
            limit = (CONNECT_SECONDS, FOLLOW_SECONDS) if follow else None
            yield from self._gateway.log(self.namespace, name, container, tail=tail, follow=limit)

    def not_found(self, name: str) -> JobNotFoundError:
        """That a job does not exist, with the names of those that do, and where else one is called that."""
        here = [job["metadata"]["name"] for job in self.jobs()]
        text = f"there is no job {name!r} in namespace {self.namespace}"
        close = difflib.get_close_matches(name, here, n=3)
        if close:
            return JobNotFoundError(f"{text}; did you mean {' or '.join(close)}?")
        try:
            everywhere = self.jobs(everywhere=True)
        except ReadingError:
            everywhere = []  # it would have been a hint only
        elsewhere = [job["metadata"]["namespace"] for job in everywhere if job["metadata"]["name"] == name]
        if elsewhere:
            return JobNotFoundError(f"{text}; there is one in {' and '.join(elsewhere)} (use -n)")
        return JobNotFoundError(f"{text}; it has {', '.join(here) if here else 'no jobs'}")

    # --- inside ---------------------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"in namespace {self.namespace}"

    @contextmanager
    def _in_words(self, verb: str, what: str, *, stream: str = "", answers: Answers = _NO_ANSWERS) -> Iterator[None]:
        """What goes wrong meanwhile is an error for people; `answers` are those to an HTTP status of its own meaning
        here, by what the server said, and `stream` is what may break off after it began.
        """
        try:
            yield
        except BrokenOffError as error:
            raise UnreachableError(f"{stream or self._server} broke off: {error.why}") from error
        except GatewayError as error:
            special = answers.get(error.status or 0)
            raise special(error.why) if special else self._refusal(error, verb, what) from error

    def _refusal(self, error: GatewayError, verb: str, what: str) -> ReadingError:
        match error.status:
            case None:
                return UnreachableError(f"the cluster at {self._server} cannot be reached: {error.why}")
            case 401:
                return RefusedError(f"{self._server} does not accept the credentials (401 Unauthorized); log in again")
            case 403:
                return RefusedError(f"you may not {verb} {what}: {error.why}")
            case 404:
                return ReadingError(f"{self._server} has no {what}: {error.why}")
            case 410:
                return ExpiredError(error.why)
            case status if status < 300:
                return UnreachableError(f"{self._server} does not answer as a Kubernetes API: {error.why}")
        return UnreachableError(f"{self._server} could not {verb} {what}: {error.why}")

    def _not_installed(self, _: str) -> ReadingError:
        return NotInstalledError(
            f"heterotrain is not installed on this cluster ({self._server} has no {RESOURCE}); "
            f"install it with: {INSTALL}"
        )

    def _change(self, event: Document) -> Change:
        try:
            kind, subject = event["type"], event["object"]
            if kind != "ERROR":
                version = str(subject["metadata"]["resourceVersion"])
                return Change(None if kind == "BOOKMARK" else subject, version, deleted=kind == "DELETED")
            message = str(subject.get("message", subject))
        except (KeyError, TypeError, AttributeError) as error:
            raise UnreachableError(f"the watch on {self._server} broke off: {event!r:.80} is no event") from error
        if subject.get("code") == 410:
            raise ExpiredError(message)
        raise UnreachableError(f"the watch on {self._server} broke off: {message}")


def _moment_of(event: Document) -> tuple[str, int]:
    """When an event last happened (times of one cluster sort as text), and which of the same second came first."""
    series, metadata = event.get("series") or {}, event["metadata"]
    moments = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    version = metadata.get("resourceVersion", "")
    last = str(next(filter(None, moments), metadata.get("creationTimestamp") or ""))
    return last, int(version) if version.isdecimal() else 0


def _place_of(pod: Document) -> tuple[str, int, str]:
    """A worker's group and index, as its pod's labels name them."""
    labels = pod["metadata"].get("labels") or {}
    index = labels.get(names.LABEL_INDEX, "")
    return labels.get(names.LABEL_GROUP, ""), int(index) if index.isdecimal() else 0, pod["metadata"]["name"]
