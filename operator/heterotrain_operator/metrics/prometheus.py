"""Read workers' metrics from a Prometheus server, for clusters that scrape every pod anyway.

One query asks for raw samples with their own times, so that old and new ones can be distinguished, and so that all
figures of a worker come from one scrape: figures of two moments would not add up.

A job's status names only a few kinds of failure: the user who names a server may not be able to reach it, and must not
explore it through the operator. The operator's log has the details.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import ssl
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from heterotrain import worker_metrics as table
from heterotrain_operator.core.facts import listed
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.metrics.allowed import Server
from heterotrain_operator.metrics.client import Answer, Client, UnreachableError, UntrustedError, WrongAnswerError
from heterotrain_operator.metrics.matrix import NAME_LABEL, NotAMatrixError, parts_of
from heterotrain_operator.metrics.parsing import CostlyError
from heterotrain_operator.metrics.workers import OWN_LABELS, Sample, metrics_of

_LINE_ENDS = "\r\n"  # of a Secret made from a file


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A token, as it stands in a Secret."""

    token: str = field(repr=False)

    def header(self) -> str:
        """The value of the Authorization header. Raises ValueError, without the token, if no header can hold it."""
        token = self.token.strip(_LINE_ENDS)
        if not (token and token.isascii() and token.isprintable()) or " " in token:
            raise ValueError("the bearer token is empty or holds characters that no header may hold")
        return f"Bearer {token}"


@dataclass(frozen=True, slots=True)
class BasicAuth:
    """A user and a password, as they stand in a Secret of type kubernetes.io/basic-auth."""

    username: str
    password: str = field(repr=False)

    def header(self) -> str:
        """The value of the Authorization header. Raises ValueError, without the password, if no header can hold them.

        Source: RFC 7617, section 2.
        """
        username, password = self.username.strip(_LINE_ENDS), self.password.strip(_LINE_ENDS)
        if ":" in username:
            raise ValueError("the user name of basic authentication holds a colon")
        return f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"


Credentials = BearerToken | BasicAuth


POD_LABEL = "pod"

AHEAD_SECONDS = 10.0
"""By which the server's clock may be ahead of the operator's."""

_Target = frozenset[tuple[str, str]]


class Scrapes:
    """Gathers samples, of which all of one scrape have its time.

    A scrape is recognised by the series of the plan version, which it always has. The newest moment decides and not the
    greatest version, since a restarted worker may count from a lower version, and two servers or scrape jobs may watch
    one worker. A series that has ended may have a value that is not a number. Of another pod that exports a worker's
    series Prometheus says so, by the label of the pod that it scraped.
    """

    def __init__(self, oldest_of: Mapping[str, float], latest: float) -> None:
        """`oldest_of` says for each worker how old a scrape may be, and `latest` how new, in Unix seconds."""
        self._oldest_of = oldest_of
        self._latest = latest
        self._scrapes: dict[tuple[_Target, float], list[Sample]] = {}
        self._newest: dict[str, tuple[float, float, _Target]] = {}

    def __bool__(self) -> bool:
        return bool(self._scrapes)

    def add(self, labels: Mapping[str, str], time: float, value: float) -> None:
        """A sample: its labels with the name among them, time (Unix seconds) and value."""
        name = labels.get(NAME_LABEL, "")
        target = frozenset(item for item in labels.items() if item[0] not in (NAME_LABEL, *OWN_LABELS))
        self._scrapes.setdefault((target, time), []).append(Sample(name, labels, value))
        worker = labels.get(table.WORKER_LABEL, "")
        if name != table.PLAN_VERSION.series or worker not in self._oldest_of or not math.isfinite(value):
            return
        newest = self._newest.get(worker)
        if labels.get(POD_LABEL, worker) != worker or time > self._latest:
            return
        if time >= self._oldest_of[worker] and (newest is None or (time, value) > newest[:2]):
            self._newest[worker] = (time, value, target)

    def of(self, worker: str) -> list[Sample]:
        """The samples of the worker's newest scrape; none if that is too old."""
        if worker not in self._newest:
            return []
        time, _, target = self._newest[worker]
        return self._scrapes[target, time]


logger = logging.getLogger(__name__)

QUERY_PATH = "/api/v1/query"
TIMEOUT_SECONDS = 5.0

MAX_BYTES = 32 << 20
BYTES_PER_WORKER = 1 << 16
"""Size of an answer: BYTES_PER_WORKER for each worker and once more, but at most MAX_BYTES.

A worker has about 25 series of 400 bytes, and 25 bytes for each of their samples.
"""

SERIES_PER_WORKER = 256
"""A worker may have series of some plan versions and phases, and from two scraping servers."""

PARSING_SECONDS_PER_WORKER = 0.01
"""CPU time for an answer: so much for each worker and once more; an honest one takes a tenth of it."""

UNREACHABLE = "the server cannot be reached"
ANSWERS_WRONGLY = "the server answers, but not as Prometheus does"
REFUSES = "the server does not accept the credentials, or asks for some"
UNTRUSTED = "the server's certificate is not trusted"
"""What a job's status may say about a server; the last two are wrong answers that a user can correct."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer, by worker; None: the server has no sample of it that is new enough.

    `problem` says why there is no answer at all, `note` which workers are missing in the answer; both are empty if
    nothing is wrong.
    """

    metrics: dict[str, WorkerMetrics | None]
    problem: str = ""
    note: str = ""


