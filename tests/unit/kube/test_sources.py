"""Where a job's metrics are read, and with which credentials; the Secrets and ConfigMaps lie in the job's namespace."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import trustme

from heterotrain_operator.clusters.kube.api_server.gateway import Gateway
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts
from heterotrain_operator.clusters.kube.observe.sources import (
    ANNOTATION_SERVERS,
    CREDENTIAL_SECONDS,
    RENEWAL_SECONDS,
    FromPods,
    FromPrometheus,
    Sources,
)
from heterotrain_operator.metrics.client import Client
from heterotrain_operator.metrics.prometheus import REFUSES, Reading
from heterotrain_operator.metrics.shares import Shares
from kube_server.api_server import ApiServer, Document
from unit.kube.documents import job
from unit.kube.worlds import refusing
from unit.metrics.servers import Script, serving

NOW = 1_000_000.0
ALLOWED = ("127.0.0.1",)
POD = PodFacts("digits-small-0", "u", "team-a", "digits", "small", 0, ip="127.0.0.1", ready_to_scrape=True)
EMPTY = {"status": "success", "data": {"resultType": "matrix", "result": []}}
TOKEN = {"secretRef": {"name": "prometheus", "key": "token"}}
UNSET: Document = {}
BASIC = {"basicAuthRef": {"name": "prometheus"}}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is on this machine."""
    monkeypatch.setenv("no_proxy", "*")


class Asked:
    """A server of metrics and the source that asks it by one job's settings; no connection outlives a look."""

    def __init__(self, api: ApiServer, gateway: Gateway, url: str, script: Script) -> None:
        self.api, self.gateway, self.url, self.script = api, gateway, url, script
        self._source = FromPrometheus(gateway, Client(), ALLOWED, Shares(1))

    def read(self, settings: Document = UNSET, *, later: float = 0.0, pods: Sequence[PodFacts] = (POD,)) -> Reading:
        asks = job({"metrics": {"source": "Prometheus", "prometheus": {"url": self.url, **settings}}})

        async def read() -> Reading:
            try:
                return await self._source.read(asks, "team-a", pods, NOW + later)
            finally:
                await self._source._client.close()

        return asyncio.run(read())

    def problem(self, settings: Document = UNSET, *, later: float = 0.0) -> str:
        return self.read(settings, later=later).problem

    def secret(self, servers: str | None = None, **data: str) -> None:
        encoded = {
            key: base64.b64encode(value.encode(errors="surrogateescape")).decode() for key, value in data.items()
        }
        annotations = {ANNOTATION_SERVERS: f"http://elsewhere, {self.url}/" if servers is None else servers}
        self.api.put("secrets", {"metadata": {"name": "prometheus", "annotations": annotations}, "data": encoded})


@pytest.fixture
def asked(api: ApiServer, gateway: Gateway) -> Iterator[Asked]:
    script = Script(answer=EMPTY)
    with serving(script) as url:
        yield Asked(api, gateway, url, script)


def test_pod_that_does_not_answer_has_no_metrics() -> None:
    async def read() -> Reading:
        async with Client() as client:
            return await FromPods(client).read(job(), "team-a", [replace(POD, ip="127.255.0.9")], NOW)

    assert asyncio.run(read()).metrics == {POD.name: None}


@pytest.mark.parametrize(
    ("settings", "data", "authorization"),
    [
        (TOKEN, {"token": "s3cret\n"}, "Bearer s3cret"),
        (BASIC, {"username": "ann", "password": "s3cret"}, f"Basic {base64.b64encode(b'ann:s3cret').decode()}"),
    ],
    ids=["token", "basic"],
)
def test_credentials_come_from_the_secret(asked: Asked, settings: Document, data: Any, authorization: str) -> None:
    asked.secret(**data)
    asked.script.authorization = authorization
    assert asked.problem(settings) == ""


@pytest.mark.parametrize("servers", ["", "http://127.0.0.1:9", ",:x http://[", "{url}0", "{url}/a"])
def test_secret_goes_only_to_servers_that_it_names_itself(asked: Asked, servers: str) -> None:
    asked.secret(servers.format(url=asked.url), token="s3cret", username="ann", password="s3cret")
    for settings in (TOKEN, BASIC):
        assert f"annotate it with {ANNOTATION_SERVERS}: {asked.url}" in asked.problem(settings)
    assert asked.script.asked == []


