"""Read metrics directly from the workers; it needs no Prometheus server, and never waits long for one worker.

Prometheus' text format is read here, and of it nothing but workers' series, in time linear in the text:
prometheus_client's parser reads every series, including those that somebody else added, and takes seconds for a
megabyte of escapes. Source of the format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from heterotrain.worker_metrics import WORKERS
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.metrics.client import Client, UnreachableError, WrongAnswerError
from heterotrain_operator.metrics.parsing import CostlyError
from heterotrain_operator.metrics.peers import MAX_PEERS, PREFIX, peers_of
from heterotrain_operator.metrics.workers import Sample, metrics_of

MAX_SERIES = 256
"""Ten times as many as a worker exports; a newer version may export more than this version knows."""

MAX_LINE = 4096
"""Characters of one series' labels."""

MAX_LABELS = 64
"""Of one series; a worker gives its series at most six."""

_BEGINNING = f"\n{WORKERS.prefix}"
"""Of a series, with the end of the line before it: a search for a fixed text passes over other lines several times as
fast as a search for the beginnings of lines."""

MAX_PEER_SERIES = 16 * MAX_PEERS
"""Of a parameter server, of its workers; with more, nothing of them is read."""


def _sample_of(prefix: str) -> re.Pattern[str]:
    """A sample of a series whose name begins so, with the end of the line before it."""
    return re.compile(
        rf"\n({prefix}\w*)(?:\{{(.{{0,{MAX_LINE}}})\}})?"
        r"[ \t]{1,9}([^ \t\n]{1,64})(?:[ \t]{1,9}-?[0-9]{1,20})?[ \t]{0,9}(?=\n|\Z)",
        re.ASCII,
    )


_SAMPLE, _SAMPLE_OF_SERVER = _sample_of(WORKERS.prefix), _sample_of(PREFIX)
_LABEL = re.compile(r'[ \t]*([a-zA-Z_]\w*)="([^"\\]*(?:\\.[^"\\]*)*)"[ \t]*(?:,|$)', re.ASCII)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


def own_samples(text: str) -> list[Sample]:
    """The samples of workers' metrics. Raises ValueError if one is malformed, or if there are more than MAX_SERIES, or
    MAX_LABELS of one.
    """
    lines = f"\n{text}"
    number = lines.count(_BEGINNING)
    if number > MAX_SERIES:
        raise ValueError(f"{number} series")
    found = _SAMPLE.findall(lines)
    if len(found) != number:
        raise ValueError(f"{number - len(found)} series are malformed, or longer than {MAX_LINE} characters")
    labels_of = {written: _labels(written) for written in {written for _, written, _ in found}}
    return [Sample(name, labels_of[written], float(value)) for name, written, value in found]


def _samples_of_server(text: str) -> list[Sample]:
    """The samples of a parameter server's metrics; none if there are more than MAX_PEER_SERIES, and none of a series
    that is malformed. Raises ValueError if labels or values are."""
    lines = f"\n{text}"
    if not 0 < lines.count(f"\n{PREFIX}") <= MAX_PEER_SERIES:
        return []
    return [Sample(name, _labels(labels), float(value)) for name, labels, value in _SAMPLE_OF_SERVER.findall(lines)]


def _labels(written: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    at = number = 0
    while at < len(written):
        found = _LABEL.match(written, at)
        if found is None or number == MAX_LABELS:
            raise ValueError(f"no labels: {written[:80]!r}" if found is None else f"more than {MAX_LABELS} labels")
        value = found[2]
        labels[found[1]] = _ESCAPE.sub(_unescaped, value) if "\\" in value else value
        at = found.end()
        number += 1
    return labels


def _unescaped(found: re.Match[str]) -> str:
    return _ESCAPED.get(found[1], found[0])


logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 1.0
"""For the whole answer of one worker."""

MAX_BYTES = 1 << 18
"""Fifty times the size of a worker's answer."""

PARSING_SECONDS = 0.1
"""CPU time for one worker's answer."""

AT_ONCE = 64
"""Concurrent requests for one job; with more, answers come too late only because there are so many requests."""

SECONDS_PER_WORKER = 0.004
"""Time for all workers, per worker, beyond twice the time for one: a few times what a request costs."""

_OK = 200
_HEADERS = {"Accept": "text/plain; version=0.0.4"}


def parse_metrics(text: str) -> WorkerMetrics | None:
    """What a worker exports of the plan version that it follows; None if that is malformed or names no version."""
    try:
        metrics = metrics_of(own_samples(text))
        of_server = _samples_of_server(text) if metrics is not None else []
        return replace(metrics, peers=peers_of(of_server)) if metrics is not None and of_server else metrics
    except ValueError as error:
        logger.debug("malformed metrics: %s", error)
        return None


async def scrape_pods(
    client: Client, addresses: Mapping[str, str], *, owner: str, timeout_seconds: float = TIMEOUT_SECONDS
) -> dict[str, WorkerMetrics | None]:
    """The metrics of workers by name; `addresses` are their `host:port`. None: unreadable this time.

    `timeout_seconds` bounds one worker's answer; all together take at most twice that, and SECONDS_PER_WORKER for each.
    All requests have ended when it returns.
    """
    results: dict[str, WorkerMetrics | None] = dict.fromkeys(addresses)
    left = iter(addresses.items())

    async def read_next() -> None:
        for name, address in left:
            results[name] = await _read(client, address, owner, timeout_seconds)

    seconds = 2 * timeout_seconds + SECONDS_PER_WORKER * len(addresses)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as requests:
            for _ in range(min(AT_ONCE, len(addresses))):
                requests.create_task(read_next())
    return results


async def _read(client: Client, address: str, owner: str, seconds: float) -> WorkerMetrics | None:
    try:
        answer = await client.get(
            f"http://{address}/metrics", owner=owner, seconds=seconds, max_bytes=MAX_BYTES, headers=_HEADERS
        )
        if answer.status != _OK:
            return None
        found = await client.parsing.values(
            _parsed(answer.body), owner=owner, size=len(answer.body), seconds=PARSING_SECONDS
        )
        return found[0] if found else None
    except (UnreachableError, WrongAnswerError, CostlyError, UnicodeDecodeError) as error:
        logger.debug("worker at %s: %s", address, error)
        return None


def _parsed(body: bytes) -> Iterator[WorkerMetrics | None]:
    yield parse_metrics(body.decode())


class PodReader:
    """Reads workers without an event loop, for jobs on this machine. It belongs to one thread, and must be closed."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._client = Client()
        self._closed = False

    def read(self, addresses: Mapping[str, str]) -> dict[str, WorkerMetrics | None]:
        """As `scrape_pods`."""
        return self._runner.run(scrape_pods(self._client, addresses, owner=""))

    def close(self) -> None:
        """Close all connections; a second call has no effect."""
        if not self._closed:
            self._closed = True
            self._runner.run(self._client.close())
            self._runner.close()
