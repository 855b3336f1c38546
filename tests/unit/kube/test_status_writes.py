"""The status is written no oftener than it is worth, and a job that is refused says so in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_operator.api import Problem, to_core
from heterotrain_operator.clusters.kube.status.invalid import invalid_status
from heterotrain_operator.clusters.kube.status.job_status import next_status
from heterotrain_operator.clusters.kube.status.schema import checked
from heterotrain_operator.clusters.kube.status.worth import FIGURES_SECONDS, worth_writing
from heterotrain_operator.core.model import Condition, Seen
from unit.core.traces import World
from unit.kube.documents import Document, job
from unit.kube.statuses import MEMORY, NOW, decision, plan, status, training


def test_nothing_new_is_never_written() -> None:
    assert not worth_writing(status(), status(), FIGURES_SECONDS + 1)
    assert not worth_writing(status(), status(status(), now=NOW + 600), None)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -1.0])
def test_measurements_that_are_no_numbers_are_no_news_each_time(odd: float) -> None:
    """NaN differs from itself, and so does, since Python 3.13, a dataclass that holds it."""
    figures = {"wait_seconds": odd, "loss": odd, "steps": odd, "memory_bytes": odd, "cpu_limit": odd}
    workers = tuple(replace(worker, cpu_limit=odd) for worker in training(odd, 1.0, odd, **figures).workers)
    decided = decision(imbalance=odd, batch_limits=(("digits-small-0", 7),))
    first = status(seen=Seen(workers, plan()), decided=decided)
    assert not worth_writing(first, status(first, Seen(workers, plan()), decided), None)


@pytest.mark.parametrize(
    "after",
    [
        status(seen=training(1.1, 1.0, 1.0)),
        status(seen=training(step=121)),
        status(seen=training(epoch=5)),
        status(seen=training(wait_seconds=0.5)),
        status(seen=training(phase="checkpointing")),
        status(seen=training(phase="paused")),
        status(decided=decision(reason="digits-small-0 has 9 of 10 measured steps")),
    ],
    ids=["own", "step", "epoch", "waiting", "checkpoint", "pause", "reason"],
)
def test_figures_are_written_now_and_then(after: Document) -> None:
    assert after != status()
    assert not worth_writing(status(), after, FIGURES_SECONDS - 1)
    assert worth_writing(status(), after, FIGURES_SECONDS)
    assert worth_writing(status(), after, None)


@pytest.mark.parametrize(
    "after",
    [
        status(decided=decision("Restarting")),
        status(decided=decision(plan=plan(8))),
        status(seen=training(plan_version=8)),
        status(seen=training(phase="reforming")),
        status(seen=Seen(training().workers[:2], plan())),
        status(seen=Seen(tuple(replace(w, cpu_limit=0.5) for w in training().workers), plan())),
        status(seen=Seen(tuple(replace(w, message="being deleted") for w in training().workers), plan())),
        status(memory=replace(MEMORY, budget=replace(MEMORY.budget, restarts=2))),
        status(decided=replace(decision(), conditions=(Condition("Degraded", True, "x", "y"),))),
    ],
    ids=["phase", "plan", "followed", "worker-phase", "vanished", "resized", "message", "restarts", "condition"],
)
def test_what_matters_is_written_at_once(after: Document) -> None:
    assert worth_writing(status(), after, 0.0)


def test_first_status_is_written_at_once() -> None:
    assert worth_writing(None, status(), None)
    assert worth_writing({}, status(), 0.0)


def test_countdown_is_no_news_but_another_reason_is() -> None:
    before = status(decided=decision("Restarting", "workers start again in 3.2 s"))
    assert not worth_writing(
        before, status(before, decided=decision("Restarting", "workers start again in 2.1 s")), 1.0
    )
    assert worth_writing(before, status(before, decided=decision("Restarting", "waiting for digits-small-0")), 1.0)


def test_balanced_job_is_written_as_seldom_as_figures_are() -> None:
    wanted = job({"training": {"steps": 100_000}})
    world = World(to_core(wanted), {"digits-small-0": 4.0, "digits-small-1": 2.0}, noise=0.05).start()
    written: Document | None = None
    moments: list[float] = []
    for moment in range(0, 600, 2):
        world.train(5)
        decided = world.tick(2.0)
        new = checked(next_status(written, wanted, world.seen(), decided, world.memory, NOW + moment))
        if worth_writing(written, new, moment - moments[-1] if moments else None):
            written = new
            moments.append(moment)
    settled = [moment for moment in moments if moment >= 60]
    assert len(settled) <= 540 / FIGURES_SECONDS


# --- a job that is refused

PROBLEMS = (Problem("spec.batching.policy", "Greedy is not a known policy"), Problem("spec.training", "is odd"))


def test_refused_job_names_every_field_at_fault() -> None:
    found = invalid_status(None, 4, PROBLEMS, NOW)
    message = "spec.batching.policy: Greedy is not a known policy; spec.training: is odd"
    assert found == {
        "observedGeneration": 4,
        "phase": "Invalid",
        "reason": message,
        "conditions": [
            {
                "type": "Invalid",
                "status": "True",
                "reason": "ManifestInvalid",
                "message": message,
                "observedGeneration": 4,
                "lastTransitionTime": "2026-01-31T12:00:00Z",
            }
        ],
        "workers": [],
    }


def test_running_job_that_is_edited_into_an_invalid_one_keeps_its_status() -> None:
    before = status()
    found = invalid_status(before, 4, PROBLEMS, NOW + 60)
    assert found["phase"] == "Running"
    assert found["workers"] == before["workers"]
    assert found["conditions"][1:] == before["conditions"]
    assert found["observedGeneration"] == 4


def test_refusal_is_reported_once_and_goes_when_the_job_is_corrected() -> None:
    first = invalid_status(None, 4, PROBLEMS, NOW)
    assert invalid_status(first, 4, PROBLEMS, NOW + 60) == first
    corrected = status(first)
    assert corrected["phase"] == "Running"
    assert [entry["type"] for entry in corrected["conditions"]] == ["Running", "Balanced"]
