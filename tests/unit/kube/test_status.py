"""The status says how the job and each of its workers stand, and keeps what cannot be seen this time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from jsonschema import Draft4Validator

from heterotrain.contract import Evaluated
from heterotrain_operator.api.generate.crd import custom_resource_definition
from heterotrain_operator.api.status import MAX_DEPARTURES
from heterotrain_operator.clusters.kube.act.report import worth_writing
from heterotrain_operator.clusters.kube.status.job_status import next_status
from heterotrain_operator.core.model import Seen, WorkerState
from heterotrain_operator.core.remembered.job import Resumed
from heterotrain_operator.core.remembered.members import MOST_PASSAGES, Passage, Passages
from heterotrain_operator.core.stragglers.verdict import Budget, Grounds, Remedy, Verdict
from unit.kube.documents import Document, groups, job
from unit.kube.statuses import BATCHES, MEMORY, NOW, condition, decision, metrics, plan, status, training, worker

LISTS = ("conditions", "workers")


def test_status_says_how_the_job_stands() -> None:
    found = status(seen=training(1.0, 1.0, 1.6), decided=decision(imbalance=1 / 3))
    found.pop("conditions")
    assert found == {
        "observedGeneration": 3,
        "phase": "Running",
        "ready": "3/3",
        "replicas": 3,
        "selector": "heterotrain.dev/job-name=digits,heterotrain.dev/job-role=worker",
        "step": 120,
        "totalSteps": 150,
        "epoch": 4,
        "imbalancePercent": 33,
        "planVersion": 7,
        "planGeneration": 2,
        "globalBatchSize": 192,
        "restarts": 1,
        "reason": "batches stay",
        "startTime": "2026-01-31T11:59:00Z",
        "workers": [
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
        ],
    }


def test_cluster_stores_the_status_as_it_is() -> None:
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    found = status()
    assert list(Draft4Validator(schema).iter_errors(found)) == []
    for entry, at in ((found, schema), *((found[part][0], schema["properties"][part]["items"]) for part in LISTS)):
        defaults = {name for name, child in at["properties"].items() if "default" in child}
        assert defaults <= entry.keys()
        assert entry.keys() <= at["properties"].keys()


# --- ready, step, imbalance


@pytest.mark.parametrize(
    ("changes", "ready"),
    [
        ({}, "3/3"),
        ({"phase": "checkpointing"}, "3/3"),
        ({"phase": "paused"}, "3/3"),
        ({"plan_version": 6}, "3/3"),
        ({"phase": "waiting", "plan_version": 0}, "0/3"),
        ({"phase": "reforming"}, "0/3"),
    ],
    ids=str,
)
def test_ready_counts_the_workers_that_train(changes: Document, ready: str) -> None:
    assert status(seen=training(**changes))["ready"] == ready


def test_step_stays_until_new_workers_have_read_the_checkpoint() -> None:
    before = status()
    starting = status(before, training(step=0, epoch=0, phase="starting"))
    assert (starting["step"], starting["epoch"]) == (120, 4)
    assert status(starting, training(step=101, epoch=3))["step"] == 101


@pytest.mark.parametrize(
    ("imbalance", "percent"), [(None, None), (0.0, 0), (0.0704, 7), (0.318, 32), (7.77, 780), (1e300, 1_000_000)]
)
def test_imbalance_is_that_of_the_decision_in_two_digits(imbalance: float | None, percent: int | None) -> None:
    """Whatever the workers' counters say since the plan began: the condition beside it is of the same moment."""
    found = status(seen=training(1.0, 1.0, 9.0), decided=decision(imbalance=imbalance))
    assert found.get("imbalancePercent") == percent


# --- moments and conditions


def test_condition_keeps_the_moment_at_which_it_became_so() -> None:
    first = status()
    same = status(first, decided=decision(reason="other words"), now=NOW + 60)
    assert condition(same, "Running")["lastTransitionTime"] == "2026-01-31T12:00:00Z"
    assert condition(same, "Running")["message"] == "other words"
    other = status(same, decided=decision("Restarting"), now=NOW + 60)
    assert condition(other, "Running")["lastTransitionTime"] == "2026-01-31T12:01:00Z"
    assert condition(other, "Balanced")["lastTransitionTime"] == "2026-01-31T12:00:00Z"


