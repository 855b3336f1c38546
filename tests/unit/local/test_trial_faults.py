"""What users ask of a running trial: which worker they mean, what they are told, and what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from heterotrain_operator.api import to_core
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.core.model import Seen
from heterotrain_operator.experiments.figures.history import FaultRecord
from heterotrain_operator.experiments.trials.faults import MOST_ADDED, TrialFaults
from unit.cli.commands import eventually
from unit.local.small_jobs import SLEEP, make_job

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("nothing_stays_behind")]

NAME = "job-cpu-0"
REFUSED = [
    ({"do": "stop", "worker": "cpu-7"}, "input", "job job has no worker 'cpu-7'; did you mean job-cpu-1?"),
    ({"do": "stop", "worker": "xyz"}, "input", "job job has no worker 'xyz'; it has job-cpu-0, job-cpu-1"),
    ({"do": "stop", "worker": "job-cpu-1"}, "failed", "job-cpu-1 is not running"),
    ({"do": "heal", "worker": NAME}, "failed", "job-cpu-0 has no fault that heal takes back"),
    ({"do": "release", "worker": NAME}, "failed", "job-cpu has no worker that release takes back"),
    ({"do": "join", "worker": "xyz"}, "input", "job job has no worker 'xyz'; it has job-cpu-0, job-cpu-1"),
    ({"do": "heal"}, "input", "worker must be a worker's name, found None"),
    ({}, "input", "there is no fault None; there are kill"),
]
"""What cannot be done, and how that is said."""


@pytest.fixture
def faults(start: Callable[..., LocalCluster]) -> Iterator[TrialFaults]:
    """Of a job that began with two workers, of which one runs."""
    cluster = start(job := make_job(SLEEP))
    found = TrialFaults(to_core(job), "optimal-1", (NAME, "job-cpu-1"), cluster, now=lambda: 5.0)
    yield found
    found.close()


def acts(faults: TrialFaults) -> list[str]:
    faults.tend()
    return [record.act for record in faults.records]


def test_fault_and_its_end_are_answered_kept_and_reported_once(faults: TrialFaults) -> None:
    for question, kind, says in REFUSED:
        answer = faults.answer(question)
        assert (answer["kind"], answer["error"].startswith(says)) == (kind, True), answer
    assert faults.records == [], "what cannot be done is not kept"

    answer = faults.answer({"do": "stop", "worker": "cpu-0", "seconds": 60})
    assert (answer["worker"], answer["message"]) == (NAME, "job-cpu-0 is stopped for 60 s")
    assert faults.records == [FaultRecord(5.0, 0, NAME, "stop", 60.0)]
    assert [event.message for event in faults.look(Seen())] == ["job-cpu-0 is stopped for 60 s"]
    assert faults.look(Seen()) == ()
    assert faults.answer({"do": "list"})["workers"] == [
        {"worker": NAME, "running": True, "faults": ["stop"]},
        {"worker": "job-cpu-1", "running": False, "faults": []},
    ]
    faults.answer({"do": "slow", "worker": NAME})
    faults.answer({"do": "starve", "worker": NAME, "seconds": 0.001})
    eventually(lambda: acts(faults) == ["stop", "slow", "starve", "restore"])
    both = faults.answer({"do": "restore", "worker": NAME})
    assert both["message"] == "job-cpu-0 has its limits to itself again"
    assert acts(faults)[4:] == ["restore"]


def test_group_of_whichever_worker_wants_more_for_a_time_and_within_a_bound(faults: TrialFaults) -> None:
    def wanted() -> list[int]:
        return [group.replicas for group in faults.wanted().groups]

    for name in ("cpu", "job-cpu", "cpu-0", "job-cpu-1", "cpu-7"):
        answer = faults.answer({"do": "join", "worker": name})
        assert (answer["worker"], answer["message"]) == ("job-cpu", "job-cpu gets one worker more")
        assert wanted() == [2]
        assert faults.answer({"do": "list"})["added"] == {"cpu": 1}
        assert faults.answer({"do": "release", "worker": name})["message"] == "job-cpu wants one worker less"
        assert wanted() == [1]
    assert faults.records == [FaultRecord(5.0, 0, "job-cpu", act) for act in ("join", "release")] * 5

    faults.answer({"do": "join", "worker": "cpu"})
    faults.answer({"do": "join", "worker": "cpu", "seconds": 0.001})
    eventually(lambda: acts(faults)[10:] == ["join", "join", "release"])
    assert wanted() == [2]

    answers = [faults.answer({"do": "join", "worker": "cpu"}) for _ in range(MOST_ADDED)]
    assert [answer for answer in answers if "error" in answer] == answers[-1:]
    assert answers[-1]["kind"] == "failed"