class PrometheusSource:
    """A Prometheus server, or any other server with its query API."""

    def __init__(
        self,
        client: Client,
        server: Server,
        *,
        credentials: Credentials | None = None,
        ca_pem: str | None = None,
        max_age_seconds: int,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """`ca_pem` replaces the authorities that the system trusts; samples older than `max_age_seconds` are ignored.

        Raises ValueError if the credentials or the authority cannot be used.
        """
        self._client = client
        self._server = server
        self._max_age_seconds = max_age_seconds
        self._timeout_seconds = timeout_seconds
        self._headers = {"Accept": "application/json"}
        if credentials is not None:
            self._headers["Authorization"] = credentials.header()
        self._tls = None if ca_pem is None else _context(ca_pem)
        self._reported = ""

    async def read(
        self,
        job: str,
        namespace: str,
        workers: Sequence[str],
        now: float,
        *,
        since: Mapping[str, float] = MappingProxyType({}),
    ) -> Reading:
        """The newest metrics of a job's workers that the server has; `now` in Unix seconds.

        `since` are the moments at which pods were created: a name is used again after a restart, and older samples
        belong to the former pod.
        """
        query = query_of(job, namespace, self._max_age_seconds)
        oldest = now - self._max_age_seconds
        oldest_of = {worker: max(oldest, since.get(worker, oldest)) for worker in workers}
        problem, why, found = await self._ask(query, namespace, oldest_of, latest=now + AHEAD_SECONDS)
        if problem:
            if why != self._reported:
                logger.warning("job %s/%s: %s: %s", namespace, job, self._server.url, why)
            self._reported = why
            return Reading(dict.fromkeys(workers), problem=problem)
        self._reported = ""
        return Reading(found.metrics, note=_note(found.metrics, known=found.known, query=query))

    # --- inside ---------------------------------------------------------------------------------------------

    async def _ask(
        self, query: str, namespace: str, oldest_of: Mapping[str, float], *, latest: float
    ) -> tuple[str, str, _Found]:
        """The problem for the user, its cause for the log (both empty if there is none), and what is in the answer."""
        shares = len(oldest_of) + 1
        try:
            answer = await self._client.get(
                f"{self._server.url}{QUERY_PATH}?{urllib.parse.urlencode({'query': query})}",
                owner=namespace,
                seconds=self._timeout_seconds,
                max_bytes=min(MAX_BYTES, BYTES_PER_WORKER * shares),
                headers=self._headers,
                tls=self._tls,
                server_name=self._server.name if self._server.url.startswith("https:") else None,
            )
            _check(answer)
            (found,) = await self._client.parsing.values(
                _read(answer.body, SERIES_PER_WORKER * shares, oldest_of, latest),
                owner=namespace,
                size=len(answer.body),
                seconds=PARSING_SECONDS_PER_WORKER * shares,
            )
            return "", "", found
        except UnreachableError as error:
            return UNREACHABLE, str(error), _NOTHING
        except UntrustedError as error:
            return UNTRUSTED, str(error), _NOTHING
        except _RefusedError as error:
            return REFUSES, str(error), _NOTHING
        except (WrongAnswerError, NotAMatrixError, CostlyError) as error:
            return ANSWERS_WRONGLY, str(error), _NOTHING


class _RefusedError(Exception):
    """The server refuses the credentials, or a request without credentials."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What is in an answer, by worker; `known`: there are samples at all."""

    metrics: dict[str, WorkerMetrics | None]
    known: bool


_NOTHING = _Found({}, known=False)


def _check(answer: Answer) -> None:
    if answer.status in (401, 403):
        raise _RefusedError(f"HTTP status {answer.status}")
    if answer.status != 200:
        raise WrongAnswerError(f"HTTP status {answer.status}")


def _read(body: bytes, most: int, oldest_of: Mapping[str, float], latest: float) -> Iterator[_Found | None]:
    """What is in an answer, after None for each part of the work. Raises NotAMatrixError."""
    scrapes = Scrapes(oldest_of, latest)
    for part in parts_of(body, most):
        if part is not None:
            scrapes.add(*part)
        yield None
    metrics: dict[str, WorkerMetrics | None] = {}
    for worker in oldest_of:
        metrics[worker] = metrics_of(scrapes.of(worker))
        yield None
    yield _Found(metrics, known=bool(scrapes))


def _context(ca_pem: str) -> ssl.SSLContext:
    if "-----BEGIN CERTIFICATE-----" not in ca_pem:
        raise ValueError("the authority is no PEM certificate")
    try:
        return ssl.create_default_context(cadata=ca_pem)
    except ssl.SSLError as error:
        raise ValueError(f"the authority is no PEM certificate: {error.reason or error}") from None


def query_of(job: str, namespace: str, max_age_seconds: int) -> str:
    """PromQL for all raw samples of a job's workers in the last seconds."""
    names = f"{table.WORKERS.prefix}.+"
    matchers = {table.JOB_LABEL: job, "namespace": namespace}
    # PromQL's strings are Go's, and JSON's escapes are among theirs.
    equal = ",".join(f"{label}={json.dumps(value, ensure_ascii=False)}" for label, value in matchers.items())
    return f'{{{NAME_LABEL}=~"{names}",{equal}}}[{max_age_seconds}s]'


def _note(metrics: Mapping[str, WorkerMetrics | None], *, known: bool, query: str) -> str:
    missing = [worker for worker, figures in metrics.items() if figures is None]
    if not missing:
        return ""
    if not known:
        return f"the server holds nothing of the workers (does it scrape them?): {query}"
    return f"the server holds no fresh samples of {listed(missing)}"
