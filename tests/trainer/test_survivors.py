"""Workers end without a word while the others train: those go on within the same job, and the model is the same. Real
processes."""

from __future__ import annotations

import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from heterotrain import contract
from heterotrain import worker_metrics as table
from heterotrain.contract import TrainingConfig
from trainer.gang import Gang
from trainer.test_equality import difference
from trainer.test_lifecycle import assert_each_sample_once_per_epoch, samples_seen
from trainer.test_transitions import (
    ADAM,
    CONFIG,
    EPOCHS,
    LASTING,
    SCRIPT,
    assert_the_same,
    calm,
    seen_once,
)

__all__ = ["calm"]  # the fixture

pytestmark = pytest.mark.processes


def formed_at(gang: Gang) -> int:
    """The step at which the members formed their last attempt."""
    return max(int(found) for found in re.findall(r"formed again at step (\d+)", gang.logs()))


def assert_the_same_from_then_on(gang: Gang, calm: Gang, *numbers: int) -> None:
    """Once the last of them has ended, the job's losses are those of the undisturbed run, and so are the models at its
    end. Before that, a worker that is killed takes along what it has not written of its part of the losses."""
    since = formed_at(gang)
    losses, expected = gang.losses(), calm.losses()
    steps = [step for step in expected if step >= since]
    assert steps and max(abs(losses[step] - expected[step]) for step in steps) < 1e-10
    for number in numbers:
        assert difference(gang.saved(number), calm.saved()) < 1e-10


def adam(folder: Path, batches: tuple[int, ...], config: TrainingConfig = CONFIG) -> Gang:
    return Gang(folder, [SCRIPT, "--out", str(folder), *ADAM, LASTING], batches, config)


@pytest.mark.parametrize(
    "killed", [(1,), (0,), (0, 1), (1, 2)], ids=["a follower", "the leader", "the first two", "the last two"]
)
def test_those_that_are_left_go_on_and_share_the_batches(tmp_path: Path, calm: Gang, killed: tuple[int, ...]) -> None:
    left = [number for number in range(4) if number not in killed]
    with adam(tmp_path, (40, 24, 16, 16)) as gang:
        gang.await_step(3)
        for number in killed:
            gang.processes[number].send_signal(signal.SIGKILL)
        for number in left:
            gang.await_log(number, f"group of {len(left)} workers formed again")
        (tmp_path / "go").touch()
        gang.succeed(*left)
    assert_the_same_from_then_on(gang, calm, *left)
    assert_each_sample_once_per_epoch(seen_once(tmp_path), EPOCHS)
    assert max(gang.metric(number, table.STEPS_REPLAYED.name) or 0 for number in left) <= len(killed)


def test_one_after_the_other_ends_until_one_is_left(tmp_path: Path, calm: Gang) -> None:
    with adam(tmp_path, (40, 24, 16, 16)) as gang:
        gang.await_step(3)
        for number in (0, 1, 2):
            gang.processes[number].send_signal(signal.SIGKILL)
            gang.await_log(3, f"group of {3 - number} workers formed again")
        (tmp_path / "go").touch()
        gang.succeed(3)
    assert_the_same_from_then_on(gang, calm, 3)
    assert_each_sample_once_per_epoch(seen_once(tmp_path), EPOCHS)


def test_another_takes_the_place_of_one_that_ended(tmp_path: Path, calm: Gang) -> None:
    with adam(tmp_path, (40, 40, 16)) as gang:
        gang.await_step(3)
        gang.processes[0].send_signal(signal.SIGKILL)
        gang.await_log(2, "group of 2 workers formed again")
        gang.start(0)
        gang.change({1: 40, 2: 16, 3: 40})
        gang.await_generation(1, 2, 3)
        gang.processes[1].send_signal(signal.SIGKILL)
        gang.await_log(3, "group of 2 workers formed again")
        (tmp_path / "go").touch()
        gang.succeed(2, 3)
    assert_the_same_from_then_on(gang, calm, 2, 3)
    assert_each_sample_once_per_epoch(seen_once(tmp_path), EPOCHS)


@pytest.mark.parametrize("asked", [(1,), (0,), (0, 2)], ids=["a follower", "the leader", "two at once"])
def test_who_is_asked_to_stop_leaves_and_the_others_go_on(tmp_path: Path, calm: Gang, asked: tuple[int, ...]) -> None:
    left = [number for number in range(4) if number not in asked]
    with adam(tmp_path, (40, 24, 16, 16)) as gang:
        gang.await_step(3)
        for number in asked:
            gang.processes[number].send_signal(signal.SIGTERM)
        for number in asked:
            assert gang.wait_for(number) == contract.EXIT_PREEMPTED
        for number in left:
            gang.await_log(number, f"group of {len(left)} workers formed again")
        replayed = [gang.metric(number, table.STEPS_REPLAYED.name) for number in left]
        (tmp_path / "go").touch()
        gang.succeed(*left)
    assert replayed == [0] * len(left)
    assert all(gang.ending(number).asked_to_stop and not gang.ending(number).finished for number in asked)
    assert_the_same(gang, calm, *left)
    assert_each_sample_once_per_epoch(samples_seen(tmp_path), EPOCHS)


