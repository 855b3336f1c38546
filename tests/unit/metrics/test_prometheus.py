"""Workers' metrics from a server that speaks Prometheus' API over real HTTP: what is asked, and what answers mean."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from heterotrain import contract
from heterotrain import worker_metrics as table
from heterotrain.metric import Metric
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.metrics.prometheus import query_of
from heterotrain_operator.metrics.workers import MAX_SIZES
from unit.metrics.samples import NOW, WORKER, matrix, read, row, scrape, source
from unit.metrics.servers import Script


def test_raw_samples_of_the_jobs_workers_are_asked_for(url: str, script: Script) -> None:
    source(f"{url}/prometheus/", max_age_seconds=45).read()
    (asked,) = script.asked
    path, query = asked
    assert path == "/prometheus/api/v1/query"
    assert query == {
        "query": ['{__name__=~"heterotrain_worker_.+",training_job="digits",namespace="ml"}[45s]'],
    }


def test_label_values_cannot_leave_their_quotes() -> None:
    query = query_of('x"} or up{a="\\', "a\nb", 30)
    assert query == ('{__name__=~"heterotrain_worker_.+",training_job="x\\"} or up{a=\\"\\\\",namespace="a\\nb"}[30s]')


def test_every_figure_of_a_worker_is_read(url: str, script: Script) -> None:
    gauges = {
        table.PLAN_VERSION.name: 7,
        table.GENERATION.name: 2,
        table.BATCH_SIZE.name: 32,
        table.STEP.name: 120,
        table.TOTAL_STEPS.name: 500,
        table.EPOCH.name: 3,
        table.IN_COLLECTIVE.name: 1,
        table.OWN_SECONDS_EWMA.name: 0.25,
        table.LOSS.name: "NaN",
        table.MEMORY_BYTES.name: "1e+08",
        table.CPU_LIMIT.name: 0.5,
    }
    resumed = row(table.RESUMED_STEP.name, [(-1, 40)], resumed_from="an earlier job's")
    counters = {
        table.STEPS.name: 10,
        table.SAMPLES.name: 320,
        table.OWN_SECONDS.name: 2.5,
        table.OWN_SECONDS_SQUARED.name: 0.7,
        table.WAIT_SECONDS.name: 1.25,
        table.CPU_THROTTLED_SECONDS.name: 4.0,
    }
    rows = [row(name, [(-1, value)]) for name, value in gauges.items()]
    rows += [row(f"{name}_total", [(-6, 0), (-1, value)]) for name, value in counters.items()]
    rows.append(resumed)
    rows.append(row(table.PHASE.name, [(-6, 1)], phase=contract.PHASE_STARTING))
    rows.append(row(table.PHASE.name, [(-1, 1)], phase=contract.PHASE_TRAINING))
    script.answer = matrix(*rows)
    metrics = read(url)
    assert metrics is not None
    assert metrics.loss is not None
    assert metrics.loss != metrics.loss  # NaN
    assert replace(metrics, loss=None) == WorkerMetrics(  # since Python 3.13 one with NaN does not equal itself
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
        memory_bytes=1e8,
        cpu_limit=0.5,
        resumed_step=40,
        resumed_from="an earlier job's",
    )


BY_BATCH = pytest.mark.parametrize("metric", [table.WARM_UP_SECONDS, table.SMALLER_STEP_SECONDS])
"""What workers tell of several batch sizes."""


@BY_BATCH
def test_what_a_worker_tells_by_batch_sizes_is_read_as_far_as_it_is_possible(
    url: str, script: Script, metric: Metric
) -> None:
    shown = {"64": 0.5, "32": 0.3, "-1": 1.0, "x": 1.0, "9" * 30: 1.0, "16": math.inf, "8": 0.0, "\u0663": 1.0}
    rows = [row(metric.name, [(-1, value)], batch=batch) for batch, value in shown.items()]
    script.answer = matrix(row(table.PLAN_VERSION.name, [(-1, 7)]), *rows)
    metrics = read(url)
    assert metrics is not None
    assert getattr(metrics, metric.field) == ((32, 0.3), (64, 0.5))


@BY_BATCH
def test_a_worker_tells_of_few_batch_sizes(url: str, script: Script, metric: Metric) -> None:
    rows = [row(metric.name, [(-1, 1)], batch=str(batch)) for batch in range(1, 100)]
    script.answer = matrix(row(table.PLAN_VERSION.name, [(-1, 7)]), *rows)
    metrics = read(url)
    assert metrics is not None
    assert len(getattr(metrics, metric.field)) == MAX_SIZES


def test_newest_sample_of_a_series_counts(url: str, script: Script) -> None:
    steps = row(table.STEPS.series, [(-3, 10), (-2, 20), (-1, 30)])
    script.answer = matrix(row(table.PLAN_VERSION.name, [(-3, 7), (-2, 7), (-1, 7)]), steps)
    metrics = read(url)
    assert metrics is not None
    assert metrics.steps == 30.0


@pytest.mark.parametrize(("at", "counts"), [(-30.0, True), (-30.1, False), (-3600.0, False), (2.0, True)])
def test_samples_older_than_the_limit_do_not_count(url: str, script: Script, at: float, counts: bool) -> None:
    script.answer = matrix(*scrape(at))
    assert (read(url) is not None) is counts


def test_figures_of_one_scrape_are_not_mixed_with_older_ones(url: str, script: Script) -> None:
    script.answer = matrix(
        row(table.PLAN_VERSION.name, [(-6, 7), (-1, 7)]),
        row(table.STEPS.series, [(-6, 10), (-1, 20)]),
        row(table.LOSS.name, [(-6, 1.5)]),  # not exported any more
    )
    metrics = read(url)
    assert metrics is not None
    assert (metrics.steps, metrics.loss) == (20.0, None)


def test_series_of_a_new_version_replace_those_of_the_old_one(url: str, script: Script) -> None:
    script.answer = matrix(*scrape(-2, version=7, steps=90, own=9.0), *scrape(-1, version=8, steps=1, own=0.1))
    assert read(url) == WorkerMetrics(plan_version=8, steps=1.0, own_seconds=0.1)


def test_restarted_worker_counts_although_its_predecessor_followed_a_later_version(url: str, script: Script) -> None:
    before = scrape(-9, version=12, steps=500, instance="10.0.0.7:9400")
    after = scrape(-1, version=0, steps=0, own=0.0, instance="10.0.0.9:9400")
    script.answer = matrix(*before, *after)
    assert read(url) == WorkerMetrics(plan_version=0)


def test_samples_from_before_a_pod_was_created_are_not_its_own(url: str, script: Script) -> None:
    script.answer = matrix(*scrape(-9))
    asked = source(url)
    assert asked.read(since={WORKER: NOW - 10}).metrics[WORKER] is not None
    assert asked.read(since={WORKER: NOW - 8}).metrics[WORKER] is None


def test_two_servers_that_watch_one_worker_are_not_mixed(url: str, script: Script) -> None:
    script.answer = matrix(
        *scrape(-2, steps=10, own=1.0, prometheus="a"),
        *scrape(-1, steps=11, own=1.1, prometheus="b"),
    )
    assert read(url) == WorkerMetrics(plan_version=7, steps=11.0, own_seconds=1.1)


def test_counter_that_began_again_is_taken_as_it_is(url: str, script: Script) -> None:
    steps = row(table.STEPS.series, [(-3, 100), (-2, 120), (-1, 4)])
    script.answer = matrix(row(table.PLAN_VERSION.name, [(-1, 7)]), steps)
    metrics = read(url)
    assert metrics is not None
    assert metrics.steps == 4.0


@pytest.mark.parametrize("ended", ["NaN", "+Inf"])
def test_series_that_has_ended_does_not_count(url: str, script: Script, ended: str) -> None:
    script.answer = matrix(row(table.PLAN_VERSION.name, [(-2, 7), (-1, ended)]))
    assert read(url) is None


def test_worker_with_a_figure_that_must_be_whole_and_is_none_is_unreadable(url: str, script: Script) -> None:
    script.answer = matrix(*scrape(-1), row(table.STEP.name, [(-1, "NaN")]))
    assert read(url) is None


def test_only_the_workers_asked_for_are_told_and_all_of_them(url: str, script: Script) -> None:
    script.answer = matrix(*scrape(-1), *scrape(-1, worker="digits-old-0"))
    reading = source(url).read(WORKER, "digits-cpu-1")
    assert set(reading.metrics) == {WORKER, "digits-cpu-1"}
    assert reading.metrics["digits-cpu-1"] is None
    assert reading.note == "the server holds no fresh samples of digits-cpu-1"


def test_server_that_scrapes_no_worker_is_noted_with_what_was_asked(url: str) -> None:
    reading = source(url).read()
    assert reading.problem == ""
    assert "does it scrape them?" in reading.note
    assert 'namespace="ml"' in reading.note


def test_nothing_is_noted_when_all_workers_are_known(url: str, script: Script) -> None:
    script.answer = matrix(*scrape(-1))
    assert source(url).read().note == ""


def test_evaluations_of_a_scrape_are_read_with_it(url: str, script: Script) -> None:
    script.answer = matrix(
        *scrape(-1),
        row(table.EVALUATION.name, [(-1, 0.75)], metric="accuracy"),
        row(table.EVALUATION.name, [(-1, "NaN")], metric="f1"),
        row(table.EVALUATION_STEP.name, [(-1, 100)]),
    )
    found = read(url)
    assert found is not None
    assert found.evaluated == contract.Evaluated(100, (("accuracy", 0.75),))
