"""`heterotrain watch`: every change of a job, across watches that end, expire and break, until the job ends."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from heterotrain_operator.cli.cluster.watch import GIVE_UP_SECONDS, follow, watch
from heterotrain_operator.clusters.kube.api_server.access import Access, connect
from heterotrain_operator.clusters.kube.reading import Reader
from heterotrain_operator.clusters.kube.reading_errors import RefusedError, UnreachableError
from kube_server.api_server import CUT, GONE, ApiServer, StatusError
from unit.cli.cluster_jobs import Trained, job_document, trained
from unit.cli.conftest import Run

Document = dict[str, Any]


class Time:
    """A clock that only pauses move."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def pause(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def reader(config: Path) -> Iterator[Reader]:
    with Reader(connect(Access(kubeconfig=str(config)))) as reader:
        yield reader


def at(step: int, version: int, phase: str = "Running", **changes: Any) -> Document:
    """The job at a step, as of a resource version."""
    job = job_document()
    job["metadata"]["resourceVersion"] = str(version)
    job["status"] = {"phase": phase, "step": step, "totalSteps": 9, "planVersion": 1, **changes}
    return job


def modified(job: Document) -> Document:
    return {"type": "MODIFIED", "object": job}


def bookmark(version: int) -> Document:
    return {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}


def gone(version: str = "too old resource version") -> Document:
    return {"type": "ERROR", "object": StatusError(410, "Expired", version).status}


def followed(reader: Reader, steps: int) -> tuple[list[int | None], list[str]]:
    """The steps at which the job is seen, until it is deleted or so many were seen; and what is said meanwhile."""
    time, said = Time(), list[str]()
    seen: list[int | None] = []
    for job in follow(reader, "digits", clock=time.now, pause=time.pause, say=said.append):
        seen.append(None if job is None else job["status"]["step"])
        if len(seen) == steps:
            break
    return seen, said


def watched_from(api: ApiServer) -> list[str]:
    """The moments from which was watched."""
    return [query["resourceVersion"] for _, query in api.asked if query.get("watch")]


def test_every_change_is_seen_across_watches_that_end(api: ApiServer, reader: Reader) -> None:
    api.restore("heterotrainingjobs", at(0, 50))
    api.scripts = [[modified(at(1, 101)), bookmark(140)], [], [modified(at(2, 150)), modified(at(3, 151))]]
    assert followed(reader, 4) == ([0, 1, 2, 3], [])
    assert watched_from(api) == ["100", "140", "140"]


@pytest.mark.parametrize("how", ["event", "answer"])
def test_expired_watch_looks_again(how: str, api: ApiServer, reader: Reader) -> None:
    api.restore("heterotrainingjobs", at(0, 50))
    api.scripts = [[GONE] if how == "answer" else [gone()], [modified(at(5, 101))]]
    assert followed(reader, 3) == ([0, 0, 5], [])
    assert watched_from(api) == ["100", "100"]


def test_broken_watch_is_taken_up_where_it_was(api: ApiServer, reader: Reader) -> None:
    api.restore("heterotrainingjobs", at(0, 50))
    api.scripts = [[modified(at(1, 101)), CUT], [modified(at(2, 102))]]
    seen, said = followed(reader, 3)
    assert seen == [0, 1, 2]
    assert watched_from(api) == ["100", "101"]
    assert len(said) == 1
    assert said[0].endswith("trying again for 5m")


def test_silent_cluster_is_given_up_after_a_while(api: ApiServer, reader: Reader) -> None:
    api.restore("heterotrainingjobs", at(0, 50))
    time, said = Time(), list[str]()
    changes = follow(reader, "digits", clock=time.now, pause=time.pause, say=said.append)
    next(changes)
    api.broken = True
    with pytest.raises(UnreachableError, match="503"):
        next(changes)
    assert time.seconds >= GIVE_UP_SECONDS
    assert len(said) == 1, "it is said once that the cluster is away"


def test_rights_that_end_meanwhile_end_the_watch(api: ApiServer, reader: Reader) -> None:
    api.restore("heterotrainingjobs", at(0, 50))
    changes = follow(reader, "digits", clock=float, pause=lambda _: None, say=print)
    next(changes)
    api.forbidden = {"heterotrainingjobs"}
    with pytest.raises(RefusedError, match="you may not watch heterotrainingjobs"):
        next(changes)