def test_all_are_asked_to_stop_one_after_the_other(tmp_path: Path, calm: Gang) -> None:
    config = replace(CONFIG, checkpoint_path=str(tmp_path / "checkpoints"))
    with adam(tmp_path, (40, 40, 16), config) as gang:
        gang.await_step(3)
        for number in (1, 0, 2):
            gang.processes[number].send_signal(signal.SIGTERM)
            gang.await_log(number, "asked to stop")
        assert gang.wait() == [contract.EXIT_PREEMPTED] * 3
    last = gang.ending(2).step
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [f"step-{last:010d}.pt"]


def test_those_whose_leader_dies_with_the_checkpoint_in_hand_begin_with_it_too(tmp_path: Path, calm: Gang) -> None:
    config = replace(CONFIG, checkpoint_path=str(tmp_path / "checkpoints"))
    with adam(tmp_path / "first", (40, 40, 16), config) as gang:
        gang.await_step(3)
        gang.stop()
        gang.wait()
    (found,) = (tmp_path / "checkpoints").iterdir()
    again = tmp_path / "again"
    dying = ["tests/trainer/scripts/break_transition.py", "w-0", "dies-handing-over", SCRIPT]
    with Gang(again, [*dying, "--out", str(again), *ADAM], (40, 40, 16), config, generation=2) as gang:
        assert gang.wait_for(0) == -signal.SIGKILL
        gang.succeed(1, 2)
    since, losses, expected = int(found.stem.removeprefix("step-")), gang.losses(), calm.losses()
    assert f"resumed at step {since}" in (again / "uid-2-1.log").read_text()
    assert losses.keys() == set(range(since, len(expected)))
    assert max(abs(losses[step] - expected[step]) for step in losses) < 1e-10
    assert all(difference(gang.saved(number), calm.saved()) < 1e-10 for number in (1, 2))


@pytest.mark.parametrize("stopped", [0, 1], ids=["the leader", "a follower"])
def test_one_that_is_stopped_is_left_behind_and_writes_nothing_once_it_goes_on(
    tmp_path: Path, calm: Gang, stopped: int
) -> None:
    left = [number for number in range(3) if number != stopped]
    config = replace(CONFIG, heartbeat_timeout_seconds=2.0)
    with adam(tmp_path, (40, 40, 16), config) as gang:
        gang.await_step(3)
        gang.processes[stopped].send_signal(signal.SIGSTOP)
        for number in left:
            gang.await_log(number, "group of 2 workers formed again")
        gang.processes[stopped].send_signal(signal.SIGCONT)
        assert gang.wait_for(stopped) == 1
        assert "has formed without this worker" in gang.ending(stopped).message
        assert gang.series(stopped)[-1].step <= formed_at(gang)
        (tmp_path / "go").touch()
        gang.succeed(*left)
    assert_the_same_from_then_on(gang, calm, *left)


def test_two_workers_of_which_the_first_is_stopped_wait_for_it(tmp_path: Path, calm: Gang) -> None:
    config = replace(CONFIG, heartbeat_timeout_seconds=2.0)
    with adam(tmp_path, (40, 56), config) as gang:
        gang.await_step(3)
        gang.processes[0].send_signal(signal.SIGSTOP)
        gang.await_log(1, "waiting for w-0")  # which may be a majority elsewhere
        gang.processes[0].send_signal(signal.SIGCONT)
        gang.await_log(1, "group of 2 workers formed again")
        (tmp_path / "go").touch()
        gang.succeed()
    assert_the_same_from_then_on(gang, calm, 0, 1)


def test_a_member_dies_while_the_next_generation_is_prepared(tmp_path: Path, calm: Gang) -> None:
    with adam(tmp_path, (40, 40, 16)) as gang:
        gang.await_step(3)
        gang.start(0)
        gang.await_phase(3, contract.PHASE_WAITING)
        gang.processes[1].send_signal(signal.SIGSTOP)  # so that groups cannot be made
        gang.change({0: 30, 1: 30, 2: 16, 3: 20})
        gang.await_phase(3, contract.PHASE_STARTING)
        gang.processes[1].send_signal(signal.SIGKILL)
        gang.await_log(0, "group of 2 workers formed again")
        gang.change({0: 50, 2: 16, 3: 30})
        gang.await_generation(0, 2, 3)
        (tmp_path / "go").touch()
        gang.succeed(0, 2, 3)
    assert_the_same_from_then_on(gang, calm, 0, 2, 3)


def test_the_others_go_on_without_one_that_ends_after_their_plan_was_made_again(tmp_path: Path, calm: Gang) -> None:
    """A plan that was lost may come back without saying what it continues. Its members know better."""
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path), *ADAM, LASTING], (40, 56), CONFIG) as gang:
        gang.await_step(2)
        gang.start(0)
        gang.await_phase(2, contract.PHASE_WAITING)
        gang.change({0: 40, 1: 40, 2: 16})
        gang.await_generation(0, 1, 2)
        gang.plan = replace(gang.plan, version=gang.plan.version + 1, continues=0)
        gang.write(gang.plan.to_json())
        gang.await_metric(0, table.PLAN_VERSION.name, gang.plan.version)
        gang.processes[2].send_signal(signal.SIGKILL)
        gang.await_log(0, "formed again")
        (tmp_path / "go").touch()
        gang.succeed(0, 1)
    assert_the_same_from_then_on(gang, calm, 0, 1)
