"""Drafts of the status are compared, and what is written is what would be if every one of them were checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from heterotrain_operator.api import to_core
from heterotrain_operator.clusters.kube.act import report
from heterotrain_operator.clusters.kube.act.report import Report
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway, GatewayError
from heterotrain_operator.clusters.kube.observe.watched import Watched
from heterotrain_operator.clusters.kube.status.job_status import next_status
from heterotrain_operator.clusters.kube.status.schema import checked
from heterotrain_operator.clusters.kube.status.worth import FIGURES_SECONDS, worth_writing
from heterotrain_operator.core.model import Decision, JobPhase, Seen
from unit.core.traces import World
from unit.kube.documents import Document, job
from unit.kube.statuses import MEMORY, NOW, decision, plan, status, training

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


def test_a_round_with_no_news_checks_no_status(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Statuses()
    ours = Report(gateway)
    write(ours, training())
    monkeypatch.setattr(report, "checked", lambda status: pytest.fail("a status was checked"))
    write(ours, training(), now=NOW + 2 * FIGURES_SECONDS)
    write(ours, training(1.1, 1.0, 1.0, step=121), now=NOW + FIGURES_SECONDS - 1)
    assert len(gateway.written) == 1


def test_figures_that_were_not_worth_a_write_are_written_when_they_are_due() -> None:
    gateway = Statuses()
    ours = Report(gateway)
    write(ours, training())
    for seconds in (1, FIGURES_SECONDS - 1, FIGURES_SECONDS):
        write(ours, training(step=121), now=NOW + seconds)
    assert [status["step"] for status in gateway.written] == [120, 121]


def test_a_status_that_could_not_be_written_is_written_the_next_time() -> None:
    gateway = Statuses()
    ours = Report(gateway)
    write(ours, training())
    gateway.away = True
    with pytest.raises(GatewayError):
        write(ours, training(), decided=decision(plan=plan(8)), now=NOW + 2)
    gateway.away = False
    write(ours, training(), decided=decision(plan=plan(8)), now=NOW + 4)
    assert [status["planVersion"] for status in gateway.written] == [7, 8]


def test_a_status_that_the_schema_does_not_admit_is_neither_written_nor_gone_on_from() -> None:
    gateway = Statuses()
    ours = Report(gateway)
    write(ours, training())
    with pytest.raises(ValueError, match="phase"):
        write(ours, training(), decided=decision(cast("JobPhase", "Odd")))
    write(ours, training(), now=NOW + 2)
    assert len(gateway.written) == 1
