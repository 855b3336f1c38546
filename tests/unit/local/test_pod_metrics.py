"""Workers' metrics, read from real servers of prometheus_client and from some that misbehave."""

from __future__ import annotations

import math
import socket
import threading

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from heterotrain import contract
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.metrics.pods import MAX_THREADS, parse_metrics, scrape_pods

LABELS = {"training_job": "job", "worker": "job-cpu-0", "group": "cpu"}


def registry(version: int, **extra: float) -> CollectorRegistry:
    own = CollectorRegistry()
    labels = {**LABELS, "plan_version": str(version)}
    gauges = {
        contract.METRIC_PLAN_VERSION: version,
        contract.METRIC_GENERATION: 2,
        contract.METRIC_BATCH_SIZE: 32,
        contract.METRIC_STEP: 120,
        contract.METRIC_TOTAL_STEPS: 500,
        contract.METRIC_EPOCH: 3,
        contract.METRIC_IN_COLLECTIVE: 1,
        contract.METRIC_OWN_SECONDS_EWMA: 0.25,
        contract.METRIC_LOSS: 1.5,
        contract.METRIC_MEMORY_BYTES: 1e8,
        contract.METRIC_CPU_LIMIT: 0.5,
        contract.METRIC_MEMORY_PEAK_BYTES: 2e8,
        contract.METRIC_MEMORY_LIMIT_BYTES: 1e9,
        contract.METRIC_MEMORY_BATCH_SIZE: 16,
        contract.METRIC_LEAST_BATCH_SIZE: 8,
        **extra,
    }
    for name, value in gauges.items():
        Gauge(name, "x", contract.LABELS, registry=own).labels(**labels).set(value)
    for name, value in {
        contract.METRIC_STEPS: 10,
        contract.METRIC_SAMPLES: 320,
        contract.METRIC_OWN_SECONDS: 2.5,
        contract.METRIC_OWN_SECONDS_SQUARED: 0.7,
        contract.METRIC_WAIT_SECONDS: 1.25,
        contract.METRIC_CPU_THROTTLED_SECONDS: 4.0,
    }.items():
        Counter(name, "x", contract.LABELS, registry=own).labels(**labels).inc(value)
    phases = Gauge(contract.METRIC_PHASE, "x", (*contract.LABELS, "phase"), registry=own)
    for phase in contract.PHASES:
        phases.labels(**labels, phase=phase).set(phase == contract.PHASE_TRAINING)
    return own


EXPECTED = WorkerMetrics(
    plan_version=7,
    generation=2,
    batch_size=32,
    step=120,
    total_steps=500,
    epoch=3,
    phase=contract.PHASE_TRAINING,
    in_collective=True,
    steps=10.0,
    samples=320.0,
    own_seconds=2.5,
    own_seconds_squared=0.7,
    wait_seconds=1.25,
    own_seconds_ewma=0.25,
    loss=1.5,
    memory_bytes=1e8,
    cpu_limit=0.5,
    memory_peak_bytes=2e8,
    memory_limit_bytes=1e9,
    memory_batch_size=16,
    least_batch_size=8,
)


def test_metrics_of_a_real_server_are_read() -> None:
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry(7))
    try:
        address = f"127.0.0.1:{server.server_port}"
        assert scrape_pods({"a": address, "b": address}) == {"a": EXPECTED, "b": EXPECTED}
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    test_metrics_of_a_real_server_are_read()


def test_a_silent_a_garbled_and_an_absent_worker_are_none_and_do_not_hold_up_the_others() -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    absent = socket.socket()
    absent.bind(("127.0.0.1", 0))
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry(7))
    try:
        addresses = {
            "silent": f"127.0.0.1:{silent.getsockname()[1]}",
            "absent": f"127.0.0.1:{absent.getsockname()[1]}",
            "well": f"127.0.0.1:{server.server_port}",
        }
        results = scrape_pods(addresses, timeout_seconds=0.3)
        assert results == {"silent": None, "absent": None, "well": EXPECTED}
    finally:
        silent.close()
        absent.close()
        server.shutdown()
        server.server_close()
        thread.join()


def test_one_jobs_silent_workers_keep_no_other_job_waiting() -> None:
    silent = socket.create_server(("127.0.0.1", 0), backlog=MAX_THREADS)
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry(7))
    silent_address, answers = f"127.0.0.1:{silent.getsockname()[1]}", threading.Event()

    def read_silent() -> None:
        scrape_pods({str(number): silent_address for number in range(MAX_THREADS)}, timeout_seconds=2.0)
        answers.set()

    other = threading.Thread(target=read_silent)
    other.start()
    try:
        assert scrape_pods({"well": f"127.0.0.1:{server.server_port}"}) == {"well": EXPECTED}
        assert not answers.is_set()
    finally:
        other.join()
        silent.close()
        server.shutdown()
        server.server_close()
        thread.join()


def lines(*samples: str) -> str:
    return "\n".join(samples) + "\n"


def sample(name: str, value: float | str, version: int | str, suffix: str = "") -> str:
    return f'{name}{suffix}{{worker="w",plan_version="{version}"}} {value}'


def test_only_series_of_the_version_in_force_count() -> None:
    metrics = parse_metrics(
        lines(
            sample(contract.METRIC_PLAN_VERSION, 4, 4),
            sample(contract.METRIC_STEPS, 90, 3, "_total"),
            sample(contract.METRIC_STEPS, 5, 4, "_total"),
            sample(contract.METRIC_OWN_SECONDS, 9, 3, "_total"),
        )
    )
    assert metrics is not None
    assert (metrics.plan_version, metrics.steps, metrics.own_seconds) == (4, 5.0, 0.0)


def test_what_a_worker_does_not_know_is_none() -> None:
    metrics = parse_metrics(lines(sample(contract.METRIC_PLAN_VERSION, 1, 1)))
    assert metrics == WorkerMetrics(plan_version=1)


@pytest.mark.parametrize(
    ("reported", "believed"),
    [
        (1, 1),
        (8, 8),
        (1024, 1024),
        (1025, 1),
        (0, 1),
        (-8, 1),
        (7.5, 1),
        ("1e300", 1),
        ("NaN", 1),
        ("+Inf", 1),
        ("-Inf", 1),
    ],
)
def test_an_absurd_number_of_samples_needed_is_none(reported: float | str, believed: int) -> None:
    metrics = parse_metrics(
        lines(sample(contract.METRIC_PLAN_VERSION, 1, 1), sample(contract.METRIC_LEAST_BATCH_SIZE, reported, 1))
    )
    assert metrics == WorkerMetrics(plan_version=1, least_batch_size=believed)


def test_a_loss_that_is_no_number_arrives_as_such() -> None:
    metrics = parse_metrics(lines(sample(contract.METRIC_PLAN_VERSION, 1, 1), sample(contract.METRIC_LOSS, "NaN", 1)))
    assert metrics is not None
    assert metrics.loss is not None
    assert math.isnan(metrics.loss)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>404</html>",
        "heterotrain_worker_plan_version{",
        lines(sample(contract.METRIC_PLAN_VERSION, "NaN", 1)),
        lines(sample(contract.METRIC_PLAN_VERSION, "+Inf", 1)),
        lines(sample(contract.METRIC_STEPS, 5, 1, "_total")),
        lines(sample(contract.METRIC_PLAN_VERSION, 1, 1), sample(contract.METRIC_STEP, "NaN", 1)),
        lines(sample(contract.METRIC_PLAN_VERSION, "one", 1)),
    ],
)
def test_malformed_metrics_are_none(text: str) -> None:
    assert parse_metrics(text) is None
