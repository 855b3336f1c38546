"""Read metrics straight from the workers: it needs nothing else, and never waits for a silent one."""

from __future__ import annotations

import concurrent.futures
import http.client
import logging
import math
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from heterotrain import contract
from heterotrain_operator.core.model import WorkerMetrics

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 1.0
MAX_BYTES = 1 << 20
CHUNK_BYTES = 1 << 16
MAX_THREADS = 32

_COUNTER_SUFFIX = "_total"  # prometheus_client appends it to the names of counters


def parse_metrics(text: str) -> WorkerMetrics | None:
    """What a worker exports of the plan version in force; None if it is malformed or names no version."""
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        versions = [s.value for s in samples if s.name == contract.METRIC_PLAN_VERSION]
        if not versions or not math.isfinite(max(versions)):
            return None
        version = int(max(versions))
        values: dict[str, float] = {}
        phase = ""
        for sample in samples:
            if sample.labels.get("plan_version") != str(version):
                continue
            if sample.name == contract.METRIC_PHASE:
                phase = sample.labels.get("phase", "") if sample.value else phase
            else:
                values[sample.name.removesuffix(_COUNTER_SUFFIX)] = sample.value
        return _metrics(version, values, phase)
    except (ValueError, KeyError, OverflowError) as error:
        logger.debug("malformed metrics: %s", error)
        return None


def _metrics(version: int, values: Mapping[str, float], phase: str) -> WorkerMetrics:
    return WorkerMetrics(
        plan_version=version,
        generation=int(values.get(contract.METRIC_GENERATION, 0)),
        batch_size=int(values.get(contract.METRIC_BATCH_SIZE, 0)),
        step=int(values.get(contract.METRIC_STEP, 0)),
        total_steps=int(values.get(contract.METRIC_TOTAL_STEPS, 0)),
        epoch=int(values.get(contract.METRIC_EPOCH, 0)),
        phase=phase,
        in_collective=values.get(contract.METRIC_IN_COLLECTIVE, 0.0) > 0,
        steps=values.get(contract.METRIC_STEPS, 0.0),
        samples=values.get(contract.METRIC_SAMPLES, 0.0),
        own_seconds=values.get(contract.METRIC_OWN_SECONDS, 0.0),
        own_seconds_squared=values.get(contract.METRIC_OWN_SECONDS_SQUARED, 0.0),
        wait_seconds=values.get(contract.METRIC_WAIT_SECONDS, 0.0),
        own_seconds_ewma=values.get(contract.METRIC_OWN_SECONDS_EWMA),
        loss=values.get(contract.METRIC_LOSS),
        memory_bytes=values.get(contract.METRIC_MEMORY_BYTES),
        cpu_limit=values.get(contract.METRIC_CPU_LIMIT),
        cpu_throttled_seconds=values.get(contract.METRIC_CPU_THROTTLED_SECONDS),
    )


# Workers are reached directly: a proxy for the outside world knows nothing of them.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _read(url: str, timeout_seconds: float) -> WorkerMetrics | None:
    deadline = time.monotonic() + timeout_seconds
    body = b""
    try:
        with _opener.open(url, timeout=timeout_seconds) as response:
            while chunk := response.read1(CHUNK_BYTES):
                body += chunk
                if len(body) > MAX_BYTES or time.monotonic() > deadline:
                    return None
        return parse_metrics(body.decode())
    except (OSError, http.client.HTTPException, UnicodeDecodeError):
        return None


class PodScraper:
    """Reads many workers at once."""

    def __init__(self, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """`timeout_seconds` bounds one worker's answer; a whole round takes at most twice that."""
        self._timeout_seconds = timeout_seconds
        self._pool = concurrent.futures.ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="scrape")

    def scrape(self, addresses: Mapping[str, str]) -> dict[str, WorkerMetrics | None]:
        """The metrics of workers by name; `addresses` are their `host:port`. None: unreadable this time."""
        reads = {
            name: self._pool.submit(_read, f"http://{address}/metrics", self._timeout_seconds)
            for name, address in addresses.items()
        }
        concurrent.futures.wait(reads.values(), timeout=2 * self._timeout_seconds)
        results = {name: read.result() if read.done() else None for name, read in reads.items()}
        for read in reads.values():
            read.cancel()
        return results

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(cancel_futures=True)
