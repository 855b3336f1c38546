"""Workers' metrics, read from real servers of prometheus_client and from some that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, start_http_server

from heterotrain import contract
from heterotrain import worker_metrics as table
from heterotrain.metric import Metric
from heterotrain_operator.core.model import PeerMetrics, WorkerMetrics
from heterotrain_operator.metrics import pods
from heterotrain_operator.metrics.client import CONNECTIONS_PER_OWNER, Client
from heterotrain_operator.metrics.pods import (
    AT_ONCE,
    MAX_BYTES,
    MAX_LABELS,
    MAX_LINE,
    MAX_PEER_SERIES,
    MAX_SERIES,
    PodReader,
    own_samples,
    parse_metrics,
    scrape_pods,
)
from unit.metrics.hostile import DAWDLERS, FLOODERS, Behaviour, costly_series, dripping_headers, hostile
from unit.metrics.servers import Script, serving

LABELS = {"training_job": "job", "worker": "job-cpu-0", "group": "cpu"}


def registry(version: int) -> CollectorRegistry:
    """A worker's own; that every figure has its field is shown where the table of them is tested."""
    own = CollectorRegistry()
    labels = {**LABELS, "plan_version": str(version)}
    for row, value in ((table.PLAN_VERSION, version), (table.IN_COLLECTIVE, 1), (table.OWN_SECONDS_EWMA, 0.25)):
        Gauge(row.name, "x", table.WORKERS.labels, registry=own).labels(**labels).set(value)
    Counter(table.STEPS.name, "x", table.WORKERS.labels, registry=own).labels(**labels).inc(10)
    phases = Gauge(table.PHASE.name, "x", (*table.WORKERS.labels, "phase"), registry=own)
    for phase in contract.PHASES:
        phases.labels(**labels, phase=phase).set(phase == contract.PHASE_TRAINING)
    return own


EXPECTED = WorkerMetrics(
    plan_version=7, phase=contract.PHASE_TRAINING, in_collective=True, steps=10.0, own_seconds_ewma=0.25
)


@contextlib.contextmanager
def a_worker() -> Iterator[str]:
    """The address of a worker that answers as it should."""
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry(7))
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def scraped(
    addresses: Mapping[str, str], timeout_seconds: float = 1.0, looks: int = 1
) -> dict[str, WorkerMetrics | None]:
    """What the last of so many looks finds."""

    async def look() -> dict[str, WorkerMetrics | None]:
        async with Client() as client:
            for _ in range(looks):
                found = await scrape_pods(client, addresses, owner="ml", timeout_seconds=timeout_seconds)
                await asyncio.sleep(0.05)  # servers learn that their connections are closed
            return found

    return asyncio.run(look())


def test_who_has_no_event_loop_reads_too_and_asks_no_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    reader = PodReader()
    with a_worker() as address:
        for _ in range(2):
            assert reader.read({"a": address}) == {"a": EXPECTED}
    reader.close()
    reader.close()


@pytest.mark.parametrize("behaviour", [*DAWDLERS, *FLOODERS])
def test_a_worker_that_never_ends_its_answer_is_left_in_time_and_the_others_are_read(behaviour: Behaviour) -> None:
    with a_worker() as address, hostile(behaviour) as (one,):
        began = time.monotonic()
        found = scraped({"hostile": one.address, "well": address}, timeout_seconds=0.3)
        assert time.monotonic() - began < 5.0
    assert found == {"hostile": None, "well": EXPECTED}
    assert one.connections == 1


def test_a_worker_is_asked_once_at_a_time_and_costs_no_thread() -> None:
    with hostile(dripping_headers) as (one,):
        threads = threading.active_count()
        scraped({"hostile": one.address}, timeout_seconds=0.1, looks=5)
        assert threading.active_count() <= threads
    assert (one.connections, one.most_open, one.open) == (5, 1, 0)


def test_silent_workers_in_any_number_do_not_make_a_look_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods, "AT_ONCE", 8)
    with hostile(dripping_headers) as (one,):
        began = time.monotonic()
        found = scraped({str(number): one.address for number in range(40 * pods.AT_ONCE)}, timeout_seconds=0.2)
        assert time.monotonic() - began < 6.0  # forty times in a row would take eight
    assert set(found.values()) == {None}
    assert one.open == 0