def test_job_completes_once() -> None:
    assert "completionTime" not in status()
    first = status(decided=decision("Succeeded"))
    assert first["completionTime"] == "2026-01-31T12:00:00Z"
    assert status(first, decided=decision("Succeeded"), now=NOW + 60)["completionTime"] == "2026-01-31T12:00:00Z"


def test_newest_evaluation_is_reported_and_stays() -> None:
    early, late = Evaluated(100, (("accuracy", 0.123456),)), Evaluated(120, (("accuracy", 0.987654), ("f1", 0.5)))
    known = status(seen=training(evaluated=early))
    assert known["evaluation"] == {"step": 100, "metrics": [{"name": "accuracy", "value": 0.1235}]}
    assert status(known, seen=training())["evaluation"] == known["evaluation"]
    ended = [replace(each, metrics=None, exit_code=0, finished=True, evaluated=late) for each in training().workers]
    new = status(known, seen=Seen(tuple(ended), plan()))
    assert new["evaluation"]["step"] == 120
    assert [entry["value"] for entry in new["evaluation"]["metrics"]] == [0.9877, 0.5]


def test_workers_that_are_wanted_are_those_that_are_left_once_a_straggler_was_removed() -> None:
    seen = training()
    left = replace(seen, workers=tuple(each for each in seen.workers if each.name != "digits-small-1"))
    found = status(seen=left, decided=decision(removed=(("small", 1),)))
    assert (found["ready"], found["replicas"]) == ("2/2", 2)
    found = status(seen=seen, decided=decision(removed=(("small", 1),)))
    assert found["ready"] == "2/2", "and no more, while it is about to leave"


def test_status_names_the_straggler_and_the_newcomer_that_takes_its_place() -> None:
    first, second = list(BATCHES)[:2]
    written = status(decided=decision(replacing=((first, second), ("gone", "not-there-yet"))))
    entries = {entry["name"]: entry for entry in written["workers"]}
    assert (entries[first].get("replacedBy"), entries[first].get("replaces")) == (second, None)
    assert (entries[second].get("replacedBy"), entries[second].get("replaces")) == (None, first)
    assert worth_writing(status(), written, 5.0)


def test_status_lists_the_members_that_left_and_no_more_than_are_remembered() -> None:
    gone = Passage("digits-small-7", 40, NOW - 60, "fewer workers are wanted", "digits-small-1")
    found = status(memory=replace(MEMORY, passages=Passages(departures=(gone,))))["departures"]
    assert found == [
        {
            "name": "digits-small-7",
            "step": 40,
            "time": "2026-01-31T11:59:00Z",
            "reason": "fewer workers are wanted",
            "replacedBy": "digits-small-1",
        }
    ]
    assert MAX_DEPARTURES == MOST_PASSAGES
    many = tuple(replace(gone, step=step, other="") for step in range(40))
    listed = status(memory=replace(MEMORY, passages=Passages(departures=many)))["departures"]
    assert [entry["step"] for entry in listed] == list(range(24, 40))
    assert "replacedBy" not in listed[0]


def test_worker_has_its_shares_of_the_cpu_and_what_slowed_it() -> None:
    use = {"observed_seconds": 20.0, "cpu_throttled_seconds": 4.96, "cpu_wait_seconds": 30.0}
    seen = Seen((worker("digits-small-0", metrics(**use)), worker("digits-small-1", metrics())), plan())
    slowed = (("digits-small-0", "Neighbour"),)
    first, second = status(seen=seen, decided=decision(slowed_by=slowed))["workers"]
    assert (first["cpuThrottledPercent"], first["cpuWaitPercent"], first["slowedBy"]) == (25, 100, "Neighbour")
    assert not {"cpuThrottledPercent", "cpuWaitPercent", "slowedBy"} & second.keys()


def test_batch_is_that_of_the_plan_being_published_and_the_version_the_one_followed() -> None:
    after = plan(8, {**BATCHES, "digits-small-0": 40, "digits-large-0": 104})
    found = status(decided=decision(plan=after))
    assert (found["planVersion"], found["workers"][0]["planVersion"]) == (8, 7)
    assert found["workers"][0]["batchSize"] == 40


