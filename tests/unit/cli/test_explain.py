"""`heterotrain explain`: from what the operator leaves in a cluster to why the batches are as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heterotrain_operator.api import parse_manifest
from heterotrain_operator.clusters.kube.objects.names import MEMORY_KEY
from heterotrain_operator.core.model import Event, ScalingSeen, SizePoint
from heterotrain_operator.core.prediction.memory_model import MemoryUse
from heterotrain_operator.core.remembered.cost import Cost
from heterotrain_operator.core.remembered.members import Passage, Passages
from heterotrain_operator.core.remembered_worker import UNREADABLE, UNUSABLE
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.core.stragglers.watch import summary
from kube_server.api_server import ApiServer
from unit.cli.cluster_jobs import Trained, job_document, recorded, trained, with_status
from unit.cli.conftest import Run

Explain = Callable[..., dict[str, list[str]]]


@pytest.fixture
def explain(api: ApiServer, config: Path, heterotrain: Run) -> Explain:
    """Explain the job `digits`, laid into the cluster if it is given; gives the lines under each heading, those before
    the first under the empty one.
    """

    def explain(job: Trained | None = None) -> dict[str, list[str]]:
        if job is not None:
            job.put(api)
        said = heterotrain("explain", "digits", "--kubeconfig", config)
        assert said.code == 0
        return sections(said.out)

    return explain


def sections(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"": []}
    heading = ""
    lines = text.splitlines()
    for before, line in zip(["-", *lines], lines, strict=False):
        if before == "":
            heading = line
            found[heading] = []
        elif line:
            found[heading].append(line.strip())
    return found


def remembering(change: Callable[[Remembered], dict[str, Any]]) -> Trained:
    """A job of whose memory some values are replaced."""
    job = trained()
    memory = Remembered.from_json(job.plan_map[MEMORY_KEY])
    job.plan_map[MEMORY_KEY] = replace(memory, **change(memory)).to_json()
    return job


def slowed(*names: str) -> Trained:
    """A job in which these workers have become twice as slow by fault some intervals ago."""
    job = trained(12)
    for name in names:
        job.world.workers[name].scale *= 2
    job.world.run(10)
    job.document["status"] = with_status(parse_manifest(job.document), job.world, job.world.decisions[-1])
    return job


def test_plan_and_workers_are_explained_by_what_the_operator_knows(explain: Explain) -> None:
    said = explain(trained())
    assert said[""] == [
        "digits in team: Running, policy Optimal, plan 2 of generation 1, 192 samples per step, "
        "applied at the next step"
    ]
    [why] = said["Why the batches are as they are"]
    assert why.startswith("plan 2: digits-g2-0 takes 264 ms at 64 samples, the median is 132 ms; moving 46 samples")
    assert "(BatchRebalanced, " in why
    [latest] = said["The operator's latest decision"]
    assert latest.startswith("Optimal keeps the batches: ")
    assert [line.split()[2] for line in said["History"][1:]] == ["PlanPublished", "BatchRebalanced"]
    heading, fast, _, slow, note = said["What is known of the workers"]
    cells = [cell.strip() for cell in heading.split("   ") if cell.strip()]
    assert cells == ["WORKER", "BATCH", "BOUNDS", "CPU", "OWN TIME", "SAMPLES/S", "FITTED OWN TIME", "BEST"]
    assert fast.split()[:10] == ["digits-g0-0", "110", "1-192", "1", "110", "ms", "±", "8%", "1,000", "4.1"]
    assert slow.startswith("digits-g2-0")
    assert note.startswith("Own times are those of the status")
    [reached] = said["How much of the possible is reached"]
    assert reached.startswith("About 9")


USE = MemoryUse(limit_mib=1024, low_batch=64, low_mib=500, high_batch=110, high_mib=600)
PASSAGES = Passages(
    departures=(Passage("digits-g1-7", 20, 5.0, "it was killed by SIGKILL", "digits-g1-8"),),
    arrivals=(
        Passage("digits-g1-7", 10, 2.0, "more workers are wanted"),
        Passage("digits-g1-8", 22, 9.0, "in place of digits-g1-7"),
    ),
)


@pytest.mark.parametrize(
    ("change", "heading", "lines"),
    [
        (
            lambda memory: {"workers": (memory.workers[0]._replace(memory_use=USE), *memory.workers[1:])},
            "What their memory holds",
            [
                "digits-g0-0: at most 211 samples, which are sure to fit into its 1024 MiB by peaks of 500 MiB at 64 "
                "and 600 MiB at 110 samples"
            ],
        ),
        (
            lambda memory: {"workers": (*memory.workers[:2], memory.workers[2]._replace(least_batch=8))},
            "What their models need",
            ["digits-g2-0: at least 8 samples, since it reports that its model trains badly with fewer than 8"],
        ),
        (
            lambda _: {"passages": PASSAGES},
            "Who joined and left while others trained",
            [
                "step 10: digits-g1-7 joined: more workers are wanted",
                "step 20: digits-g1-7 left: it was killed by SIGKILL (digits-g1-8 trains in its place)",
                "step 22: digits-g1-8 joined: in place of digits-g1-7",
            ],
        ),
    ],
    ids=["memory", "least batch", "passages"],
)
def test_what_the_operator_remembers_is_said(
    change: Callable[[Remembered], dict[str, Any]], heading: str, lines: list[str], explain: Explain
) -> None:
    assert explain(remembering(change))[heading] == lines


def test_what_the_job_has_cost_is_said(explain: Explain) -> None:
    said = explain(remembering(lambda _: {"cost": Cost(spent=(("g0", 0.25), ("g1", 1.0)))}))
    [found] = said["What it has cost"]
    assert found.startswith("cost 1.25 (g0 0.25, g1 1.00), without groups that have no price: each pod")


def test_who_is_left_out_of_decisions_is_named_with_the_reason(explain: Explain) -> None:
    marks = (UNUSABLE, UNREADABLE, 1)
    job = remembering(lambda memory: {"workers": tuple(map(_left_out, memory.workers, marks))})
    unusable, unreadable = explain(job)["Who takes no part in decisions"]
    assert unusable.startswith("digits-g0-0 keeps its")
    assert "its counters cannot be used" in unusable
    assert unreadable.startswith("digits-g1-0 keeps its")
    assert "its metrics cannot be read" in unreadable


def _left_out(worker: Any, mark: int) -> Any:
    return worker._replace(left_out=mark)


def test_what_slows_a_worker_is_said_with_its_figures(explain: Explain) -> None:
    job = trained()
    first, second, third = job.document["status"]["workers"]
    first |= {"slowedBy": "Neighbour", "cpuWaitPercent": 55, "cpuThrottledPercent": 0}
    second |= {"slowedBy": "CPULimit", "cpuThrottledPercent": 40}
    third |= {"slowedBy": "Gravity"}  # a newer operator's
    assert explain(job)["What slows workers"] == [
        "digits-g0-0: it waits 55 % of plan 2's time for a CPU that others use",
        "digits-g1-0: its CPU limit, which is the same, holds it back 40 % of plan 2's time: a fault, or a neighbour "
        "under the same limit",
        "digits-g2-0: Gravity",
    ]


def test_stragglers_are_explained_by_the_evidence_of_the_slowest_and_what_would_help(explain: Explain) -> None:
    job = slowed("digits-g1-0")
    [said] = explain(job)["Stragglers"]
    slow, cause, remedy, hindrance = said.split("; ", 3)
    assert slow == (
        "digits-g1-0 takes 2 times as long as when it was healthy, at its present batch and CPU limit, since step 130"
    )
    assert cause == "what slows it is not known", "this world exports no use of resources"
    assert remedy.startswith("a replacement would help, of which 3 are left: a step takes ")
    assert "cannot change while it trains" in hindrance, "the default action needs that they can"
    verdict = job.world.decisions[-1].stragglers[0]
    [condition] = [each for each in job.document["status"]["conditions"] if each["type"] == "StragglersDetected"]
    condition["message"] = summary([replace(verdict, worker="digits-g2-0", slowdown=1.5), verdict])
    [said] = explain(job)["Stragglers"]
    assert said.startswith("digits-g2-0, digits-g1-0; the slowest: digits-g1-0 takes 2 times as long ")


def test_nothing_is_said_of_stragglers_where_there_are_none(explain: Explain) -> None:
    assert "Stragglers" not in explain(slowed())


def test_sizes_that_were_measured_are_listed_with_the_last_decision(explain: Explain) -> None:
    job = trained()
    points = (SizePoint((("g0", 1), ("g1", 2)), 412.04, 0.25),)
    decision = replace(job.world.decisions[-1], scaling=ScalingSeen(points, True, "g1 1 -> 2: it pays", "a quota"))
    job.document["status"] = with_status(parse_manifest(job.document), job.world, decision)
    assert explain(job)["How many workers pay"] == [
        "g0 1, g1 1, g2 1: the search is over",
        "g0 1, g1 2: 412 samples/s",
        "g1 1 -> 2: it pays",
        "blocked: a quota",
    ]


def test_replacement_is_shown_with_how_far_it_is_and_told_as_a_story(explain: Explain) -> None:
    job = slowed("digits-g1-0")
    first, second, third = job.document["status"]["workers"]
    second["replacedBy"] = "digits-g1-1"
    first["replacedBy"] = "digits-g0-1"
    third |= {"name": "digits-g1-1", "replaces": "digits-g1-0", "phase": "preparing"}
    told = [
        ("StragglerDetected", "digits-g1-0 takes 2 times as long as when it was healthy"),
        ("ReplacingStraggler", "creating digits-g1-1 to replace digits-g1-0: it is slow"),
        ("SuccessfulCreatePod", "creating digits-g1-1"),
        ("WorkerLeft", "digits-g1-0 left at step 190: digits-g1-1 takes its place"),
        ("WorkerJoined", "digits-g1-10 trains since step 190: more workers are wanted"),
        ("WorkerReplaced", "digits-g1-1 trains in place of digits-g1-0 since step 192"),
    ]
    for number, (reason, message) in enumerate(told, len(job.events)):
        job.events.append(recorded(job.document, Event("Normal", reason, message), job.world.now, number))
    said = explain(job)
    assert said["Stragglers that are being replaced"] == [
        "digits-g0-1 is to take the place of digits-g0-0; its pod is not there yet",
        "digits-g1-1 (preparing) takes the place of digits-g1-0 once it can join and its warm-up shows a gain",
    ]
    story = said["How digits-g1-0 was to be replaced"]
    assert "digits-g1-0 takes 2 times as long" in story[0]
    assert [line.split(" ago: ")[1].split(":")[0] for line in story[1:]] == [
        "creating digits-g1-1 to replace digits-g1-0",
        "digits-g1-0 left at step 190",
        "digits-g1-1 trains in place of digits-g1-0 since step 192",
    ]


def test_dry_run_says_what_it_would_do(explain: Explain) -> None:
    said = explain(trained(3, dryRun=True))
    [would] = said["What would be decided on these figures"]
    assert would.startswith("Nothing, this is a dry run; otherwise batches 110 / 55 / 27: digits-g2-0 takes 260 ms")
    assert said["What is known of the workers"][0].split()[-2:] == ["NEXT", "BEST"]
    assert [line.split()[1] for line in said["History"][1:]] == ["1", "3"], "what is said thrice is one line"


@pytest.mark.parametrize(
    ("spec", "status", "words"),
    [
        ({"runPolicy": {"suspend": True}}, {"phase": "Suspended"}, "Nothing: the job is suspended."),
        ({}, {"phase": "Succeeded"}, "Nothing: the job is over."),
        ({"batching": {"policy": "Uniform"}}, {}, "Batches 64 / 64 / 64: Uniform: equal shares of 192 samples"),
    ],
)
def test_next_decision_is_that_of_the_job_as_it_is_now(
    spec: dict[str, object], status: dict[str, object], words: str, explain: Explain
) -> None:
    job = trained()
    job.document["spec"].update(spec)
    job.document["status"].update(status)
    job.document["metadata"]["generation"] = 2
    said = explain(job)
    assert said["What would be decided on these figures"] == [words]
    assert "The job was changed since the operator last looked at it." in said[""]


def test_forgotten_event_is_admitted_and_those_of_an_earlier_job_do_not_count(api: ApiServer, explain: Explain) -> None:
    job = replace(trained(), events=[])
    earlier = {**job.document, "metadata": {**job.document["metadata"], "uid": "uid-of-an-earlier-one"}}
    api.restore("events", recorded(earlier, Event("Warning", "JobFailed", "long ago"), job.world.now, 999))
    said = explain(job)
    assert said["Why the batches are as they are"] == [
        "Plan 2 has batches 110 / 55 / 27; the cluster has forgotten the event with its reason."
    ]
    assert "History" not in said


def test_job_without_a_plan_waits_for_its_workers(api: ApiServer, explain: Explain) -> None:
    job = job_document()
    workers = [
        {"name": "digits-g0-0", "group": "g0", "phase": "waiting"},
        {"name": "digits-g2-0", "group": "g2", "phase": "pending", "message": "Unschedulable: 0/4 nodes [are] free"},
    ]
    job["status"] = {"phase": "Created", "reason": "waiting for digits-g1-0 (Pending)", "workers": workers}
    api.restore("heterotrainingjobs", job)
    said = explain()
    assert said["Why the batches are as they are"] == [
        "There is no plan yet: the first one is published once every worker answers."
    ]
    assert said["What workers say"] == ["digits-g2-0: pending: Unschedulable: 0/4 nodes [are] free"]


def test_invalid_job_names_its_faults(api: ApiServer, explain: Explain) -> None:
    job = job_document()
    job["spec"]["batching"]["policy"] = "Clever"
    api.restore("heterotrainingjobs", job)
    [fault] = explain()["The job is invalid; the operator does not act on it"]
    assert fault.startswith("spec.batching.policy: ")


@pytest.mark.parametrize("key", ["plan.json", "memory.json"])
def test_spoilt_storage_is_named(key: str, explain: Explain) -> None:
    job = trained()
    [problem] = explain(replace(job, plan_map={**job.plan_map, key: "{"}))["The stored plan cannot be read"]
    assert problem.startswith(f"{key}: ")


def test_plan_of_groups_that_are_gone_is_reported(explain: Explain) -> None:
    job = trained()
    job.document["spec"]["workerGroups"][2]["name"] = "new"
    assert explain(job)["What would be decided now"] == ["plan 2 has workers of g2, which the job does not have"]
