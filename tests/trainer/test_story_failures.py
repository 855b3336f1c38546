"""Workers end without a word, are stopped or cut off while the others train: those go on within the same job as long as
they can know that nobody else does, and the model is the same. Real processes; `heterotrain chaos` cuts the network in
the same way."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from heterotrain import contract
from heterotrain import worker_metrics as table
from trainer.gang import Gang
from trainer.story import (
    IMPATIENT,
    assert_replayed,
    assert_went_on_without,
    cut_off,
    end_as_undisturbed,
    formed,
    formed_at,
    send,
    stop_for_long,
    story,
)

pytestmark = pytest.mark.processes

Silence = Callable[[Gang, int], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def stopped(gang: Gang, number: int) -> Iterator[None]:
    """One worker stands still: its connections stay open, and nobody answers at them."""
    send(gang, signal.SIGSTOP, number)
    yield
    send(gang, signal.SIGCONT, number)


def test_those_that_are_left_go_on_whoever_is_killed_until_one_is_left(tmp_path: Path) -> None:
    with story(tmp_path, (30, 24, 16, 14, 12), IMPATIENT) as gang:
        gang.await_step(3)
        # A follower, and then the leader.
        send(gang, signal.SIGKILL, 1)
        formed(gang, 0, 2, 3, 4)
        send(gang, signal.SIGKILL, 0)
        formed(gang, 2, 3, 4)
        # Another takes the place of those that ended.
        gang.start(0)
        gang.change({2: 40, 3: 20, 4: 20, 5: 16})
        gang.await_generation(2, 3, 4, 5)
        # Two at once, of which one is the leader, and the last one's last peer.
        send(gang, signal.SIGKILL, 2, 4)
        formed(gang, 3, 5)
        send(gang, signal.SIGKILL, 3)
        formed(gang, 5)
        assert_replayed(gang, 5, 5)
        # The last one trains on though it is stopped for longer than the heartbeat timeout.
        stop_for_long(gang, 5)
        end_as_undisturbed(gang, 5)


@pytest.mark.long
@pytest.mark.parametrize("killed", [(0, 1), (1, 2)], ids=str)
def test_those_that_are_left_share_the_batches(tmp_path: Path, killed: tuple[int, ...]) -> None:
    left = [number for number in range(4) if number not in killed]
    with story(tmp_path, (40, 24, 16, 16)) as gang:
        gang.await_step(3)
        send(gang, signal.SIGKILL, *killed)
        formed(gang, *left)
        assert_replayed(gang, len(killed), *left)
        end_as_undisturbed(gang, *left)


@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.long)], ids=["the leader", "a follower"])
def test_a_member_dies_and_plans_change_before_all_have_met(tmp_path: Path, lost: int) -> None:
    with story(tmp_path, (40, 56)) as gang:
        send(gang, signal.SIGKILL, lost)
        gang.await_phase(1 - lost, contract.PHASE_STARTING)
        gang.start(0)
        gang.change({1 - lost: 40, 2: 56})
        # Some may never see the plan with which the job was to begin.
        gang.start(0)
        gang.change({1 - lost: 40, 2: 40, 3: 16})
        gang.await_generation(1 - lost, 2, 3)
        end_as_undisturbed(gang, 1 - lost, 2, 3)


def test_a_member_dies_while_the_next_generation_is_prepared_and_after_its_plan_was_lost(tmp_path: Path) -> None:
    with story(tmp_path, (40, 40, 16)) as gang:
        gang.await_step(3)
        gang.start(0)
        gang.await_phase(3, contract.PHASE_WAITING)
        send(gang, signal.SIGSTOP, 1)  # so that groups cannot be made
        gang.change({0: 30, 1: 30, 2: 16, 3: 20})
        gang.await_phase(3, contract.PHASE_STARTING)
        send(gang, signal.SIGKILL, 1)
        formed(gang, 0, 2)
        gang.change({0: 50, 2: 16, 3: 30})
        gang.await_generation(0, 2, 3)
        # A plan that was lost may come back without saying what it continues. Its members know better.
        gang.plan = replace(gang.plan, version=gang.plan.version + 1, continues=0)
        gang.write(gang.plan.to_json())
        gang.await_metric(0, table.PLAN_VERSION.name, gang.plan.version)
        send(gang, signal.SIGKILL, 3)
        formed(gang, 0, 2, times=2)
        end_as_undisturbed(gang, 0, 2)


def test_the_majority_goes_on_without_whoever_is_stopped_or_cut_off_which_writes_nothing_more(tmp_path: Path) -> None:
    with story(tmp_path, (32, 24, 16, 12, 12), IMPATIENT) as gang:
        gang.await_step(3)
        # The leader is stopped for as long as the others need to form their group.
        with stopped(gang, 0):
            formed(gang, 1, 2, 3, 4)
        assert_went_on_without(gang, 0)
        # The next leader is cut off: it waits, for it knows nothing of the others and may be needed.
        with cut_off(gang, 1):
            formed(gang, 2, 3, 4)
            gang.await_log(1, "waiting for")
            gang.await_metric(2, table.STEP.name, formed_at(gang) + 5)
            assert gang.processes[1].poll() is None, "who is cut off waits"
        assert_went_on_without(gang, 1)
        end_as_undisturbed(gang, 2, 3, 4)


@pytest.mark.long
@pytest.mark.parametrize(
    ("apart", "silence"), [(0, cut_off), (2, stopped)], ids=["the leader is cut off", "a follower is stopped"]
)
def test_two_of_three_go_on_without_the_third(tmp_path: Path, apart: int, silence: Silence) -> None:
    left = [number for number in range(3) if number != apart]
    with story(tmp_path, (40, 40, 16), IMPATIENT) as gang:
        gang.await_step(3)
        with silence(gang, apart):
            formed(gang, *left)
        assert_went_on_without(gang, apart)
        end_as_undisturbed(gang, *left)


def test_of_two_workers_only_the_first_goes_on_by_itself(tmp_path: Path) -> None:
    with story(tmp_path, (56, 40), IMPATIENT) as gang:
        gang.await_step(3)
        # The first goes on without the second.
        with cut_off(gang, 1):
            formed(gang, 0)
            gang.await_log(1, "waiting for w-0")
        assert_went_on_without(gang, 1)
        # The second waits for the first, which may be a majority elsewhere, and goes on with it.
        gang.start(0)
        gang.change({0: 40, 2: 56})
        gang.await_generation(0, 2)
        with stopped(gang, 0):
            gang.await_log(2, "waiting for w-0")
        formed(gang, 0, 2)
        # The second goes on once the operator says that the first, which was silent for long, has ended; not before.
        gang.start(0)
        gang.await_phase(3, contract.PHASE_WAITING)
        waited = gang.said(2, "waiting for w-0")
        with stopped(gang, 0):
            gang.await_log(2, "waiting for w-0", times=waited + 1)
            send(gang, signal.SIGKILL, 0)
            gang.wait_for(0)
            time.sleep(IMPATIENT.heartbeat_timeout_seconds)
            assert not gang.said(2, "group of 1 workers formed again"), "the first may have gone on before it ended"
            gang.change({2: 40, 3: 56}, evicted=(0,))
            formed(gang, 2)
        gang.await_generation(2, 3)
        # The first, stopped while the second ended, goes on alone once a plan names it, or has by then.
        send(gang, signal.SIGSTOP, 2)
        gang.await_log(3, "waiting for w-2")
        send(gang, signal.SIGKILL, 3)
        send(gang, signal.SIGCONT, 2)
        gang.change({2: 96})
        formed(gang, 2, times=2)
        gang.await_generation(2)
        end_as_undisturbed(gang, 2)


@pytest.mark.long
def test_of_two_workers_the_second_goes_on_by_the_operators_word_also_where_the_first_was_cut_off(
    tmp_path: Path,
) -> None:
    with story(tmp_path, (56, 40), IMPATIENT) as gang:
        gang.await_step(3)
        with cut_off(gang, 0):
            gang.await_log(1, "waiting for w-0")
            send(gang, signal.SIGKILL, 0)
            gang.wait_for(0)
            time.sleep(IMPATIENT.heartbeat_timeout_seconds)
            assert not gang.said(1, "formed again"), "the first may have gone on before it ended"
            gang.change({1: 96}, evicted=(0,))
            formed(gang, 1)
        end_as_undisturbed(gang, 1)


def test_whoever_was_stopped_when_nobody_could_go_on_without_it_trains_on(tmp_path: Path) -> None:
    with story(tmp_path, (96,), IMPATIENT) as gang:
        gang.await_step(3)
        # The only one.
        stop_for_long(gang, 0)
        gang.start(0)
        gang.start(0)
        gang.change({0: 40, 1: 40, 2: 16})
        gang.await_generation(0, 1, 2)
        assert not gang.has_said("formed again")
        # All together.
        stop_for_long(gang, 2, 1, 0)
        end_as_undisturbed(gang, 0, 1, 2)


@pytest.mark.long
def test_the_only_worker_that_was_stopped_ends_if_the_job_has_begun_again_elsewhere(tmp_path: Path) -> None:
    with story(tmp_path, (96,), IMPATIENT) as gang:
        gang.await_step(3)
        with stopped(gang, 0):
            gang.start(0)
            gang.change({1: 96}, continues=0)
            gang.await_log(1, "following plan")
            time.sleep(2 * IMPATIENT.heartbeat_timeout_seconds)
        assert gang.wait_for(0) == 1
        assert "begins from a checkpoint" in gang.ending(0).message
        (tmp_path / "go").touch()
        gang.succeed(1)
