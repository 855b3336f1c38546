"""Read jobs and what belongs to them from a cluster, for people who ask; nothing is ever written.

Every request has a time limit, and every refusal becomes words that name what was asked and what to do.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.watch.watch import iter_resp_lines
from urllib3.exceptions import HTTPError

from heterotrain_operator.api import KIND
from heterotrain_operator.clusters.kube.access import Connection
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
WATCH_SECONDS = 60
"""One watch request lasts at most so long: a dead connection is noticed when the next one fails."""

LOG_PIECE_BYTES = 64 * 1024

RESOURCE = f"{names.PLURAL}.{names.GROUP}"
INSTALL = "helm install heterotrain helm/heterotrain --namespace heterotrain --create-namespace --wait"

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Look:
    """A job as it is now, None if there is none, and the moment from which to watch it."""

    job: Document | None
    version: str


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a watch: the job as it is then (None: only the moment moved on), or as it last was."""

    job: Document | None
    version: str
    deleted: bool = False


class Reader:
    """Read-only access to one cluster, in the namespace that is meant. Use it as a context manager."""

    def __init__(self, connection: Connection) -> None:
        self._api = connection.api
        self._server = connection.server
        self._custom = client.CustomObjectsApi(connection.api)
        self.namespace = connection.namespace

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._api.close()

    def jobs(self, *, everywhere: bool = False) -> list[Document]:
        """The jobs of the namespace, or of all, by namespace and name.

        Raises ReadingError in its kinds.
        """
        if everywhere:
            listing = self._job_list(self._custom.list_cluster_custom_object, "list", "in all namespaces")
        else:
            listing = self._job_list(self._custom.list_namespaced_custom_object, "list", self._where, self.namespace)
        found: list[Document] = listing.get("items", [])
        return sorted(found, key=lambda job: (job["metadata"].get("namespace", ""), job["metadata"]["name"]))

    def job(self, name: str) -> Document:
        """One job of the namespace.

        Raises JobNotFoundError, naming those that exist, and the other kinds of ReadingError.
        """
        found = self.look(name).job
        if found is None:
            raise self.not_found(name)
        return found

    def look(self, name: str) -> Look:
        """The job as it is now, and the moment from which to watch it; by a list, whose moment is never too old.

        Raises ReadingError in its kinds.
        """
        listing = self._job_list(
            self._custom.list_namespaced_custom_object,
            "list",
            self._where,
            self.namespace,
            field_selector=f"metadata.name={name}",
        )
        items = listing.get("items", [])
        return Look(items[0] if items else None, listing["metadata"].get("resourceVersion", ""))

    def changes(self, name: str, version: str) -> Iterator[Change]:
        """What happens to a job from a moment on, for at most WATCH_SECONDS.

        Raises ExpiredError if the moment is too long ago, and the other kinds of ReadingError.
        """
        what = f"{RESOURCE} {self._where}"
        response = self._ask(
            lambda: self._custom.list_namespaced_custom_object(
                names.GROUP,
                names.VERSION,
                self.namespace,
                names.PLURAL,
                field_selector=f"metadata.name={name}",
                resource_version=version,
                watch=True,
                allow_watch_bookmarks=True,
                timeout_seconds=WATCH_SECONDS,
                _preload_content=False,
                _request_timeout=(CONNECT_SECONDS, WATCH_SECONDS + READ_SECONDS),
            ),
            "watch",
            what,
        )
        try:
            for line in iter_resp_lines(response):
                if line.strip():
                    yield self._change(json.loads(line))
        except (HTTPError, ValueError, KeyError) as error:
            raise UnreachableError(f"the watch on {self._server} broke off: {_words(error)}") from error
        finally:
            response.close()
            response.release_conn()

    def plan(self, job: str) -> StoredPlan:
        """What is stored of a job's plan and memory; empty if nothing is yet.

        Raises ReadingError in its kinds.
        """
        name = names.plan_name(job)
        read = self._core().read_namespaced_config_map
        try:
            found = self._document(
                lambda **limits: read(name, self.namespace, **limits), "get", f"configmap {name} {self._where}"
            )
        except _MissingError:
            return StoredPlan()
        return read_plan_map(found)

    def events(self, name: str, uid: str) -> list[Document]:
        """The events of a job, oldest first; the cluster forgets them after a while.

        Raises ReadingError in its kinds.
        """
        selector = f"involvedObject.kind={KIND},involvedObject.name={name},involvedObject.uid={uid}"
        listing = self._document(
            lambda **limits: self._core().list_namespaced_event(self.namespace, field_selector=selector, **limits),
            "list",
            f"events {self._where}",
        )
        return sorted(listing.get("items", []), key=_moment_of)

    def worker_pods(self, job: str) -> list[Document]:
        """The pods of a job's workers, by group and index.

        Raises ReadingError in its kinds.
        """
        selector = f"{names.LABEL_JOB}={job},{names.LABEL_ROLE}={names.ROLE_WORKER}"
        listing = self._document(
            lambda **limits: self._core().list_namespaced_pod(self.namespace, label_selector=selector, **limits),
            "list",
            f"pods {self._where}",
        )
        return sorted(listing.get("items", []), key=_place_of)

    def log(self, pod: Document, *, tail: int | None = None) -> Iterator[bytes]:
        """What the trainer of a pod has printed, or its last `tail` lines, piece by piece.

        Raises NoLogError if it has not started, or is gone, and the other kinds of ReadingError.
        """
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
        try:
            response = self._ask(
                lambda: self._core().read_namespaced_pod_log(
                    name,
                    self.namespace,
                    container=container,
                    tail_lines=tail,
                    _preload_content=False,
                    _request_timeout=(CONNECT_SECONDS, READ_SECONDS),
                ),
                "get",
                f"pods/log {name} {self._where}",
            )
        except _MissingError as error:
            raise NoLogError(f"pod {name} is gone, and its log with it") from error
        try:
            yield from response.stream(LOG_PIECE_BYTES)
        except HTTPError as error:
            raise UnreachableError(f"the log of {name} broke off: {_words(error)}") from error
        finally:
            response.close()
            response.release_conn()

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

    def _core(self) -> client.CoreV1Api:
        # Loaded only by those who need it: it takes longer than a request.
        return client.CoreV1Api(self._api)

    @property
    def _where(self) -> str:
        return f"in namespace {self.namespace}"

    def _job_list(self, call: Callable[..., Any], verb: str, where: str, *place: str, **options: str) -> Document:
        try:
            return self._document(
                lambda **limits: call(names.GROUP, names.VERSION, *place, names.PLURAL, **options, **limits),
                verb,
                f"{RESOURCE} {where}",
            )
        except _MissingError as error:
            raise NotInstalledError(
                f"heterotrain is not installed on this cluster ({self._server} has no {RESOURCE}); "
                f"install it with: {INSTALL}"
            ) from error

    def _document(self, call: Callable[..., Any], verb: str, what: str) -> Document:
        def limited() -> Any:
            return call(_preload_content=False, _request_timeout=(CONNECT_SECONDS, READ_SECONDS))

        response = self._ask(limited, verb, what)
        try:
            found = json.loads(response.data)
        except (HTTPError, ValueError) as error:
            raise UnreachableError(f"{self._server} does not answer as a Kubernetes API: {_words(error)}") from error
        if not isinstance(found, dict) or not isinstance(found.get("metadata"), dict):
            raise UnreachableError(f"{self._server} does not answer as a Kubernetes API: {found!r:.80}")
        return found

    def _ask(self, call: Callable[[], Any], verb: str, what: str) -> Any:
        try:
            return call()
        except ApiException as error:
            raise self._refusal(error, verb, what) from error
        except HTTPError as error:
            raise self._unreachable(_words(error)) from error

    def _refusal(self, error: ApiException, verb: str, what: str) -> ReadingError:
        told = _told(error)
        if error.status == 401:
            return RefusedError(f"{self._server} does not accept the credentials (401 Unauthorized); log in anew")
        if error.status == 403:
            return RefusedError(f"you may not {verb} {what}: {told}")
        if error.status == 400 and what.startswith("pods/log "):
            return NoLogError(told)
        if error.status == 404:
            return _MissingError(f"{self._server} has no {what}: {told}")
        if error.status == 410:
            return ExpiredError(told)
        if not error.status:
            return self._unreachable(told)
        return UnreachableError(f"{self._server} could not {verb} {what}: {told}")

    def _unreachable(self, why: str) -> UnreachableError:
        return UnreachableError(f"the cluster at {self._server} cannot be reached: {why}")

    def _change(self, event: Document) -> Change:
        kind, subject = event["type"], event["object"]
        if kind == "ERROR":
            message = str(subject.get("message", subject))
            if subject.get("code") == 410:
                raise ExpiredError(message)
            raise UnreachableError(f"the watch on {self._server} broke off: {message}")
        version = subject["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return Change(None, version)
        return Change(subject, version, deleted=kind == "DELETED")


class _MissingError(ReadingError):
    """404: the resource or the object does not exist."""


def _told(error: ApiException) -> str:
    """The message of the Kubernetes Status in an answer; its HTTP status where there is none."""
    plain = " ".join(f"{error.status or ''} {error.reason or ''}".split())
    try:
        status = json.loads(error.body or "")
    except ValueError:
        return plain
    message = status.get("message") if isinstance(status, dict) else None
    return str(message or plain)


def _moment_of(event: Document) -> tuple[str, int]:
    """When an event last happened (times of one cluster sort as text), and which of the same second came first."""
    series, metadata = event.get("series") or {}, event["metadata"]
    moments = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    version = metadata.get("resourceVersion", "")
    last = str(next(filter(None, moments), metadata.get("creationTimestamp") or ""))
    return last, int(version) if version.isdecimal() else 0


def _place_of(pod: Document) -> tuple[str, int, str]:
    """A worker's group and index, which its pod's labels tell."""
    labels = pod["metadata"].get("labels") or {}
    index = labels.get(names.LABEL_INDEX, "")
    return labels.get(names.LABEL_GROUP, ""), int(index) if index.isdecimal() else 0, pod["metadata"]["name"]


def _words(error: Exception) -> str:
    """What went wrong, without the objects that the HTTP library names before it."""
    return re.sub(r"^\w+\(host=.*?\): ", "", " ".join(str(error).split())) or type(error).__name__
