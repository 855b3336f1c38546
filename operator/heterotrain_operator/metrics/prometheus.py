"""Read workers' metrics from a Prometheus server: for clusters that scrape every pod anyway.

One query asks for raw samples with their own times, so that old ones can be told from new ones, and so that all figures
of a worker come from one scrape: figures of two moments would not add up.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from prometheus_client.samples import Sample

from heterotrain import contract
from heterotrain_operator.core.facts import listed
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.metrics.credentials import Credentials
from heterotrain_operator.metrics.fetch import MAX_BYTES, Fetcher, FetchError
from heterotrain_operator.metrics.workers import OWN_LABELS, worker_metrics

QUERY_PATH = "/api/v1/query"
TIMEOUT_SECONDS = 5.0

_NAME_LABEL = "__name__"

Series = tuple[Mapping[str, str], float, float]
"""Labels with the name among them, and time (Unix seconds) and value of the newest sample."""

Target = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer, by worker; None: there is no sample of it that counts.

    `problem` says why there is no answer at all, `note` whom the answer does not know; both are empty if all is well.
    """

    metrics: dict[str, WorkerMetrics | None]
    problem: str = ""
    note: str = ""


class PrometheusSource:
    """A Prometheus server, or whatever speaks its query API."""

    def __init__(
        self,
        url: str,
        *,
        credentials: Credentials | None = None,
        ca_pem: str | None = None,
        max_age_seconds: int,
        timeout_seconds: float = TIMEOUT_SECONDS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """`ca_pem` replaces the authorities that the system trusts; older samples than `max_age_seconds` do not count.

        Raises ValueError if the URL, the credentials or the authority cannot be used.
        """
        self._max_age_seconds = max_age_seconds
        self._fetcher = Fetcher(
            url, credentials=credentials, ca_pem=ca_pem, timeout_seconds=timeout_seconds, max_bytes=max_bytes
        )

    def read(
        self,
        job: str,
        namespace: str,
        workers: Sequence[str],
        now: float,
        *,
        since: Mapping[str, float] = MappingProxyType({}),
    ) -> Reading:
        """What the server knows of a job's workers; `now` in Unix seconds.

        `since` are the moments at which pods were created: a name is used again after a restart, and older samples are
        of the pod before.
        """
        query = query_of(job, namespace, self._max_age_seconds)
        try:
            series = list(series_of(self._fetcher.get(QUERY_PATH, {"query": query})))
        except FetchError as error:
            return Reading(dict.fromkeys(workers), problem=str(error))
        oldest = now - self._max_age_seconds
        counts_from = {worker: max(oldest, since.get(worker, oldest)) for worker in workers}
        metrics = {worker: worker_metrics(samples) for worker, samples in newest_scrapes(series, counts_from).items()}
        return Reading(metrics, note=_note(metrics, known=bool(series), query=query))


def query_of(job: str, namespace: str, max_age_seconds: int) -> str:
    """PromQL for all raw samples of a job's workers in the last seconds."""
    names = f"{contract.METRIC_PREFIX}.+"
    matchers = {"training_job": job, "namespace": namespace}
    # PromQL's strings are Go's, and JSON's escapes are among theirs.
    equal = ",".join(f"{label}={json.dumps(value, ensure_ascii=False)}" for label, value in matchers.items())
    return f'{{{_NAME_LABEL}=~"{names}",{equal}}}[{max_age_seconds}s]'


def series_of(document: object) -> Iterator[Series]:
    """The series of an answer, each with its newest sample.

    Raises FetchError if the document is no answer of the query API with a matrix.
    """
    try:
        if not isinstance(document, dict) or document["status"] != "success":
            raise ValueError("status is not success")
        data = document["data"]
        if data["resultType"] != "matrix":
            raise ValueError(f"resultType is {data['resultType']!r}, not 'matrix'")
        for entry in data["result"]:
            labels = {str(label): str(value) for label, value in entry["metric"].items()}
            if entry.get("values"):
                time, value = max((float(time), float(value)) for time, value in entry["values"])
                yield labels, time, value
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FetchError(f"the answer is not one of Prometheus' query API: {error!r}") from None


def newest_scrapes(series: Sequence[Series], counts_from: Mapping[str, float]) -> dict[str, list[Sample]]:
    """The samples of each worker's newest scrape; none where it is older than `counts_from`, by worker.

    A scrape is known by the version series, which it always has: a restarted worker may count from a lower version, and
    two servers or scrape jobs may watch one worker, so the newest moment decides and not the greatest version. All
    samples of a scrape have its time. A series that has ended may show as no number.
    """
    scrapes: dict[tuple[Target, float], list[Sample]] = {}
    newest: dict[str, tuple[float, float, Target]] = {}
    for labels, time, value in series:
        name = labels.get(_NAME_LABEL, "")
        target = frozenset(item for item in labels.items() if item[0] not in (_NAME_LABEL, *OWN_LABELS))
        scrapes.setdefault((target, time), []).append(Sample(name, dict(labels), value))
        worker = labels.get("worker", "")
        if name != contract.METRIC_PLAN_VERSION or worker not in counts_from or not math.isfinite(value):
            continue
        if time >= counts_from[worker] and (worker not in newest or (time, value) > newest[worker][:2]):
            newest[worker] = (time, value, target)
    return {worker: scrapes[newest[worker][2], newest[worker][0]] if worker in newest else [] for worker in counts_from}


def _note(metrics: Mapping[str, WorkerMetrics | None], *, known: bool, query: str) -> str:
    missing = [worker for worker, figures in metrics.items() if figures is None]
    if not missing:
        return ""
    if not known:
        return f"the server holds nothing of the workers (does it scrape them?): {query}"
    return f"the server holds no fresh samples of {listed(missing)}"
