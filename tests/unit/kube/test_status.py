"""The status says how the job and each of its workers stand, and keeps what cannot be seen this time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from jsonschema import Draft4Validator
from rich.console import Console

from heterotrain.contract import Evaluated
from heterotrain_operator.api.generate.crd import custom_resource_definition
from heterotrain_operator.api.status import MAX_DEPARTURES
from heterotrain_operator.cli.cluster.job_state import read_job
from heterotrain_operator.cli.cluster.status import job_view
from heterotrain_operator.clusters.kube.status.job_status import next_status
from heterotrain_operator.core.model import Decision, PeerMetrics, Seen, WorkerState
from heterotrain_operator.core.remembered.cost import Cost
from heterotrain_operator.core.remembered.job import Resumed
from heterotrain_operator.core.remembered.members import MOST_PASSAGES, Passage, Passages
from kube_server.api_server import Document
from unit.kube.documents import groups, job
from unit.kube.statuses import (
    BATCHES,
    MEMORY,
    NOW,
    VERDICT,
    condition,
    decision,
    metrics,
    plan,
    status,
    training,
    worker,
)

LISTS = ("conditions", "workers")
FIRST, SECOND, THIRD = BATCHES


def test_status_says_how_the_job_stands() -> None:
    found = status(seen=training(1.0, 1.0, 1.6), decided=decision(imbalance=1 / 3))
    assert (found["phase"], found["ready"], found["replicas"], found["reason"]) == ("Running", "3/3", 3, "batches stay")
    assert (found["step"], found["totalSteps"], found["epoch"], found["restarts"]) == (120, 150, 4, 1)
    assert (found["planVersion"], found["planGeneration"], found["globalBatchSize"]) == (7, 2, 192)
    assert (found["observedGeneration"], found["imbalancePercent"]) == (3, 33)
    assert found["startTime"] == "2026-01-31T11:59:00Z"
    assert found["selector"] == "heterotrain.dev/job-name=digits,heterotrain.dev/job-role=worker"
    assert found["workers"] == [
        {
            "name": name,
            "group": name.split("-")[1],
            "phase": "training",
            "generation": 2,
            "batchSize": batch,
            "planVersion": 7,
            "ownMilliseconds": own,
            "waitingPercent": 50,
            "cpuLimit": 0.25,
            "node": "node-1",
            "message": "",
        }
        for (name, batch), own in zip(BATCHES.items(), (100, 100, 160), strict=True)
    ]


def test_cluster_stores_the_status_as_it_is() -> None:
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    found = status()
    assert list(Draft4Validator(schema).iter_errors(found)) == []
    for entry, at in ((found, schema), *((found[part][0], schema["properties"][part]["items"]) for part in LISTS)):
        defaults = {name for name, child in at["properties"].items() if "default" in child}
        assert defaults <= entry.keys() <= at["properties"].keys()


def test_cost_has_two_digits_while_it_grows_and_stays_when_it_is_not_known() -> None:
    memory = replace(MEMORY, cost=Cost(spent=(("small", 0.12345678), ("large", 1234.5678))))
    found = status(memory=memory)
    by_group = [{"group": "small", "cost": 0.12}, {"group": "large", "cost": 1200.0}]
    assert found["cost"] == {"total": 1200.0, "groups": by_group}
    assert status(memory=replace(memory, cost=Cost(spent=(("small", 0.0),))))["cost"] == {
        "groups": [{"group": "small", "cost": 0.0}]
    }
    over = status(found, memory=memory, decided=replace(decision(), phase="Succeeded"))
    assert over["cost"]["total"] == 1235.0
    assert status(over)["cost"] == over["cost"]
    assert "cost" not in status()


def test_ready_counts_the_workers_that_train_of_those_that_are_wanted() -> None:
    for changes, ready in (
        ({"phase": "checkpointing"}, "3/3"),
        ({"plan_version": 6}, "3/3"),
        ({"phase": "waiting", "plan_version": 0}, "0/3"),
        ({"phase": "reforming"}, "0/3"),
    ):
        assert status(seen=training(**changes))["ready"] == ready, changes
    straggles, leaves = decision(resized=(("small", -1),)), decision(worker_states=((THIRD, WorkerState.LEAVING),))
    assert (status(decided=straggles)["ready"], status(decided=straggles)["replicas"]) == ("2/2", 2)
    assert status(decided=leaves)["ready"] == "2/3"


def test_step_stays_until_new_workers_have_read_the_checkpoint() -> None:
    before = status()
    starting = status(before, training(step=0, epoch=0, phase="starting"))
    assert (starting["step"], starting["epoch"]) == (120, 4)
    assert status(starting, training(step=101, epoch=3))["step"] == 101


def test_imbalance_is_that_of_the_decision_in_two_digits() -> None:
    """Whatever the workers' counters say since the plan began: the condition beside it is of the same moment."""
    for imbalance, percent in ((None, None), (0.0704, 7), (7.77, 780), (1e300, 1_000_000)):
        found = status(seen=training(1.0, 1.0, 9.0), decided=decision(imbalance=imbalance))
        assert found.get("imbalancePercent") == percent


