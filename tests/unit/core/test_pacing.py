"""When a job is looked at again, on backends that announce what happens and on those that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain import contract
from heterotrain.contract import Member, Plan
from heterotrain_operator.core.model import Decision, JobPhase, Seen, WorkerKey, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.pacing import (
    ANNOUNCED,
    FOLLOWING_SECONDS,
    POLLED,
    Following,
    seconds_to_next_round,
)

TRAINING = WorkerMetrics(plan_version=1, phase=contract.PHASE_TRAINING, batch_size=8, steps=10.0, own_seconds=1.0)
FIRST = replace(TRAINING, steps=2.0, own_seconds=1.0)
PAUSED = WorkerMetrics(plan_version=1, phase=contract.PHASE_PAUSED)
STARTING = WorkerMetrics(plan_version=1, phase=contract.PHASE_STARTING)
PLAN = Plan(1, 1, "step", (Member("w", "u", "127.0.0.1:1", "cpu", 8),))

BUSY, QUIET = POLLED.busy_seconds, POLLED.quiet_seconds
NOW = 1000.0


def worker(metrics: WorkerMetrics | None, rank: int = 0, exit_code: int | None = None) -> WorkerSeen:
    return WorkerSeen(f"w{rank}", "u", "cpu", rank, "Running", exit_code=exit_code, metrics=metrics)


def polled(*workers: WorkerSeen, phase: JobPhase = "Running", create: bool = False) -> float:
    created = (WorkerKey("cpu", 1, "x"),) if create else ()
    return seconds_to_next_round(POLLED, Seen(workers), Decision(phase, "", create=created))


@pytest.mark.parametrize(
    ("phase", "metrics", "exit_code", "create", "seconds"),
    [
        ("Running", TRAINING, None, False, QUIET),
        ("Running", PAUSED, None, False, QUIET),
        ("Running", FIRST, None, False, 0.5),
        ("Running", replace(FIRST, own_seconds=0.1), None, False, BUSY),
        ("Running", replace(FIRST, own_seconds=100.0), None, False, QUIET),
        ("Running", replace(FIRST, batch_size=0), None, False, QUIET),
        ("Running", STARTING, None, False, BUSY),
        ("Running", None, None, False, BUSY),
        ("Running", TRAINING, 0, False, BUSY),
        ("Running", TRAINING, None, True, BUSY),
        ("Restarting", TRAINING, None, False, BUSY),
        ("Suspended", TRAINING, None, False, BUSY),
    ],
)
def test_rounds_of_a_backend_that_announces_nothing_are_seldom_only_while_all_train(
    phase: JobPhase, metrics: WorkerMetrics | None, exit_code: int | None, create: bool, seconds: float
) -> None:
    assert polled(worker(metrics, exit_code=exit_code), phase=phase, create=create) == seconds


MANY = replace(TRAINING, own_seconds=0.1)


@pytest.mark.parametrize(
    ("metrics", "first", "seconds"),
    [
        (replace(MANY, steps=5.0, wait_seconds=0.5), None, 0.75),
        (replace(MANY, steps=0.0), None, 0.75),
        (replace(MANY, steps=1.0, wait_seconds=0.5), None, 0.3),
        (replace(MANY, steps=2.0, wait_seconds=0.9), None, 0.25),
        (replace(MANY, steps=2.0, wait_seconds=0.1), None, BUSY),
        # those that do not train together
        (replace(MANY, steps=2.0, wait_seconds=0.4), replace(TRAINING, steps=1000.0), 0.75),
        (replace(MANY, steps=2.0, wait_seconds=0.4), replace(FIRST, phase=contract.PHASE_PAUSED), 0.75),
    ],
)
def test_first_three_steps_of_many_workers_are_looked_at_one_by_one_and_later_ones_as_reading_them_allows(
    metrics: WorkerMetrics, first: WorkerMetrics | None, seconds: float
) -> None:
    workers = [worker(metrics if rank or first is None else first, rank) for rank in range(150)]
    assert polled(*workers) == pytest.approx(seconds)


def test_newcomers_are_waited_for_no_oftener_than_reading_those_that_train_allows() -> None:
    members = [worker(replace(TRAINING, protocol=3), rank) for rank in range(150)]
    starting = worker(replace(STARTING, protocol=3), 150)
    assert polled(*members, starting) == pytest.approx(0.75)
    assert polled(starting) == BUSY


LONG_AGO = NOW - FOLLOWING_SECONDS
WRITTEN, FOLLOWED = Following(1, NOW - 1), Following(followed_at=NOW - 1)


@pytest.mark.parametrize(
    ("phase", "metrics", "following", "removal", "seconds"),
    [
        ("Running", TRAINING, Following(), None, ANNOUNCED.quiet_seconds),
        ("Running", STARTING, Following(), None, ANNOUNCED.quiet_seconds),  # its pod's changes wake the loop
        ("Running", STARTING, WRITTEN, None, ANNOUNCED.busy_seconds),
        ("Running", STARTING, Following(1, LONG_AGO), None, ANNOUNCED.quiet_seconds),
        ("Running", FIRST, FOLLOWED, None, ANNOUNCED.busy_seconds),
        ("Running", replace(FIRST, own_seconds=1.5), FOLLOWED, None, 0.75),
        ("Running", FIRST, Following(followed_at=LONG_AGO), None, ANNOUNCED.quiet_seconds),
        ("Running", TRAINING, FOLLOWED, None, ANNOUNCED.quiet_seconds),
        ("Created", STARTING, Following(), None, ANNOUNCED.busy_seconds),
        ("Created", None, Following(), None, ANNOUNCED.busy_seconds),
        ("Suspended", TRAINING, WRITTEN, None, ANNOUNCED.still_seconds),
        ("Succeeded", TRAINING, FOLLOWED, None, ANNOUNCED.still_seconds),
        ("Failed", TRAINING, FOLLOWED, 10.0, 10.0),
        ("Failed", TRAINING, FOLLOWED, -5.0, ANNOUNCED.busy_seconds),
        ("Failed", TRAINING, FOLLOWED, 100.0, ANNOUNCED.still_seconds),
    ],
)
def test_a_backend_that_announces_changes_is_looked_at_often_only_for_what_metrics_say(
    phase: JobPhase,
    metrics: WorkerMetrics | None,
    following: Following,
    removal: float | None,
    seconds: float,
) -> None:
    seen, decision = Seen((worker(metrics),)), Decision(phase, "")
    assert seconds == seconds_to_next_round(
        ANNOUNCED, seen, decision, following=following, now=NOW, removal_seconds=removal
    )


def test_a_plan_is_awaited_until_all_follow_it() -> None:
    written = Following().after(Seen(), Decision("Running", "", plan=PLAN), NOW)
    assert written == Following(1, NOW)
    behind = Seen((worker(TRAINING), worker(replace(TRAINING, plan_version=0), 1)))
    assert written.after(behind, Decision("Running", ""), NOW + 1) == written
    assert written.after(Seen((worker(TRAINING),)), Decision("Running", ""), NOW + 2) == Following(followed_at=NOW + 2)