def test_one_reading_that_failed_takes_nothing_back() -> None:
    before = status()
    silent = Seen(tuple(replace(seen, metrics=None) for seen in training().workers), plan())
    assert status(before, silent) == before


def test_another_pod_of_the_same_name_inherits_nothing() -> None:
    before = status()
    created = worker("digits-small-0", uid="new")
    (entry,) = status(before, Seen((created,), plan()), decision("Restarting"))["workers"]
    assert (entry["phase"], entry.get("planVersion"), entry.get("ownMilliseconds")) == ("running", None, None)


def test_worker_that_ended_keeps_its_last_figures() -> None:
    ended = tuple(
        replace(seen, metrics=None, phase="Succeeded", exit_code=0, finished=True, step=150)
        for seen in training().workers
    )
    found = status(status(), Seen(ended, plan()), decision("Succeeded"))
    assert [entry["phase"] for entry in found["workers"]] == ["succeeded"] * 3
    assert [entry["planVersion"] for entry in found["workers"]] == [7, 7, 7]
    assert found["step"] == 150


def test_workers_stay_listed_when_their_pods_go_with_the_end() -> None:
    before = status()
    before["workers"][0]["phase"] = "failed"
    gone = status(before, Seen((), plan()), decision("Failed"))
    assert [entry["phase"] for entry in gone["workers"]] == ["failed", "deleted", "deleted"]
    assert status(gone, Seen((), plan()), decision("Failed")) == gone


def test_only_so_many_workers_are_listed_but_all_are_counted() -> None:
    many = {f"digits-small-{index}": 1 for index in range(300)}
    seen = Seen(tuple(worker(name, metrics()) for name in many), plan(7, many))
    found = next_status(
        None, job({**groups(replicas=300), "training": {"globalBatchSize": 300}}), seen, decision(), MEMORY, NOW
    )
    assert len(found["workers"]) == 256
    assert found["ready"] == "300/300"


def test_worker_says_where_it_is_in_its_life() -> None:
    states = (
        ("digits-small-0", WorkerState.MEMBER),
        ("digits-small-1", WorkerState.LEAVING),
        ("digits-large-0", WorkerState.GONE),
        ("digits-large-1", WorkerState.WANTED),
    )
    found = status(decided=decision(worker_states=states))
    assert [(entry["name"], entry["state"]) for entry in found["workers"]] == [
        (name, state.value) for name, state in states[:3]
    ]


def test_status_lists_the_verdict_about_a_straggler_beside_the_worker() -> None:
    verdict = Verdict(
        worker="digits-small-0",
        group="small",
        grounds=Grounds.ITSELF,
        slowdown=2.04,
        since_step=180,
        cause="",
        throttled=None,
        waiting=None,
        remedy=Remedy.REPLACE,
        outlooks=None,
        budget=Budget(3, 60.0),
    )
    written = status(decided=decision(stragglers=(verdict,)))
    listed = {entry["name"]: entry.get("straggler") for entry in written["workers"]}
    assert listed.pop("digits-small-0") == {
        "slowdown": 2.0,
        "sinceStep": 180,
        "grounds": "SlowerThanItself",
        "remedy": "Replace",
    }
    assert not any(listed.values())
    slower = status(decided=decision(stragglers=(replace(verdict, slowdown=2.4),)))
    assert worth_writing(status(), written, 5.0)
    assert not worth_writing(written, slower, 5.0)


