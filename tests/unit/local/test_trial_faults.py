"""What users ask of a running trial: which worker they mean, what they are told, and what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from heterotrain_operator.api import to_core
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.core.model import Seen
from heterotrain_operator.experiments.figures.history import FaultRecord
from heterotrain_operator.experiments.trials.faults import MOST_ADDED, TrialFaults
from unit.local.small_jobs import SLEEP, eventually, make_job

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("nothing_stays_behind")]

NAME = "job-cpu-0"


@pytest.fixture
def faults(start: Callable[..., LocalCluster]) -> Iterator[TrialFaults]:
    """Of a job that began with two workers, of which one runs."""
    cluster = start(job := make_job(SLEEP))
    found = TrialFaults(to_core(job), "optimal-1", (NAME, "job-cpu-1"), cluster, now=lambda: 5.0)
    yield found
    found.close()


def test_fault_is_answered_kept_and_reported_once(faults: TrialFaults) -> None:
    answer = faults.answer({"do": "stop", "worker": "cpu-0", "seconds": 60})
    assert (answer["worker"], answer["message"]) == (NAME, "job-cpu-0 is stopped for 60 s")
    assert faults.records == [FaultRecord(5.0, 0, NAME, "stop", 60.0)]
    assert [event.message for event in faults.look(Seen())] == ["job-cpu-0 is stopped for 60 s"]
    assert faults.look(Seen()) == ()
    assert faults.answer({"do": "list"})["workers"] == [
        {"worker": NAME, "running": True, "faults": ["stop"]},
        {"worker": "job-cpu-1", "running": False, "faults": []},
    ]


def test_end_of_a_fault_is_kept_too(faults: TrialFaults) -> None:
    faults.answer({"do": "slow", "worker": NAME})
    faults.answer({"do": "starve", "worker": NAME, "seconds": 0.001})

    def ended() -> bool:
        faults.tend()
        return len(faults.records) == 3

    eventually(ended)
    both = faults.answer({"do": "restore", "worker": NAME})
    assert both["message"] == "job-cpu-0 has its limits to itself again"
    assert [record.act for record in faults.records] == ["slow", "starve", "restore", "restore"]


@pytest.mark.parametrize(
    ("question", "kind", "says"),
    [
        ({"do": "stop", "worker": "cpu-7"}, "input", "job job has no worker 'cpu-7'; did you mean job-cpu-1?"),
        ({"do": "stop", "worker": "xyz"}, "input", "job job has no worker 'xyz'; it has job-cpu-0, job-cpu-1"),
        ({"do": "stop", "worker": "job-cpu-1"}, "failed", "job-cpu-1 is not running"),
        ({"do": "heal", "worker": NAME}, "failed", "job-cpu-0 has no fault that heal takes back"),
        ({"do": "release", "worker": NAME}, "failed", "job-cpu has no worker that release takes back"),
        ({"do": "join", "worker": "xyz"}, "input", "job job has no worker 'xyz'; it has job-cpu-0, job-cpu-1"),
        ({"do": "heal"}, "input", "worker must be a worker's name, found None"),
        ({}, "input", "there is no fault None; there are kill"),
    ],
)
def test_what_cannot_be_done_is_said_and_not_kept(
    question: dict[str, str], kind: str, says: str, faults: TrialFaults
) -> None:
    answer = faults.answer(question)
    assert answer["kind"] == kind
    assert answer["error"].startswith(says)
    assert faults.records == []


@pytest.mark.parametrize("name", ["cpu", "job-cpu", "cpu-0", "job-cpu-1", "cpu-7"], ids=str)
def test_group_of_whichever_worker_wants_one_more_until_that_is_taken_back(name: str, faults: TrialFaults) -> None:
    answer = faults.answer({"do": "join", "worker": name})
    assert (answer["worker"], answer["message"]) == ("job-cpu", "job-cpu gets one worker more")
    assert [group.replicas for group in faults.wanted().groups] == [2]
    assert faults.answer({"do": "list"})["added"] == {"cpu": 1}
    assert faults.answer({"do": "release", "worker": name})["message"] == "job-cpu wants one worker less"
    assert [group.replicas for group in faults.wanted().groups] == [1]
    assert faults.records == [FaultRecord(5.0, 0, "job-cpu", act) for act in ("join", "release")]


def test_worker_that_joins_for_a_time_is_not_wanted_after_it(faults: TrialFaults) -> None:
    faults.answer({"do": "join", "worker": "cpu"})
    faults.answer({"do": "join", "worker": "cpu", "seconds": 0.001})

    def due() -> bool:
        faults.tend()
        return len(faults.records) == 3

    eventually(due)
    assert [group.replicas for group in faults.wanted().groups] == [2]
    assert [record.act for record in faults.records] == ["join", "join", "release"]


def test_no_job_grows_without_a_bound(faults: TrialFaults) -> None:
    answers = [faults.answer({"do": "join", "worker": "cpu"}) for _ in range(MOST_ADDED + 1)]
    assert [answer for answer in answers if "error" in answer] == answers[-1:]
    assert answers[-1]["kind"] == "failed"
