"""Random schedules of faults."""

from itertools import islice, pairwise

from heterotrain_operator.cli.local.chaos import PlannedFault, random_faults
from heterotrain_operator.experiments.trials.faults import FAULTS

WORKERS = ("job-a-0", "job-a-1", "job-b-0")


def drawn(seed: int, count: int = 200) -> list[PlannedFault]:
    return list(islice(random_faults(seed, WORKERS, FAULTS, 10.0), count))


def test_same_seed_means_the_same_faults() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)
    # Fixed for all versions of Python, so that what failed once can be run again.
    assert [(round(each.at, 2), each.fault, each.worker) for each in drawn(7, 3)] == [
        (8.24, "stop", "job-a-1"),
        (13.96, "starve", "job-a-1"),
        (19.54, "starve", "job-a-0"),
    ]


def test_every_worker_gets_every_fault_and_gaps_are_near_what_was_asked_for() -> None:
    faults = drawn(1)
    assert {(each.fault, each.worker) for each in faults} == {(fault, worker) for fault in FAULTS for worker in WORKERS}
    gaps = [other.at - one.at for one, other in pairwise(faults)]
    assert min(gaps) >= 5.0
    assert max(gaps) <= 15.0
    assert 9.0 < sum(gaps) / len(gaps) < 11.0