def test_secret_is_read_again_now_and_then_and_sooner_where_there_is_none_or_it_is_not_accepted(asked: Asked) -> None:
    for later in (0.0, 1.0, RENEWAL_SECONDS - 1, RENEWAL_SECONDS):
        assert "there is no Secret" in asked.problem(TOKEN, later=later)
    assert asked.api.reads == [("get", "secrets", "prometheus")] * 2
    asked.secret(token="old")
    assert asked.problem() == ""
    asked.script.authorization = "Bearer old"
    for later in (0.0, 1.0, CREDENTIAL_SECONDS - 1, CREDENTIAL_SECONDS):  # other settings count at once
        assert asked.problem(TOKEN, later=later) == ""
    assert len(asked.api.reads) == 4
    asked.script.authorization = "Bearer new"
    asked.secret(token="new")
    for later in (1.0, 2.0, RENEWAL_SECONDS - 1):
        assert asked.problem(TOKEN, later=CREDENTIAL_SECONDS + later) == REFUSES
    assert len(asked.api.reads) == 4
    assert asked.problem(TOKEN, later=CREDENTIAL_SECONDS + RENEWAL_SECONDS) == ""


@pytest.mark.parametrize(
    ("settings", "data", "problem"),
    [
        (TOKEN, {"other": "x"}, "Secret prometheus has no key 'token'"),
        (BASIC, {"username": "ann"}, "Secret prometheus has no key 'password'"),
        (TOKEN, {"token": ""}, "the bearer token is empty or holds characters that no header may hold"),
        (TOKEN, {"token": "\udcff"}, "Secret prometheus: token is no text"),
        ({"caRef": {"name": "ca", "key": "ca.crt"}}, {}, "there is no ConfigMap team-a/ca"),
    ],
    ids=["key", "password", "empty", "bytes", "authority"],
)
def test_what_is_missing_or_no_text_is_named(asked: Asked, settings: Document, data: Any, problem: str) -> None:
    asked.secret(**data)
    assert asked.read(settings) == Reading({POD.name: None}, problem=f"spec.metrics.prometheus: {problem}")


def test_secret_that_must_not_be_read_says_so(asked: Asked) -> None:
    asked.api.refuse = refusing("get", "secrets", 403, "is forbidden")
    assert "is forbidden: prometheus" in asked.problem(TOKEN)


def test_authority_comes_from_the_config_map(asked: Asked) -> None:
    authority = trustme.CA()
    pem = authority.cert_pem.bytes().decode()
    asked.api.put("configmaps", {"metadata": {"name": "ca"}, "data": {"ca.crt": pem}})
    with serving(asked.script, authority) as asked.url:
        assert asked.problem() != ""
        assert asked.problem({"caRef": {"name": "ca", "key": "ca.crt"}}) == ""


def test_server_that_the_installation_does_not_allow_is_never_asked_nor_one_about_no_pods(asked: Asked) -> None:
    assert asked.read(pods=()) == Reading({})
    asked.url = "http://localhost:9"
    assert asked.problem() == "spec.metrics.prometheus: the operator's settings allow 127.0.0.1, and not localhost"
    assert asked.script.asked == []


def test_one_namespaces_credentials_take_few_of_the_threads_that_all_have() -> None:
    released = threading.Event()

    class Slow(Gateway):
        def __init__(self) -> None:
            """It speaks to nobody."""

        def read(self, kind: str, namespace: str, name: str) -> None:
            if namespace == "theirs":
                released.wait()

    asks = job({"metrics": {"source": "Prometheus", "prometheus": {"url": "http://127.0.0.1:9", **TOKEN}}})

    async def both() -> Reading:
        sources = Sources(Slow(), ALLOWED)
        looks = [asyncio.ensure_future(sources.of(asks).read(asks, "theirs", [POD], NOW)) for _ in range(64)]
        try:
            await asyncio.sleep(0)
            async with asyncio.timeout(10):
                return await sources.of(asks).read(asks, "ours", [POD], NOW)
        finally:
            released.set()
            await asyncio.gather(*looks)
            await sources.close()

    assert "there is no Secret ours/prometheus" in asyncio.run(both()).problem
