"""The plan with which a job begins is replaced, before its members have met, by one that continues it. Real
processes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from heterotrain import contract
from trainer.gang import Gang
from trainer.test_lifecycle import assert_each_sample_once_per_epoch, samples_seen
from trainer.test_transitions import ADAM, CONFIG, EPOCHS, SCRIPT, assert_the_same, calm

__all__ = ["calm"]  # the fixture

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("lost", [0, 1], ids=["the leader", "a follower"])
def test_a_member_dies_before_all_have_met_and_another_comes_in_its_place(
    tmp_path: Path, calm: Gang, lost: int
) -> None:
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path), *ADAM], (40, 56), CONFIG) as gang:
        gang.processes[lost].send_signal(signal.SIGKILL)
        gang.await_phase(1 - lost, contract.PHASE_STARTING)
        gang.start(0)
        gang.change({1 - lost: 40, 2: 56})
        gang.succeed(1 - lost, 2)
    (tmp_path / f"{gang.members[lost].uid}.jsonl").touch()  # it has not come to its first step
    assert_the_same(gang, calm, 1 - lost, 2)
    assert_each_sample_once_per_epoch(samples_seen(tmp_path), EPOCHS)


def test_nobody_has_seen_the_plan_with_which_the_job_was_to_begin(tmp_path: Path, calm: Gang) -> None:
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path), *ADAM], (40, 40), CONFIG) as gang:
        gang.start(0)
        gang.change({0: 40, 1: 40, 2: 16})
        gang.succeed()
    assert_the_same(gang, calm, 0, 1, 2)
    assert_each_sample_once_per_epoch(samples_seen(tmp_path), EPOCHS)
