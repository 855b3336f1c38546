"""Random schedules of faults for elastic jobs: what a seed draws, and that a job always keeps somebody."""

from __future__ import annotations

from itertools import chain

import pytest
from chaos_schedule import LASTING, MOST_LOST, VERBS, PlannedFault, schedule

HEARTBEAT = 2.0
MANY = [schedule(seed, 3, 6, HEARTBEAT) for seed in range(300)]


def takes_a_member(fault: PlannedFault) -> bool:
    lasts = fault.lasts or 0.0
    takes = fault.verb in ("kill", "leave") or (fault.verb in ("stop", "partition") and lasts > HEARTBEAT / 2)
    return takes and fault.role != "newcomer"


def test_same_seed_means_the_same_faults() -> None:
    assert schedule(5, 3, 4, HEARTBEAT) == schedule(5, 3, 4, HEARTBEAT)
    assert schedule(5, 3, 4, HEARTBEAT) != schedule(6, 3, 4, HEARTBEAT)
    # Fixed for all versions of Python, so that what failed once can be run again.
    assert [str(fault) for fault in schedule(2, 3, 2, HEARTBEAT)] == [
        "kill follower, 0.00 s after calm",
        "stop follower for 4.2 s, 0.05 s after newcomer",
    ]


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_somebody_is_left_until_all_are_there_again(workers: int) -> None:
    for seed in range(300):
        lost = 0
        for fault in schedule(seed, workers, 6, HEARTBEAT):
            lost = (0 if fault.moment == "calm" else lost) + takes_a_member(fault)
            assert lost <= min(MOST_LOST, workers - 1)


def test_every_fault_meets_every_moment_and_role() -> None:
    faults = list(chain.from_iterable(MANY))
    assert {fault.verb for fault in faults} == set(VERBS)
    moments = {(fault.verb, fault.moment) for fault in faults}
    assert moments == {(verb, moment) for verb in VERBS for moment in ("calm", "fault", "newcomer", "plan")}
    roles = {(fault.verb, fault.role) for fault in faults}
    assert roles == {(verb, role) for verb in VERBS for role in ("leader", "follower", "newcomer")}
    assert all((fault.lasts is not None) == (fault.verb in LASTING) for fault in faults)


def test_faults_come_together_and_silences_end_before_and_after_they_tell() -> None:
    together = [fault for faults in MANY for fault in faults if fault.moment == "fault" and fault.after == 0.0]
    assert len(together) > 30
    silences = [fault.lasts for fault in chain.from_iterable(MANY) if fault.verb in ("stop", "partition")]
    assert min(silences) < HEARTBEAT < max(silences)


def test_a_schedule_begins_when_all_train() -> None:
    assert {faults[0].moment for faults in MANY} == {"calm"}
