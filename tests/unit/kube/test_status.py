"""The status says how the job stands, and keeps what cannot be seen this time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from jsonschema import Draft4Validator

from heterotrain.contract import Evaluated
from heterotrain_operator.api.generate.crd import custom_resource_definition
from heterotrain_operator.api.status import MAX_DEPARTURES
from heterotrain_operator.clusters.kube.status.worth import worth_writing
from heterotrain_operator.core.memory.job import Resumed
from heterotrain_operator.core.memory.members import MOST_PASSAGES, Passage, Passages
from heterotrain_operator.core.model import Condition, Seen, WorkerState
from unit.kube.documents import Document, groups
from unit.kube.statuses import BATCHES, MEMORY, NOW, condition, decision, plan, status, training

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


def test_step_of_workers_that_pause_is_known() -> None:
    assert status(status(), training(step=121, phase="paused"))["step"] == 121


def test_total_is_known_from_the_steps_asked_for() -> None:
    assert status(seen=Seen())["totalSteps"] == 150


@pytest.mark.parametrize(
    ("imbalance", "percent"), [(None, None), (0.0, 0), (0.0704, 7), (0.318, 32), (7.77, 780), (1e300, 1_000_000)]
)
def test_imbalance_is_that_of_the_decision_in_two_digits(imbalance: float | None, percent: int | None) -> None:
    """Whatever the workers' counters say since the plan began: the condition beside it is of the same moment."""
    found = status(seen=training(1.0, 1.0, 9.0), decided=decision(imbalance=imbalance))
    assert found.get("imbalancePercent") == percent


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -1.0, 1e300])
def test_odd_measurement_is_left_out(odd: float) -> None:
    found = status(seen=training(odd, 1.0, 1.0))
    assert "ownMilliseconds" not in found["workers"][0]


def test_what_an_earlier_job_has_trained_is_reported() -> None:
    assert "resumedFrom" not in status()
    found = status(memory=replace(MEMORY, resumed=Resumed(40, "the earlier UID")))
    assert found["resumedFrom"] == {"step": 40, "jobUid": "the earlier UID"}


def test_figures_that_no_schema_admits_are_left_out() -> None:
    huge = plan(10**30, dict.fromkeys(BATCHES, 10**12))
    memory = replace(
        MEMORY, budget=replace(MEMORY.budget, restarts=10**12), start=replace(MEMORY.start, started_at=1e300)
    )
    found = status(seen=Seen(training().workers, huge), memory=memory)
    assert not {"planVersion", "globalBatchSize", "restarts", "startTime"} & found.keys()


# --- moments and conditions


def test_condition_keeps_the_moment_at_which_it_became_so() -> None:
    first = status()
    same = status(first, decided=decision(reason="other words"), now=NOW + 60)
    assert condition(same, "Running")["lastTransitionTime"] == "2026-01-31T12:00:00Z"
    assert condition(same, "Running")["message"] == "other words"
    other = status(same, decided=decision("Restarting"), now=NOW + 60)
    assert condition(other, "Running")["lastTransitionTime"] == "2026-01-31T12:01:00Z"
    assert condition(other, "Balanced")["lastTransitionTime"] == "2026-01-31T12:00:00Z"


def test_condition_rests_on_a_generation_of_the_spec() -> None:
    assert condition(status(), "Running")["observedGeneration"] == 3


def test_condition_that_nobody_speaks_of_goes() -> None:
    extra = Condition("MetricsUnavailable", True, "NoAnswer", "prometheus does not answer")
    found = status(decided=replace(decision(), conditions=(*decision().conditions, extra)))
    assert condition(found, "MetricsUnavailable")["status"] == "True"
    assert [entry["type"] for entry in status(found)["conditions"]] == ["Running", "Balanced"]


def test_job_completes_once() -> None:
    assert "completionTime" not in status()
    first = status(decided=decision("Succeeded"))
    assert first["completionTime"] == "2026-01-31T12:00:00Z"
    assert status(first, decided=decision("Succeeded"), now=NOW + 60)["completionTime"] == "2026-01-31T12:00:00Z"


def test_start_is_that_of_the_time_now_active() -> None:
    suspended = replace(MEMORY, start=replace(MEMORY.start, started_at=None))
    assert "startTime" not in status(status(), decided=decision("Suspended"), memory=suspended)


def test_newest_evaluation_is_reported_and_stays() -> None:
    early, late = Evaluated(100, (("accuracy", 0.123456),)), Evaluated(120, (("accuracy", 0.987654), ("f1", 0.5)))
    known = status(seen=training(evaluated=early))
    assert known["evaluation"] == {"step": 100, "metrics": [{"name": "accuracy", "value": 0.1235}]}
    assert status(known, seen=training())["evaluation"] == known["evaluation"]
    ended = [replace(each, metrics=None, exit_code=0, finished=True, evaluated=late) for each in training().workers]
    new = status(known, seen=Seen(tuple(ended), plan()))
    assert new["evaluation"]["step"] == 120
    assert [entry["value"] for entry in new["evaluation"]["metrics"]] == [0.9877, 0.5]


def test_evaluation_is_a_quiet_figure_while_the_job_runs() -> None:
    before, after = (status(seen=training(evaluated=Evaluated(step, (("f1", 0.5),)))) for step in (100, 110))
    assert not worth_writing(before, after, 1.0)
    assert worth_writing(before, after, 31.0)


def test_workers_that_are_not_wanted_any_more_are_not_counted_as_ready() -> None:
    leaving = (*((name, WorkerState.MEMBER) for name in list(BATCHES)[:2]), ("digits-large-0", WorkerState.LEAVING))
    found = status(decided=decision(worker_states=leaving))
    assert found["ready"] == "2/3"


def test_no_more_workers_are_ready_than_are_wanted_while_some_are_about_to_leave() -> None:
    states = tuple((name, WorkerState.MEMBER) for name in BATCHES)
    found = status(decided=decision(worker_states=states), spec=groups(replicas=1))
    assert found["ready"] == "1/1"


def test_workers_that_are_wanted_are_those_that_are_left_once_a_straggler_was_removed() -> None:
    seen = training()
    left = replace(seen, workers=tuple(each for each in seen.workers if each.name != "digits-small-1"))
    found = status(seen=left, decided=decision(removed=(("small", 1),)))
    assert (found["ready"], found["replicas"]) == ("2/2", 2)
    found = status(seen=seen, decided=decision(removed=(("small", 1),)))
    assert found["ready"] == "2/2", "and no more, while it is about to leave"


def test_workers_that_are_wanted_are_as_many_as_the_job_says_of_its_only_group() -> None:
    found = status(spec={**groups(replicas=2), "replicas": 4})
    assert (found["ready"], found["replicas"]) == ("2/4", 4)


def test_workers_of_a_job_that_is_over_are_gone() -> None:
    states = tuple((name, WorkerState.MEMBER) for name in BATCHES)
    before = status(decided=decision(worker_states=states))
    after = status(before, Seen((), plan()), decision("Succeeded"))
    assert {entry["state"] for entry in after["workers"]} == {"gone"}


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
