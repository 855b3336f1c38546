"""Read metrics straight from the workers: it needs nothing else, and never waits for a silent one."""

from __future__ import annotations

import concurrent.futures
import http.client
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.metrics.body import TooLargeError, read_body
from heterotrain_operator.metrics.workers import worker_metrics

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 1.0
MAX_BYTES = 1 << 20
MAX_THREADS = 32


def parse_metrics(text: str) -> WorkerMetrics | None:
    """What a worker exports of the plan version in force; None if it is malformed or names no version."""
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except (ValueError, KeyError, OverflowError) as error:
        logger.debug("malformed metrics: %s", error)
        return None
    return worker_metrics(samples)


# Workers are reached directly: a proxy for the outside world knows nothing of them.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _read(url: str, timeout_seconds: float) -> WorkerMetrics | None:
    deadline = time.monotonic() + timeout_seconds
    try:
        with _opener.open(url, timeout=timeout_seconds) as response:
            body = read_body(response, deadline=deadline, max_bytes=MAX_BYTES)
        return parse_metrics(body.decode())
    except (OSError, http.client.HTTPException, TooLargeError, UnicodeDecodeError):
        return None


def scrape_pods(
    addresses: Mapping[str, str], timeout_seconds: float = TIMEOUT_SECONDS
) -> dict[str, WorkerMetrics | None]:
    """The metrics of workers by name; `addresses` are their `host:port`. None: unreadable this time.

    `timeout_seconds` bounds one worker's answer; all of it takes at most twice that. The threads are of this call
    alone, so that one job's silent workers keep no other job waiting.
    """
    if not addresses:
        return {}
    pool = concurrent.futures.ThreadPoolExecutor(min(MAX_THREADS, len(addresses)), thread_name_prefix="scrape")
    reads = {
        name: pool.submit(_read, f"http://{address}/metrics", timeout_seconds) for name, address in addresses.items()
    }
    concurrent.futures.wait(reads.values(), timeout=2 * timeout_seconds)
    pool.shutdown(wait=False, cancel_futures=True)
    return {name: read.result() if read.done() and not read.cancelled() else None for name, read in reads.items()}