def test_deleted_job_ends_the_watch(api: ApiServer, reader: Reader) -> None:
    api.restore("heterotrainingjobs", at(0, 50))
    api.scripts = [[{"type": "DELETED", "object": at(3, 101)}]]
    assert followed(reader, 9) == ([0, None], [])


@pytest.mark.parametrize("now", ["nothing", "another"])
def test_job_that_went_unseen_ends_the_watch(now: str, api: ApiServer, reader: Reader) -> None:
    api.restore("heterotrainingjobs", at(0, 50))
    api.scripts = [[GONE]]
    time = Time()
    changes = follow(reader, "digits", clock=time.now, pause=time.pause, say=print)
    next(changes)
    again = at(0, 90)
    again["metadata"]["uid"] = "another"
    api.clear("heterotrainingjobs")
    if now == "another":
        api.restore("heterotrainingjobs", again)
    assert list(changes) == [None]


REASON = "all 3 workers finished [the] job's last step"


@pytest.mark.parametrize(
    ("last", "code", "line"),
    [
        (modified(at(9, 102, "Succeeded", reason=REASON)), 0, f"digits: Succeeded, step 9/9, plan 1: {REASON}"),
        (modified(at(9, 102, "Failed", reason=REASON)), 1, f"digits: Failed, step 9/9, plan 1: {REASON}"),
        ({"type": "DELETED", "object": at(3, 102)}, 1, "was deleted"),
    ],
    ids=["Succeeded", "Failed", "deleted"],
)
def test_end_of_the_job_is_the_exit_code(
    last: Document, code: int, line: str, *, api: ApiServer, config: Path, heterotrain: Run
) -> None:
    api.restore("heterotrainingjobs", at(0, 50))
    api.scripts = [[modified(at(4, 101)), last, modified(at(0, 103))]]
    said = heterotrain("watch", "digits", "--kubeconfig", config)
    assert said.code == code
    lines = [line.split(" ", 1)[1] for line in said.out.splitlines()]
    assert lines == ["digits: Running, step 0/9, plan 1", "digits: Running, step 4/9, plan 1", line]


def test_job_that_ended_before_is_not_waited_for(api: ApiServer, config: Path, heterotrain: Run) -> None:
    api.restore("heterotrainingjobs", at(9, 50, "Succeeded"))
    assert heterotrain("watch", "digits", "--kubeconfig", config).code == 0
    assert watched_from(api) == []


def test_lines_come_with_changes_only(api: ApiServer, config: Path, heterotrain: Run) -> None:
    job: Trained = trained()
    first, same, moved = (dict(job.document) for _ in range(3))
    same["metadata"] = {**job.document["metadata"], "resourceVersion": "101"}
    moved["status"] = {**job.document["status"], "phase": "Succeeded"}
    api.restore("heterotrainingjobs", first)
    api.scripts = [[modified(same), modified(moved)]]
    lines = heterotrain("watch", "digits", "--kubeconfig", config).out.splitlines()
    assert len(lines) == 2
    assert "plan 2, batches 110 / 55 / 27, own time 110 ms / 110 ms / 120 ms: Optimal keeps" in lines[0]
    assert lines[1].endswith("own time 110 ms / 110 ms / 120 ms"), "the reason is not repeated"


def test_terminal_shows_a_table_of_now(api: ApiServer, reader: Reader) -> None:
    job: Trained = trained()
    ended = {**job.document, "status": {**job.document["status"], "phase": "Succeeded"}}
    api.restore("heterotrainingjobs", job.document)
    api.scripts = [[modified(ended)]]
    console = Console(file=io.StringIO(), force_terminal=True, width=200, markup=False, highlight=False)
    time = Time()
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert watch(reader, "digits", console, now=lambda: moment, clock=time.now, pause=time.pause) == 0
    assert isinstance(console.file, io.StringIO)
    first, *_, last = console.file.getvalue().split("in team: ")[1:]
    assert "Running" in first
    assert "Succeeded" in last
    assert "WORKER" in last
    assert "OF LATE" in last, "and how waiting went"
