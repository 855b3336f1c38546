"""Workers of an elastic job that are held up for longer than the heartbeat timeout, by whatever it may be: those whom
nobody could have gone on without train on as if nothing had been. Real processes."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from heterotrain import contract
from trainer.gang import Gang
from trainer.test_lifecycle import assert_each_sample_once_per_epoch, samples_seen
from trainer.test_survivors import adam, assert_the_same_from_then_on
from trainer.test_transitions import CONFIG, EPOCHS, assert_the_same, calm, seen_once

__all__ = ["calm"]  # the fixture

pytestmark = pytest.mark.processes

SHORT = replace(CONFIG, heartbeat_timeout_seconds=2.0)


def stop_for_long(gang: Gang, *numbers: int) -> None:
    """Stop workers for longer than the heartbeat timeout, and let them go on."""
    for number in numbers:
        gang.processes[number].send_signal(signal.SIGSTOP)
    time.sleep(2 * SHORT.heartbeat_timeout_seconds)
    for number in numbers:
        gang.processes[number].send_signal(signal.SIGCONT)


def test_the_only_worker_that_was_stopped_trains_on(tmp_path: Path, calm: Gang) -> None:
    with adam(tmp_path, (96,), SHORT) as gang:
        gang.await_step(3)
        stop_for_long(gang, 0)
        (tmp_path / "go").touch()
        gang.succeed()
    assert_the_same(gang, calm, 0)
    assert "formed again" not in gang.logs()
    assert_each_sample_once_per_epoch(samples_seen(tmp_path), EPOCHS)


def test_all_workers_that_were_stopped_together_train_on(tmp_path: Path, calm: Gang) -> None:
    with adam(tmp_path, (40, 40, 16), SHORT) as gang:
        gang.await_step(3)
        stop_for_long(gang, 2, 1, 0)
        (tmp_path / "go").touch()
        gang.succeed()
    assert_the_same(gang, calm, 0, 1, 2)
    assert_each_sample_once_per_epoch(seen_once(tmp_path), EPOCHS)


def test_the_last_survivor_that_was_stopped_trains_on(tmp_path: Path, calm: Gang) -> None:
    with adam(tmp_path, (40, 40, 16), SHORT) as gang:
        gang.await_step(3)
        for number in (0, 1):
            gang.processes[number].send_signal(signal.SIGKILL)
        gang.await_log(2, "group of 1 workers formed again")
        stop_for_long(gang, 2)
        (tmp_path / "go").touch()
        gang.succeed(2)
    assert_the_same_from_then_on(gang, calm, 2)


def test_the_first_of_two_that_was_stopped_goes_on_alone_once_a_plan_names_it(tmp_path: Path, calm: Gang) -> None:
    with adam(tmp_path, (40, 56), SHORT) as gang:
        gang.await_step(3)
        gang.processes[0].send_signal(signal.SIGSTOP)
        gang.await_log(1, "waiting for w-0")
        gang.processes[1].send_signal(signal.SIGKILL)
        gang.processes[0].send_signal(signal.SIGCONT)
        gang.await_phase(0, contract.PHASE_REFORMING)
        gang.change({0: 96})
        gang.await_log(0, "group of 1 workers formed again")
        (tmp_path / "go").touch()
        gang.succeed(0)
    assert_the_same_from_then_on(gang, calm, 0)


def test_the_only_worker_that_was_stopped_ends_if_the_job_has_begun_again_elsewhere(tmp_path: Path) -> None:
    with adam(tmp_path, (96,), SHORT) as gang:
        gang.await_step(3)
        gang.processes[0].send_signal(signal.SIGSTOP)
        gang.start(0)
        gang.change({1: 96}, continues=0)
        gang.await_log(1, "following plan")
        time.sleep(2 * SHORT.heartbeat_timeout_seconds)
        gang.processes[0].send_signal(signal.SIGCONT)
        assert gang.wait_for(0) == 1
        assert "begins from a checkpoint" in gang.ending(0).message
        (tmp_path / "go").touch()
        gang.succeed(1)
