"""Read metrics straight from the workers: it needs nothing else, and never waits long for a silent one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.metrics.client import Client, UnreachableError, WrongAnswerError
from heterotrain_operator.metrics.exposition import own_samples
from heterotrain_operator.metrics.workers import metrics_of

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 1.0
"""For one worker's answer, all of it."""

MAX_BYTES = 1 << 18
"""Fifty times what a worker answers."""

AT_ONCE = 64
"""Workers of one job that are asked at once; more would answer too late only because all are asked."""

SECONDS_EACH = 0.004
"""What a worker adds to the time for all, above twice that for one: a few times what asking it costs."""

_OK = 200
_HEADERS = {"Accept": "text/plain; version=0.0.4"}


def parse_metrics(text: str) -> WorkerMetrics | None:
    """What a worker exports of the plan version in force; None if it is malformed or names no version."""
    try:
        return metrics_of(own_samples(text))
    except ValueError as error:
        logger.debug("malformed metrics: %s", error)
        return None


async def scrape_pods(
    client: Client, addresses: Mapping[str, str], *, owner: str, timeout_seconds: float = TIMEOUT_SECONDS
) -> dict[str, WorkerMetrics | None]:
    """The metrics of workers by name; `addresses` are their `host:port`. None: unreadable this time.

    `timeout_seconds` bounds one worker's answer; all of it takes at most twice that, and SECONDS_EACH per worker. When
    it returns no request is under way any more.
    """
    results: dict[str, WorkerMetrics | None] = dict.fromkeys(addresses)
    left = iter(addresses.items())

    async def ask() -> None:
        for name, address in left:
            results[name] = await _read(client, address, owner, timeout_seconds)

    seconds = 2 * timeout_seconds + SECONDS_EACH * len(addresses)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as asking:
            for _ in range(min(AT_ONCE, len(addresses))):
                asking.create_task(ask())
    return results


async def _read(client: Client, address: str, owner: str, seconds: float) -> WorkerMetrics | None:
    try:
        answer = await client.get(
            f"http://{address}/metrics", owner=owner, seconds=seconds, max_bytes=MAX_BYTES, headers=_HEADERS
        )
        return parse_metrics(answer.body.decode()) if answer.status == _OK else None
    except (UnreachableError, WrongAnswerError, UnicodeDecodeError) as error:
        logger.debug("worker at %s: %s", address, error)
        return None


class PodReader:
    """Reads workers for whoever has no event loop, such as a job on this machine. For one thread; `close` it."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._client = Client()
        self._closed = False

    def read(self, addresses: Mapping[str, str]) -> dict[str, WorkerMetrics | None]:
        """As `scrape_pods`."""
        return self._runner.run(scrape_pods(self._client, addresses, owner=""))

    def close(self) -> None:
        """Close what is connected; harmless when done already."""
        if not self._closed:
            self._closed = True
            self._runner.run(self._client.close())
            self._runner.close()
