"""One worker of an elastic job is cut off from the others: the majority goes on, the minority waits, and ends once it
learns that. Real processes; the network is cut as `heterotrain chaos` does it."""

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
from heterotrain_operator.clusters.local.partition import Partition
from trainer.gang import Gang, with_children
from trainer.test_lifecycle import assert_each_sample_once_per_epoch
from trainer.test_survivors import adam, assert_the_same_from_then_on, formed_at
from trainer.test_transitions import CONFIG, EPOCHS, calm, seen_once

__all__ = ["calm"]  # the fixture

pytestmark = pytest.mark.processes

SHORT = replace(CONFIG, heartbeat_timeout_seconds=2.0)


@contextlib.contextmanager
def cut_off(gang: Gang, number: int) -> Iterator[None]:
    """Keep one worker apart from all others."""
    pids = [process.pid for process in gang.processes]
    names = [member.name for member in gang.members]
    partition = Partition(lambda: {name: with_children(pid) for name, pid in zip(names, pids, strict=True)})
    partition.cut(names[number])
    try:
        yield
    finally:
        partition.heal(names[number])


@pytest.mark.parametrize("apart", [0, 2], ids=["the leader", "a follower"])
def test_the_majority_goes_on_without_whoever_is_cut_off_which_waits_and_then_ends(
    tmp_path: Path, calm: Gang, apart: int
) -> None:
    left = [number for number in range(3) if number != apart]
    with adam(tmp_path, (40, 40, 16), SHORT) as gang:
        gang.await_step(3)
        with cut_off(gang, apart):
            for number in left:
                gang.await_log(number, "group of 2 workers formed again")
            gang.await_log(apart, "waiting for")
            gang.await_metric(left[0], table.STEP.name, formed_at(gang) + 5)
            assert gang.processes[apart].poll() is None, "it knows nothing of the others, and may be needed"
        assert gang.wait_for(apart) == 1
        assert "has formed without this worker" in gang.ending(apart).message
        assert gang.series(apart)[-1].step <= formed_at(gang), "at most the step that was under way is done twice"
        (tmp_path / "go").touch()
        gang.succeed(*left)
    assert_the_same_from_then_on(gang, calm, *left)


def test_of_two_workers_the_first_goes_on_without_the_other(tmp_path: Path, calm: Gang) -> None:
    with adam(tmp_path, (56, 40), SHORT) as gang:
        gang.await_step(3)
        with cut_off(gang, 1):
            gang.await_log(0, "group of 1 workers formed again")
            gang.await_log(1, "waiting for w-0")
        assert gang.wait_for(1) == 1
        (tmp_path / "go").touch()
        gang.succeed(0)
    assert_the_same_from_then_on(gang, calm, 0)
    assert_each_sample_once_per_epoch(seen_once(tmp_path), EPOCHS)


@contextlib.contextmanager
def stopped(gang: Gang, number: int) -> Iterator[None]:
    """One worker stands still: its connections stay open, and nobody answers at them."""
    gang.processes[number].send_signal(signal.SIGSTOP)
    yield


@pytest.mark.parametrize("silence", [stopped, cut_off], ids=["stopped", "cut off"])
def test_of_two_workers_the_second_goes_on_by_the_operators_word_that_the_first_has_ended(
    tmp_path: Path, calm: Gang, silence: Callable[[Gang, int], contextlib.AbstractContextManager[None]]
) -> None:
    """The first ends after it was silent for long, so that its end proves nothing to the second."""
    with adam(tmp_path, (56, 40), SHORT) as gang:
        gang.await_step(3)
        gang.start(0)
        gang.await_phase(2, contract.PHASE_WAITING)
        with silence(gang, 0):
            gang.await_log(1, "waiting for w-0")
            gang.processes[0].send_signal(signal.SIGKILL)
            gang.wait_for(0)
            time.sleep(SHORT.heartbeat_timeout_seconds)
            log = (tmp_path / f"{gang.members[1].uid}.log").read_text()
            assert "formed again" not in log, "the first may have gone on before it ended"
            gang.change({1: 40, 2: 56}, evicted=(0,))
            gang.await_log(1, "group of 1 workers formed again")
        gang.await_generation(1, 2)
        (tmp_path / "go").touch()
        gang.succeed(1, 2)
    assert_the_same_from_then_on(gang, calm, 1, 2)
    assert_each_sample_once_per_epoch(seen_once(tmp_path), EPOCHS)
    assert (gang.metric(1, table.STEPS_REPLAYED.name) or 0) <= 1