def test_status_says_in_which_generation_a_worker_trains_and_when_and_why_it_joined() -> None:
    memory = replace(MEMORY, passages=Passages((Passage("digits-small-1", 90, NOW - 5, "more workers are wanted"),)))
    written = status(memory=memory)
    entries = {entry["name"]: entry for entry in written["workers"]}
    assert {entry["generation"] for entry in entries.values()} == {2}
    joined = entries["digits-small-1"]
    assert (joined["joinedAtStep"], joined["joinedBecause"]) == (90, "more workers are wanted")
    assert not any("joinedAtStep" in entry for name, entry in entries.items() if name != "digits-small-1")
    later = {entry["name"]: entry for entry in status(written)["workers"]}
    assert later["digits-small-1"]["joinedAtStep"] == 90, "also once others have joined after it"
    assert worth_writing(status(), written, 5.0)


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
        (SAVED, on({"ephemeral": {}}), "NoDurableVolume", "group small, large"),
        (SAVED, on({"hostPath": {"path": "/x"}}, "/elsewhere"), "NoDurableVolume", "group small, large"),
        (SAVED, on({"persistentVolumeClaim": {"claimName": "c"}}), None, ""),
        (SAVED, on({"nfs": {"server": "s", "path": "/"}}, "/"), None, ""),
        (SAVED, on({"hostPath": {"path": "/shared"}}, "/checkpoints/"), None, ""),
    ],
    ids=str,
)
def test_restarts_that_would_begin_at_step_0_are_warned_of(
    spec: Document, template: Document, reason: str | None, words: str
) -> None:
    found = next_status(None, job(spec, **template), training(), decision(), MEMORY, NOW)
    warnings = [entry for entry in found["conditions"] if entry["type"] == "CheckpointNotDurable"]
    assert [entry["reason"] for entry in warnings] == ([] if reason is None else [reason])
    assert all(words in entry["message"] for entry in warnings)


def test_shares_of_the_cpu_are_not_said_of_a_moment_and_not_of_nonsense() -> None:
    for use in (
        {"observed_seconds": 0.5, "cpu_throttled_seconds": 0.25},
        {"observed_seconds": float("inf"), "cpu_throttled_seconds": 0.25},
        {"observed_seconds": 5.0, "cpu_throttled_seconds": float("nan"), "cpu_wait_seconds": -1.0},
    ):
        seen = Seen((worker("digits-small-0", metrics(**use)),), plan())
        [entry] = status(seen=seen)["workers"]
        assert not {"cpuThrottledPercent", "cpuWaitPercent"} & entry.keys()


def test_worker_outside_the_plan_has_no_batch() -> None:
    recreated = worker("digits-small-0", metrics(plan_version=0, phase="waiting", steps=0.0), uid="another")
    (entry,) = status(seen=Seen((recreated,), plan()))["workers"]
    assert (entry["phase"], entry.get("batchSize"), entry.get("planVersion")) == ("waiting", None, None)


def test_pod_that_waits_says_why() -> None:
    pending = worker("digits-small-0", phase="Pending", message="ImagePullBackOff: not found", cpu_limit=None, node="")
    (entry,) = status(seen=Seen((pending,), None))["workers"]
    assert entry == {
        "name": "digits-small-0",
        "group": "small",
        "phase": "pending",
        "message": "ImagePullBackOff: not found",
        "node": "",
    }


def test_greatest_batch_that_memory_holds_is_said_where_it_is_known_and_one() -> None:
    found = status(decided=decision(batch_limits=(("digits-small-1", 61), ("digits-large-0", -3))))
    assert [entry.get("maxBatchSize") for entry in found["workers"]] == [None, 61, None]


def test_figures_that_no_schema_admits_are_left_out() -> None:
    huge = plan(10**30, dict.fromkeys(BATCHES, 10**12))
    memory = replace(
        MEMORY, budget=replace(MEMORY.budget, restarts=10**12), start=replace(MEMORY.start, started_at=1e300)
    )
    found = status(seen=Seen(training().workers, huge), memory=memory)
    assert not {"planVersion", "globalBatchSize", "restarts", "startTime"} & found.keys()


def test_what_an_earlier_job_has_trained_is_reported() -> None:
    assert "resumedFrom" not in status()
    found = status(memory=replace(MEMORY, resumed=Resumed(40, "the earlier UID")))
    assert found["resumedFrom"] == {"step": 40, "jobUid": "the earlier UID"}


def test_workers_that_are_not_wanted_any_more_are_not_counted_as_ready() -> None:
    leaving = (*((name, WorkerState.MEMBER) for name in list(BATCHES)[:2]), ("digits-large-0", WorkerState.LEAVING))
    found = status(decided=decision(worker_states=leaving))
    assert found["ready"] == "2/3"
