"""What is handed on of lists and watches: short, whatever somebody stores; over real HTTP."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from heterotrain_operator.clusters.kube.objects.names import LABEL_JOB
from heterotrain_operator.controller import short_documents
from heterotrain_operator.controller.short_documents import Pages, Response
from kube_server.api_server import ApiServer
from kube_server.serving import TOKEN, serving

pytestmark = pytest.mark.asyncio
LARGE = "x" * 100_000


def session() -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return aiohttp.ClientSession(headers=headers, middlewares=[Pages()], response_class=Response)


@pytest.mark.parametrize(
    ("plural", "prefix", "content", "most"),
    [
        ("pods", "/api/v1", {"spec": {"containers": [{"name": "t", "args": [LARGE]}]}}, 4),
        ("configmaps", "/api/v1", {"data": {"a": LARGE}}, 500),
        ("heterotrainingjobs", "/apis/heterotrain.dev/v1alpha1", {"spec": {"a": LARGE}}, 500),
    ],
)
async def test_pages_are_of_bounded_size_and_all_objects_are_short(
    monkeypatch: pytest.MonkeyPatch, plural: str, prefix: str, content: dict[str, object], most: int
) -> None:
    monkeypatch.setattr(short_documents, "PAGE_BYTES", 4 * len(LARGE) + 10_000)
    api = ApiServer()
    for number in range(30):
        api.put(plural, {"metadata": {"name": f"o-{number:02}", "labels": {LABEL_JOB: "digits"}}, **content})
    names, sizes, token = list[str](), list[int](), "begin"
    with serving(api) as url:
        async with session() as http:
            while token:
                query = {"limit": "500"} if token == "begin" else {"limit": "500", "continue": token}
                async with http.get(f"{url}{prefix}/{plural}", params=query) as answer:
                    page = await answer.json()
                names += [item["metadata"]["name"] for item in page["items"]]
                sizes.append(len(page["items"]))
                token = page["metadata"].get("continue", "")
                assert len(json.dumps(page)) < 20_000
    assert names == [f"o-{number:02}" for number in range(30)]
    assert max(sizes) <= most


async def test_events_of_a_watch_are_short_and_one_beyond_all_bounds_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(short_documents, "OBJECT_BYTES", 2 * len(LARGE))
    api = ApiServer()
    with serving(api) as url:
        async with session() as http:
            query = {"watch": "true", "resourceVersion": "99", "timeoutSeconds": "20"}
            async with http.get(f"{url}/api/v1/pods", params=query) as answer:
                for name, size in (("a", 1), ("b", 5), ("c", 1)):
                    pod = {"metadata": {"name": name, "annotations": {"a": LARGE * size}}}
                    await asyncio.to_thread(api.put, "pods", pod)
                events = answer.content.iter_chunked(2**16)
                lines = [await anext(events), await anext(events)]
    assert [json.loads(line)["object"]["metadata"]["name"] for line in lines] == ["a", "c"]
    assert all(len(line) < 1000 for line in lines)
    assert "is passed over" in caplog.text


async def test_watch_that_ends_at_once_begins_again_later_each_time() -> None:
    pauses = list[float]()

    async def paused(seconds: float) -> None:
        pauses.append(seconds)

    api = ApiServer()
    api.scripts = [[]] * 8
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with serving(api) as url:
        async with aiohttp.ClientSession(headers=headers, middlewares=[Pages(paused)]) as http:
            for _ in range(8):
                async with http.get(f"{url}/api/v1/pods", params={"watch": "true", "resourceVersion": "99"}) as answer:
                    await answer.read()
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0], "kopf would ask a thousand times a second"
