"""What the status says of each worker, and which workers it lists."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.clusters.kube.status.job_status import next_status
from heterotrain_operator.clusters.kube.status.worth import worth_writing
from heterotrain_operator.core.memory.members import Passage, Passages
from heterotrain_operator.core.model import Condition, Seen, WorkerState
from heterotrain_operator.core.stragglers.verdict import Budget, Grounds, Remedy, Verdict
from unit.kube.documents import Document, groups, job
from unit.kube.statuses import BATCHES, MEMORY, NOW, condition, decision, metrics, plan, status, training, worker


def test_members_come_in_the_order_of_the_plan_then_others_by_group_and_index() -> None:
    seen = Seen((worker("digits-large-1"), worker("digits-large-0"), worker("digits-small-1")), plan())
    names = [entry["name"] for entry in status(seen=seen)["workers"]]
    assert names == ["digits-small-1", "digits-large-0", "digits-large-1"]


def test_worker_has_its_shares_of_the_cpu_and_what_slowed_it() -> None:
    use = {"observed_seconds": 20.0, "cpu_throttled_seconds": 4.96, "cpu_wait_seconds": 30.0}
    seen = Seen((worker("digits-small-0", metrics(**use)), worker("digits-small-1", metrics())), plan())
    slowed = (("digits-small-0", "Neighbour"),)
    first, second = status(seen=seen, decided=decision(slowed_by=slowed))["workers"]
    assert (first["cpuThrottledPercent"], first["cpuWaitPercent"], first["slowedBy"]) == (25, 100, "Neighbour")
    assert not {"cpuThrottledPercent", "cpuWaitPercent", "slowedBy"} & second.keys()


def test_shares_of_the_cpu_are_not_said_of_a_moment_and_not_of_nonsense() -> None:
    for use in (
        {"observed_seconds": 0.5, "cpu_throttled_seconds": 0.25},
        {"observed_seconds": float("inf"), "cpu_throttled_seconds": 0.25},
        {"observed_seconds": 5.0, "cpu_throttled_seconds": float("nan"), "cpu_wait_seconds": -1.0},
    ):
        seen = Seen((worker("digits-small-0", metrics(**use)),), plan())
        [entry] = status(seen=seen)["workers"]
        assert not {"cpuThrottledPercent", "cpuWaitPercent"} & entry.keys()


def test_new_shares_are_figures_and_a_new_cause_is_worth_a_write() -> None:
    def of(waited: float, *slowed: tuple[str, str]) -> Document:
        seen = training(observed_seconds=10.0, cpu_wait_seconds=waited)
        return status(seen=seen, decided=decision(slowed_by=slowed))

    assert not worth_writing(of(1.0), of(2.0), 5.0)
    assert worth_writing(of(1.0), of(1.0, ("digits-small-0", "Neighbour")), 5.0)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.12345, 12), (12.345, 1200), (0.00345, 0.34), (0.0999, 10), (0.0, 0)],
)
def test_times_are_rounded_to_two_digits(seconds: float, shown: float) -> None:
    found = status(seen=training(seconds, seconds, seconds))
    assert found["workers"][0]["ownMilliseconds"] == shown


def test_batch_is_that_of_the_plan_being_published_and_the_version_the_one_followed() -> None:
    after = plan(8, {**BATCHES, "digits-small-0": 40, "digits-large-0": 104})
    found = status(decided=decision(plan=after))
    assert (found["planVersion"], found["workers"][0]["planVersion"]) == (8, 7)
    assert found["workers"][0]["batchSize"] == 40


def test_worker_outside_the_plan_has_no_batch() -> None:
    recreated = worker("digits-small-0", metrics(plan_version=0, phase="waiting", steps=0.0), uid="another")
    (entry,) = status(seen=Seen((recreated,), plan()))["workers"]
    assert (entry["phase"], entry.get("batchSize"), entry.get("planVersion")) == ("waiting", None, None)


def test_greatest_batch_that_memory_holds_is_a_quiet_figure() -> None:
    found = status(decided=decision(batch_limits=(("digits-small-1", 61), ("digits-large-0", -3))))
    assert [entry.get("maxBatchSize") for entry in found["workers"]] == [None, 61, None]
    moved = status(decided=decision(batch_limits=(("digits-small-1", 62),)))
    assert not worth_writing(found, moved, 5.0)
    assert worth_writing(found, moved, 40.0)


def test_balance_that_comes_and_goes_with_the_noise_is_a_quiet_figure() -> None:
    def judged(balanced: bool | None, reason: str, before: Document | None = None) -> Document:
        return status(before, decided=decision(conditions=(Condition("Balanced", balanced, reason, "as measured"),)))

    unknown = judged(None, "NotMeasured")
    assert condition(unknown, "Balanced")["status"] == "Unknown"
    measured = judged(True, "WithinTolerance", unknown)
    assert worth_writing(unknown, measured, 5.0), "the first that is known of a plan is written at once"
    lost = judged(False, "Unbalanced", measured)
    assert not worth_writing(measured, lost, 5.0)
    assert worth_writing(measured, lost, 40.0)


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


def test_workers_that_are_replaced_do_not() -> None:
    assert status(status(), Seen((), plan()), decision("Restarting"))["workers"] == []


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


def test_worker_that_the_new_plan_names_is_a_member_in_the_status_that_says_its_batch() -> None:
    states = tuple((name, WorkerState.WARM) for name in BATCHES)
    found = status(decided=decision(plan=plan(), worker_states=states))
    assert {entry["state"] for entry in found["workers"]} == {"member"}
    waiting = status(seen=replace(training(), plan=None), decided=decision(worker_states=states))
    assert {entry["state"] for entry in waiting["workers"]} == {"warm"}


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