def test_one_namespaces_silent_workers_keep_no_other_waiting() -> None:
    async def both() -> None:
        async with Client() as client:
            addresses = {str(number): one.address for number in range(AT_ONCE)}
            looks = [asyncio.ensure_future(scrape_pods(client, addresses, owner="theirs")) for _ in range(10)]
            await asyncio.sleep(0.1)
            assert await scrape_pods(client, {"well": address}, owner="ours") == {"well": EXPECTED}
            assert not any(look.done() for look in looks)
            for look in looks:
                look.cancel()
            await asyncio.gather(*looks, return_exceptions=True)

    with a_worker() as address, hostile(dripping_headers) as (one,):
        asyncio.run(both())
    assert one.most_open <= CONNECTIONS_PER_OWNER


def test_an_answer_that_is_dear_to_parse_does_not_keep_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[int, int] = {}

    def noted(text: str) -> WorkerMetrics | None:
        threads[len(text)] = threading.get_ident()
        return parse_metrics(text)

    monkeypatch.setattr(pods, "parse_metrics", noted)
    with a_worker() as address, hostile(costly_series) as (one,):
        found = scraped({"costly": one.address, "well": address})
    assert found == {"costly": WorkerMetrics(plan_version=1), "well": EXPECTED}
    (_, quick), (_, costly) = sorted(threads.items())
    assert quick == threading.get_ident() != costly


def test_an_answer_that_is_larger_than_any_workers_is_not_read() -> None:
    text = generate_latest(registry(7))
    for size, found in ((MAX_BYTES, EXPECTED), (MAX_BYTES + 1, None)):
        with serving(Script(raw=text.ljust(size, b"#"))) as url:
            assert scraped({"a": url.removeprefix("http://")}) == {"a": found}


def lines(*samples: str) -> str:
    return "\n".join(samples) + "\n"


def sample(name: str, value: float | str, version: int | str, suffix: str = "") -> str:
    return f'{name}{suffix}{{worker="w",plan_version="{version}"}} {value}'


FOLLOWS = sample(table.PLAN_VERSION.name, 1, 1)


def test_only_series_of_the_version_in_force_count() -> None:
    metrics = parse_metrics(
        lines(
            sample(table.PLAN_VERSION.name, 4, 4),
            sample(table.STEPS.name, 90, 3, "_total"),
            sample(table.STEPS.name, 5, 4, "_total"),
            sample(table.OWN_SECONDS.name, 9, 3, "_total"),
        )
    )
    assert metrics is not None
    assert (metrics.plan_version, metrics.steps, metrics.own_seconds) == (4, 5.0, 0.0)


ABSURD = (-1, "1e300", "NaN", "+Inf", "-Inf")


@pytest.mark.parametrize(
    ("row", "believed"),
    [
        (table.LEAST_BATCH_SIZE, {8: 8, 1024: 1024, 1025: 1, 0: 1, 7.5: 1, **dict.fromkeys(ABSURD, 1)}),
        (table.PROTOCOL, {2: 2, 0: 1, 2.5: 1, **dict.fromkeys(ABSURD, 1)}),
        (table.RANK, {0: 0, 7: 7, **dict.fromkeys(ABSURD)}),
        (table.CPU_WAIT_SECONDS, dict.fromkeys(ABSURD)),
    ],
    ids=lambda row: str(getattr(row, "name", "")),
)
def test_an_absurd_figure_is_none_and_all_others_are_read(row: Metric, believed: dict[float | str, int | None]) -> None:
    for reported, value in believed.items():
        text = lines(
            sample(table.PLAN_VERSION.name, 1, 1), sample(table.STEPS.series, 5, 1), sample(row.series, reported, 1)
        )
        expected = replace(WorkerMetrics(plan_version=1, steps=5.0), **{row.field: value})
        assert parse_metrics(text) == expected, reported


