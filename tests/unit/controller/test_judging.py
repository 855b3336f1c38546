"""What a job costs that somebody else writes: it is judged once, within bounds, and tenants take turns."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import pytest

from heterotrain_operator.api.problems import MAX_SPEC_VALUES, MOST_PROBLEMS
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway
from heterotrain_operator.clusters.kube.api_server.transport import TooLargeError
from heterotrain_operator.controller import judging
from heterotrain_operator.controller.judging import QUICK_BYTES, READS_EACH, Documents, Found
from kube_server.api_server import Document, merged
from unit.kube.worlds import JOB

pytestmark = pytest.mark.asyncio
T = TypeVar("T")


def job(entries: list[Any], *, namespace: str = "team-b", name: str = "theirs", generation: int = 1) -> Document:
    container = {"name": "t", "image": "x", "command": ["x"], "env": entries}
    group = {"name": "w", "template": {"spec": {"containers": [container]}}}
    metadata = {"namespace": namespace, "name": name, "uid": name, "generation": generation}
    spec = {"workerGroups": [group], "training": {"globalBatchSize": 8, "steps": 10}}
    return merged(JOB, {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})


def variables(number: int) -> list[Document]:
    return [{"name": f"V{index}", "value": "x"} for index in range(number)]


class Stored:
    """The jobs that an API server has, in the gateway's place; `read` are the names of those that were read."""

    def __init__(self, *jobs: Document) -> None:
        self.jobs = {body["metadata"]["name"]: body for body in jobs}
        self.read: list[str] = []

    def job_text(self, metadata: Document, *, most: int) -> bytes:
        self.read.append(metadata["name"])
        text = json.dumps(self.jobs[metadata["name"]]).encode()
        if len(text) > most:
            raise TooLargeError("too large")
        return text


async def in_this_thread(blocking: Callable[..., T], /, *arguments: Any) -> T:
    return blocking(*arguments)


async def found(documents: Documents, body: Document, known: judging.Judged | None = None) -> Found:
    return await documents.read(body["metadata"], in_this_thread, known)


def of(*jobs: Document) -> Documents:
    return Documents(cast(Gateway, Stored(*jobs)))


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([{"name": "V", "value": "x" * 2**18}], "spec: must be of at most 262144 bytes as JSON"),
        ([{}] * MAX_SPEC_VALUES, f"spec: must have at most {MAX_SPEC_VALUES} values"),
        ([{"name": "V", "value": "x" * judging.MAX_JOB_BYTES}], f"has more than {judging.MAX_JOB_BYTES} bytes"),
        (json.loads("[" * 900 + "]" * 900), "(spec.*)?is nested (more than 64 levels|too) deep"),
    ],
    ids=["bytes", "values", "all of it", "depth"],
)
async def test_job_beyond_the_bounds_is_named_and_not_kept(entries: list[Any], why: str) -> None:
    body = job(entries)
    judged = (await found(of(body), body)).judged
    assert judged.job is None
    (problem,) = judged.problems
    assert re.match(why, str(problem))


async def test_first_dozen_faults_are_named() -> None:
    body = job([{}] * 2000)
    assert len((await found(of(body), body)).judged.problems) == MOST_PROBLEMS


async def test_edition_is_judged_once_and_of_the_document_only_what_is_used_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = job(variables(3))
    body["metadata"] |= {"annotations": {"a": "x" * 1000}, "managedFields": [{}]}
    documents = of(body)
    first = await found(documents, body)
    assert first.body["metadata"] == {"namespace": "team-b", "name": "theirs", "uid": "theirs", "generation": 1}
    assert (set(first.body), first.body["status"]) == (
        {"apiVersion", "kind", "metadata", "status"},
        {"phase": "Running"},
    )
    monkeypatch.setattr(judging, "parse_stored", None)
    assert (await found(documents, body, first.judged)).judged is first.judged


async def test_large_documents_are_read_in_turn_and_small_ones_between_them() -> None:
    large = [job(variables(3000), name=f"large-{number}") for number in range(4)]
    small = job(variables(3), namespace="team-a", name="ours")
    assert len(json.dumps(large[0])) > QUICK_BYTES
    documents, order = of(*large, small), list[str]()

    async def read(body: Document) -> None:
        assert (await found(documents, body)).judged.job is not None
        order.append(body["metadata"]["name"])

    await asyncio.gather(*map(read, (*large, small)))
    assert "ours" in order[:2], "one of theirs may be under way"


async def test_one_namespace_has_room_for_so_much_and_again_once_a_job_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [job(variables(1000), name=name) for name in ("a", "b", "c")]
    other = job(variables(1000), namespace="team-a", name="d")
    documents = of(*jobs, other)
    monkeypatch.setattr(judging, "KEPT_BYTES", 900_000)  # each takes some 400,000
    judged = [(await found(documents, body)).judged for body in (*jobs, other)]
    assert [each.job is not None for each in judged] == [True, True, False, True]
    assert "the jobs of namespace team-b would take more than" in str(judged[2].problems[0])
    assert not judged[2].lasting
    documents.forget("team-b", "a")
    assert (await found(documents, jobs[2], judged[2])).judged.job is not None


async def test_room_is_taken_by_specs_and_not_by_what_grows_while_a_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    body = job(variables(3))
    body["status"]["message"] = "x" * 2**14
    monkeypatch.setattr(judging, "KEPT_BYTES", 2**14)
    assert (await found(of(body), body)).judged.job is not None


async def test_job_deleted_while_it_is_judged_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (job(variables(1000), name=name) for name in ("a", "b"))
    other = job([], namespace="team-a", name="c")
    documents, judges, deleted = of(first, second, other), threading.Event(), threading.Event()
    monkeypatch.setattr(judging, "KEPT_BYTES", 500_000)  # each takes some 400,000
    parse = judging.parse_stored

    def slowly(document: object) -> Any:
        judges.set()
        deleted.wait(60)
        return parse(document)

    monkeypatch.setattr(judging, "parse_stored", slowly)
    reading = asyncio.ensure_future(found(documents, first))
    await asyncio.to_thread(judges.wait, 60)
    reading.cancel()
    deleted.set()
    await found(documents, other)  # in the same thread, after the first
    assert (await found(documents, second)).judged.job is not None


async def test_documents_wait_for_their_turn_in_small_numbers_also_if_their_jobs_are_deleted() -> None:
    jobs = [job(variables(3), name=str(number)) for number in range(20)]
    stored = Stored(*jobs)
    documents = Documents(cast(Gateway, stored), cpu_seconds=iter(range(0, 10**6, 1000)).__next__)
    reading = [asyncio.ensure_future(found(documents, body)) for body in jobs]
    for _ in range(3):
        await asyncio.wait(reading, timeout=0.1)
        reading.pop(0).cancel()
    assert len(stored.read) == READS_EACH, "the first one was judged, at great cost, and its tenant rests"
    for each in reading:
        each.cancel()
