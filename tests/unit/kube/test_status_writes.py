"""The status is written no oftener than it is worth, checked against the schema, and says why a job is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from heterotrain.contract import Evaluated
from heterotrain_operator.api import Problem, to_core
from heterotrain_operator.clusters.kube.act.report import FIGURES_SECONDS, Report, worth_writing
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway, GatewayError
from heterotrain_operator.clusters.kube.observe.watched import Watched
from heterotrain_operator.clusters.kube.status.job_status import invalid, next_status, refused_status
from heterotrain_operator.clusters.kube.status.schema import checked
from heterotrain_operator.core.model import Condition, Decision, JobPhase, Seen
from heterotrain_operator.core.remembered.members import Passage, Passages
from kube_server.api_server import Document
from unit.core.traces import World
from unit.kube.documents import job
from unit.kube.statuses import MEMORY, NOW, VERDICT, condition, decision, plan, status, training

UNBALANCED = Condition("Balanced", False, "Unbalanced", "as measured")
UNMEASURED = Condition("Balanced", None, "NotMeasured", "not yet")


def test_nothing_new_is_never_written() -> None:
    assert not worth_writing(status(), status(status(), now=NOW + 600), None)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -1.0])
def test_measurements_that_are_no_numbers_are_no_news_each_time(odd: float) -> None:
    """NaN differs from itself, and so does, since Python 3.13, a dataclass that holds it."""
    figures = {"wait_seconds": odd, "loss": odd, "steps": odd, "memory_bytes": odd, "cpu_limit": odd}
    workers = tuple(replace(worker, cpu_limit=odd) for worker in training(odd, 1.0, odd, **figures).workers)
    decided = decision(imbalance=odd, batch_limits=(("digits-small-0", 7),))
    first = status(seen=Seen(workers, plan()), decided=decided)
    assert not worth_writing(first, status(first, Seen(workers, plan()), decided), None)


STRAGGLES = decision(stragglers=(VERDICT,))
WORSE = decision(stragglers=(replace(VERDICT, slowdown=2.4),))
JOINED = Passages((Passage("digits-small-1", 90, NOW - 5, "more workers are wanted"),))


@pytest.mark.parametrize(
    ("after", "before"),
    [
        (status(seen=training(1.1, 1.0, 1.0, step=121, epoch=5)), status()),
        (status(seen=training(wait_seconds=0.5, observed_seconds=10.0, cpu_wait_seconds=1.0)), status()),
        (status(seen=training(phase="checkpointing", evaluated=Evaluated(100, (("f1", 0.5),)))), status()),
        (status(decided=decision(reason="digits-small-0 has 9 of 10 measured steps", imbalance=0.1)), status()),
        (status(decided=decision(batch_limits=(("digits-small-1", 61),))), status()),
        (status(decided=decision(conditions=(*decision().conditions[:1], UNBALANCED))), status()),
        (status(decided=WORSE), status(decided=STRAGGLES)),
    ],
    ids=["steps", "waiting", "pause", "reason", "limit", "balance", "straggler"],
)
def test_figures_are_written_now_and_then(after: Document, before: Document) -> None:
    assert after != before
    assert not worth_writing(before, after, FIGURES_SECONDS - 1)
    assert worth_writing(before, after, FIGURES_SECONDS)
    assert worth_writing(before, after, None)


@pytest.mark.parametrize(
    "after",
    [
        status(decided=decision("Restarting")),
        status(decided=decision(plan=plan(8))),
        status(seen=training(phase="reforming")),
        status(seen=Seen(training().workers[:2], plan())),
        status(seen=Seen(tuple(replace(w, message="being deleted") for w in training().workers), plan())),
        status(memory=replace(MEMORY, budget=replace(MEMORY.budget, restarts=2))),
        status(memory=replace(MEMORY, passages=JOINED)),
        status(decided=decision(slowed_by=(("digits-small-0", "Neighbour"),))),
        status(decided=decision(conditions=(*decision().conditions[:1], UNMEASURED))),
        status(decided=STRAGGLES),
    ],
    ids=["phase", "plan", "reforming", "fewer", "deleted", "restarts", "joined", "slowed", "unmeasured", "straggler"],
)
def test_what_matters_is_written_at_once(after: Document) -> None:
    assert worth_writing(status(), after, 0.0)
    assert worth_writing(None, after, None)


def test_countdown_is_no_news_but_another_reason_is() -> None:
    before = status(decided=decision("Restarting", "workers start again in 3.2 s"))
    assert not worth_writing(
        before, status(before, decided=decision("Restarting", "workers start again in 2.1 s")), 1.0
    )
    assert worth_writing(before, status(before, decided=decision("Restarting", "waiting for digits-small-0")), 1.0)


PROBLEMS = (Problem("spec.batching.policy", "Greedy is not a known policy"), Problem("spec.training", "is odd"))


def test_refusal_is_reported_once_and_goes_when_the_job_is_corrected() -> None:
    first = refused_status(None, 4, invalid(PROBLEMS), NOW)
    assert (first["phase"], first["observedGeneration"], first["workers"]) == ("Invalid", 4, [])
    assert first["reason"] == "spec.batching.policy: Greedy is not a known policy; spec.training: is odd"
    assert condition(first, "Invalid")["message"] == first["reason"]
    assert refused_status(first, 4, invalid(PROBLEMS), NOW + 60) == first
    before = status()
    edited = refused_status(before, 4, invalid(PROBLEMS), NOW)
    assert (edited["phase"], edited["workers"], edited["conditions"][1:]) == (
        "Running",
        before["workers"],
        before["conditions"],
    )
    corrected = status(first)
    assert corrected["phase"] == "Running"
    assert [entry["type"] for entry in corrected["conditions"]] == ["Running", "Balanced"]


JOB = job({"training": {"steps": 100_000}})
BODY: Document = {"metadata": {"namespace": "team-a", "name": "digits", "uid": "u"}}


class Statuses(Gateway):
    """An API server to which only statuses are written, unless it is `away`."""

    def __init__(self) -> None:
        self.written: list[Mapping[str, Any]] = []
        self.away = False

    def write_status(self, namespace: str, name: str, uid: str, status: Mapping[str, Any]) -> None:
        """Keep it."""
        if self.away:
            raise GatewayError("away")
        self.written.append(status)


def write(to: Report, seen: Seen, *, decided: Decision | None = None, now: float = NOW) -> None:
    to.write(Watched(BODY, JOB, (), ()), seen, decided or decision(), memory=MEMORY, now=now)


@pytest.mark.parametrize("found", [None, status()], ids=["new", "found"])
def test_what_is_written_is_what_would_be_if_every_draft_were_checked(found: Document | None) -> None:
    world = World(to_core(JOB), {"digits-small-0": 4.0, "digits-small-1": 2.0}, noise=0.05).start()
    gateway = Statuses()
    ours = Report(gateway)
    ours.take_in(found)
    known = written = found
    expected: list[Document] = []
    written_at: float | None = None
    for moment in range(0, 300, 2):
        world.train(5)
        decided = world.tick(2.0)
        now, seen = NOW + moment, world.seen()
        ours.write(Watched(BODY, JOB, (), ()), seen, decided, memory=world.memory, now=now)
        known = checked(next_status(known, JOB, seen, decided, world.memory, now))
        if worth_writing(written, known, None if written_at is None else now - written_at):
            written, written_at = known, now
            expected.append(known)
    assert gateway.written == expected
    assert len(expected) > 300 / FIGURES_SECONDS / 2


def test_figures_are_written_when_they_are_due_and_what_could_not_be_written_the_next_time() -> None:
    gateway = Statuses()
    ours = Report(gateway)
    write(ours, training())
    for seconds in (1, FIGURES_SECONDS - 1, FIGURES_SECONDS):
        write(ours, training(step=121), now=NOW + seconds)
    assert [status["step"] for status in gateway.written] == [120, 121]
    gateway.away = True
    with pytest.raises(GatewayError):
        write(ours, training(), decided=decision(plan=plan(8)), now=NOW + 32)
    gateway.away = False
    write(ours, training(), decided=decision(plan=plan(8)), now=NOW + 34)
    assert [status["planVersion"] for status in gateway.written] == [7, 7, 8]


def test_a_status_that_the_schema_does_not_admit_is_neither_written_nor_gone_on_from() -> None:
    gateway = Statuses()
    ours = Report(gateway)
    write(ours, training())
    with pytest.raises(ValueError, match="phase"):
        write(ours, training(), decided=decision(cast("JobPhase", "Odd")))
    write(ours, training(), now=NOW + 2)
    assert len(gateway.written) == 1