@pytest.mark.parametrize(
    "text",
    [
        "",
        "heterotrain_worker_plan_version{",
        *(sample(table.PLAN_VERSION.name, value, 1) for value in ("NaN", "1e300", -1, "one")),
        sample(table.STEPS.name, 5, 1, "_total"),
        *(lines(FOLLOWS, sample(table.STEP.name, value, 1)) for value in ("1e300", "-1", "NaN")),
        *(lines(FOLLOWS, sample(table.OWN_SECONDS.name, value, 1)) for value in ("1e300", "-1", "+Inf")),
        *(
            lines(FOLLOWS, f'{table.PHASE.name}{{worker="w",plan_version="1",phase="{phase}"}} 1')
            for phase in ("a" * 65, "\ud800", "new\\nline")
        ),
    ],
    ids=lambda text: text[-60:].encode(errors="replace").decode(),
)
def test_figures_that_cannot_be_ones_make_a_worker_unreadable(text: str) -> None:
    assert parse_metrics(text + "\n") is None


def test_series_that_are_not_ours_are_not_even_parsed() -> None:
    theirs = 'their_series{a="b} no number\nheterotrain_other 1\n'
    assert parse_metrics(theirs + lines(sample(table.PLAN_VERSION.name, 1, 1))) == WorkerMetrics(plan_version=1)


def test_labels_may_hold_whatever_the_format_can_escape() -> None:
    (found,) = own_samples('heterotrain_worker_x{a="\\\\n\\n\\"},b=1",plan_version="7"} 2.5 1700000000000\n')
    assert found == ("heterotrain_worker_x", {"a": '\\n\n"},b=1', "plan_version": "7"}, 2.5)


@pytest.mark.parametrize(
    "text",
    [
        'heterotrain_worker_x{a="' + "\\" * 900_000 + '"} 1',
        "heterotrain_worker_x{" + 'a="' * 1300 + "} 1",
        "heterotrain_worker_x" + " 1" * 450_000,
        "heterotrain_worker_" + "x" * 900_000,
        ("heterotrain_worker_x{" + "} 1" * 1300 + " x\n") * 60,
        "heterotrain_worker_x 1\n" * (MAX_SERIES + 1),
        'heterotrain_worker_x{a="' + "b" * MAX_LINE + '"} 1',
    ],
)
def test_text_that_is_made_to_be_costly_costs_little(text: str) -> None:
    spent = time.process_time()
    assert parse_metrics(text) is None
    assert time.process_time() - spent < 0.5


def test_a_series_of_more_labels_than_there_can_be_makes_a_worker_unreadable() -> None:
    for more, found in ((MAX_LABELS - 1, WorkerMetrics(plan_version=1)), (MAX_LABELS, None)):
        labels = "".join(f'a{number}="",' for number in range(more))
        assert parse_metrics(f'{table.PLAN_VERSION.name}{{{labels}plan_version="1"}} 1\n') == found


@given(st.text(alphabet=st.sampled_from('heterotrain_worker_plan_version{}=",\\ \n1.e+-#'), max_size=300))
def test_no_text_is_too_odd(text: str) -> None:
    parse_metrics("heterotrain_worker_" + text)


def test_what_a_parameter_server_says_of_its_workers_is_read_and_nothing_that_cannot_be() -> None:
    own = registry(7)
    Counter("heterotrain_server_updates", "x", ["peer"], registry=own).labels("job-cpu-0").inc(12)
    discarded = Counter("heterotrain_server_discarded", "x", ["peer", "reason"], registry=own)
    discarded.labels("job-cpu-0", "late").inc(2)
    discarded.labels("job-cpu-0", "nan").inc(1)
    Counter("heterotrain_server_waited_seconds", "x", ["peer"], registry=own).labels("job-cpu-1").inc(0.5)
    Counter("heterotrain_server_updates_of", "x", ["peer"], registry=own).labels("x" * 65).inc(1)
    staleness = Histogram("heterotrain_server_staleness", "x", ["peer"], buckets=(0, 1, 2, 4), registry=own)
    for value in (0, 1, 5):
        staleness.labels("job-cpu-0").observe(value)
    text = generate_latest(own).decode()
    first, second = PeerMetrics("job-cpu-0", 12, 3, 0, 2.0), PeerMetrics("job-cpu-1", waited_seconds=0.5)
    assert parse_metrics(text) == replace(EXPECTED, peers=(first, second))
    assert parse_metrics(text + 'heterotrain_server_updates_total{peer="w"} NaN\n') == parse_metrics(text)
    assert parse_metrics(text + 'heterotrain_server_updates_total{peer="w"} 1\n' * MAX_PEER_SERIES) == EXPECTED