def test_moments_are_those_at_which_it_became_so() -> None:
    first = status()
    same = status(first, decided=decision(reason="other words"), now=NOW + 60)
    assert condition(same, "Running")["lastTransitionTime"] == "2026-01-31T12:00:00Z"
    assert condition(same, "Running")["message"] == "other words"
    other = status(same, decided=decision("Succeeded"), now=NOW + 60)
    assert condition(other, "Running")["lastTransitionTime"] == "2026-01-31T12:01:00Z"
    assert condition(other, "Balanced")["lastTransitionTime"] == "2026-01-31T12:00:00Z"
    assert ("completionTime" in same, other["completionTime"]) == (False, "2026-01-31T12:01:00Z")
    assert status(other, decided=decision("Succeeded"), now=NOW + 90)["completionTime"] == other["completionTime"]


def test_newest_evaluation_is_reported_and_stays() -> None:
    early, late = Evaluated(100, (("accuracy", 0.123456),)), Evaluated(120, (("accuracy", 0.987654), ("f1", 0.5)))
    known = status(seen=training(evaluated=early))
    assert known["evaluation"] == {"step": 100, "metrics": [{"name": "accuracy", "value": 0.1235}]}
    assert status(known, seen=training())["evaluation"] == known["evaluation"]
    ended = [replace(each, metrics=None, exit_code=0, finished=True, evaluated=late) for each in training().workers]
    assert status(known, seen=Seen(tuple(ended), plan()))["evaluation"]["step"] == 120


def test_what_an_earlier_job_has_trained_and_the_members_that_left_are_reported() -> None:
    gone = Passage("digits-small-7", 40, NOW - 60, "fewer workers are wanted", SECOND)
    passages = Passages(
        departures=(gone, *(replace(gone, step=step, other="") for step in range(41, 40 + MOST_PASSAGES)))
    )
    found = status(memory=replace(MEMORY, resumed=Resumed(40, "the earlier UID"), passages=passages))
    assert not {"resumedFrom", "departures"} & status().keys()
    assert found["resumedFrom"] == {"step": 40, "jobUid": "the earlier UID"}
    first, *others = found["departures"]
    assert first == {
        "name": "digits-small-7",
        "step": 40,
        "time": "2026-01-31T11:59:00Z",
        "reason": "fewer workers are wanted",
        "replacedBy": SECOND,
    }
    assert [entry.keys() & {"replacedBy"} for entry in others] == [set()] * (MAX_DEPARTURES - 1)


def test_figures_that_no_schema_admits_are_left_out() -> None:
    huge = plan(10**30, dict.fromkeys(BATCHES, 10**12))
    memory = replace(
        MEMORY, budget=replace(MEMORY.budget, restarts=10**12), start=replace(MEMORY.start, started_at=1e300)
    )
    found = status(seen=Seen(training().workers, huge), memory=memory)
    assert not {"planVersion", "globalBatchSize", "restarts", "startTime"} & found.keys()


def on(volume: Document, mount_path: str = "/checkpoints") -> Document:
    """A template whose container sees a volume there."""
    return {
        "pod_spec": {"volumes": [{"name": "v", **volume}]},
        "volumeMounts": [{"name": "v", "mountPath": mount_path}],
    }


SAVED = {"checkpoint": {"path": "/checkpoints"}}
CLAIMED = {"checkpoint": {"path": "/checkpoints", "persistentVolumeClaim": "digits"}}


@pytest.mark.parametrize(
    ("spec", "template", "reason", "words"),
    [
        ({}, {}, "NoCheckpointPath", "backoffLimit is 3"),
        ({"runPolicy": {"backoffLimit": 0}}, {}, None, ""),
        (CLAIMED, {}, None, ""),
        (SAVED, {}, "NoDurableVolume", "group small, large"),
        (SAVED, on({"emptyDir": {}}), "NoDurableVolume", "group small, large"),
        (SAVED, on({"hostPath": {"path": "/x"}}, "/elsewhere"), "NoDurableVolume", "group small, large"),
        (SAVED, on({"nfs": {"server": "s", "path": "/"}}, "/"), None, ""),
    ],
    ids=str,
)
def test_restarts_from_step_0_are_warned_of(spec: Document, template: Document, reason: str | None, words: str) -> None:
    found = next_status(None, job(spec, **template), training(), decision(), MEMORY, NOW)
    warnings = [entry for entry in found["conditions"] if entry["type"] == "CheckpointNotDurable"]
    assert [entry["reason"] for entry in warnings] == ([] if reason is None else [reason])
    assert all(words in entry["message"] for entry in warnings)


def news(found: Document, before: Document) -> dict[str, Document]:
    """What the entries of workers have that they had not before, of those that have any, by name."""
    usual = {entry["name"]: entry for entry in before["workers"]}
    entries = {
        entry["name"]: {name: value for name, value in entry.items() if usual[entry["name"]].get(name) != value}
        for entry in found["workers"]
    }
    return {name: entry for name, entry in entries.items() if entry}


STRAGGLER = {"slowdown": 2.0, "sinceStep": 180, "grounds": "SlowerThanItself", "remedy": "Replace"}


@pytest.mark.parametrize(
    ("decided", "entries"),
    [
        (
            decision(replacing=((FIRST, SECOND), ("gone", "not-there-yet"))),
            {FIRST: {"replacedBy": SECOND}, SECOND: {"replaces": FIRST}},
        ),
        (decision(slowed_by=((FIRST, "Neighbour"),)), {FIRST: {"slowedBy": "Neighbour"}}),
        (decision(batch_limits=((SECOND, 61), (THIRD, -3))), {SECOND: {"maxBatchSize": 61}}),
        (
            decision(worker_states=((SECOND, WorkerState.LEAVING), ("digits-large-1", WorkerState.WANTED))),
            {SECOND: {"state": WorkerState.LEAVING.value}},
        ),
        (decision(stragglers=(VERDICT,)), {FIRST: {"straggler": STRAGGLER}}),
        (
            decision(plan=plan(8, {**BATCHES, FIRST: 40, THIRD: 104})),
            {FIRST: {"batchSize": 40}, THIRD: {"batchSize": 104}},
        ),
    ],
    ids=["replacing", "slowed", "limit", "state", "straggler", "plan"],
)
def test_what_is_decided_of_a_worker_is_in_its_entry_alone(decided: Decision, entries: dict[str, Document]) -> None:
    assert news(status(decided=decided), status()) == entries


def test_member_that_joined_says_when_and_why_also_once_others_have_joined_after_it() -> None:
    memory = replace(MEMORY, passages=Passages((Passage(SECOND, 90, NOW - 5, "more workers are wanted"),)))
    joined = {SECOND: {"joinedAtStep": 90, "joinedBecause": "more workers are wanted"}}
    assert news(status(memory=memory), status()) == joined
    assert news(status(status(memory=memory)), status()) == joined


def test_shares_of_the_cpu_are_said_and_not_of_a_moment_or_of_nonsense() -> None:
    for observed, throttled, waited, shares in (
        (20.0, 4.96, 30.0, {"cpuThrottledPercent": 25, "cpuWaitPercent": 100}),
        (0.5, 0.25, None, {}),
        (float("inf"), 0.25, None, {}),
        (5.0, float("nan"), -1.0, {}),
    ):
        use = metrics(observed_seconds=observed, cpu_throttled_seconds=throttled, cpu_wait_seconds=waited)
        found = status(seen=Seen((worker(FIRST, use),), plan()))
        assert news(found, status()) == ({FIRST: shares} if shares else {})


def test_one_reading_that_failed_takes_nothing_back() -> None:
    before = status()
    silent = Seen(tuple(replace(seen, metrics=None) for seen in training().workers), plan())
    assert status(before, silent) == before


def test_another_pod_of_the_same_name_inherits_nothing_and_says_why_it_waits() -> None:
    created = worker(FIRST, uid="new", phase="Pending", message="ImagePullBackOff: not found", cpu_limit=None, node="")
    (entry,) = status(status(), Seen((created,), plan()), decision("Restarting"))["workers"]
    said = {"phase": "pending", "message": "ImagePullBackOff: not found"}
    assert entry == {"name": FIRST, "group": "small", **said, "node": ""}


def test_workers_stay_listed_with_their_last_figures_when_they_end_and_when_their_pods_go() -> None:
    ended = tuple(
        replace(seen, metrics=None, phase="Succeeded", exit_code=0, finished=True, step=150)
        for seen in training().workers[:1]
    )
    over = decision("Succeeded")
    found = status(status(), Seen(ended, plan()), over)
    assert (found["step"], sorted(entry["phase"] for entry in found["workers"])) == (
        150,
        ["deleted", "deleted", "succeeded"],
    )
    assert [entry["planVersion"] for entry in found["workers"]] == [7, 7, 7]
    gone = status(found, Seen((), plan()), over)
    assert [entry["phase"] for entry in gone["workers"]] == [entry["phase"] for entry in found["workers"]]
    assert status(gone, Seen((), plan()), over) == gone


def test_only_so_many_workers_are_listed_but_all_are_counted() -> None:
    many = {f"digits-small-{index}": 1 for index in range(300)}
    seen = Seen(tuple(worker(name, metrics()) for name in many), plan(7, many))
    wanted = job({**groups(replicas=300), "training": {"globalBatchSize": 300}})
    found = next_status(None, wanted, seen, decision(), MEMORY, NOW)
    assert (len(found["workers"]), found["ready"]) == (256, "300/300")


SERVED = {"training": {"mode": "ASP"}, "parameterServer": {}}


def test_status_shows_the_server_apart_and_what_it_says_of_each_worker() -> None:
    peers = (PeerMetrics(FIRST, updates=1234.0, discarded=3.0, waited_seconds=0.52, staleness=1.26),)
    server = replace(worker("digits-server-0", metrics(0.0, steps=0.0, phase="evaluating", peers=peers)), index=0)
    seen = training(1.0, 1.0, 3.0)
    found = status(seen=replace(seen, workers=(*seen.workers, server)), spec=SERVED)
    assert (found["ready"], found["replicas"]) == ("3/3", 3)
    assert found["server"] == {
        "name": "digits-server-0",
        "phase": "evaluating",
        "ends": 0,
        "node": "node-1",
        "message": "",
    }
    assert found["updatesPerSecond"] == 12  # 5, 5 and 1.7 of them
    first, *others = found["workers"]
    shown = {name: first[name] for name in ("updates", "discarded", "waitedSeconds", "staleness")}
    assert shown == {"updates": 1200, "discarded": 3, "waitedSeconds": 0.52, "staleness": 1.3}
    assert [each["name"] for each in others] == [SECOND, THIRD]
    silent = status(found, replace(seen, workers=(*seen.workers, replace(server, metrics=None))), spec=SERVED)
    assert silent["workers"][0]["updates"] == 1200
    text = str(job_view_of(found))
    assert "12 updates/s" in text and "server digits-server-0 (evaluating)" in text
    assert "STALENESS" in text and "LET WAIT" in text


def job_view_of(found: Document) -> str:
    """What `heterotrain status` prints of a job with this status."""
    document = {"metadata": {"name": "digits", "namespace": "team-a"}, "spec": {}, "status": found}
    out = Console(width=300, no_color=True)
    with out.capture() as captured:
        out.print(job_view(read_job(document), datetime(2026, 1, 31, 12, tzinfo=UTC), width=300))
    return captured.get()


def test_checkpoints_are_as_durable_as_the_servers_own_volume() -> None:
    gone = status(spec={**SERVED, "checkpoint": {"path": "/c", "persistentVolumeClaim": None}})
    assert (
        "on no volume that outlives the pods of the parameter server"
        in condition(gone, "CheckpointNotDurable")["message"]
    )
