"""Where a job's metrics are read, and with which credentials; the Secrets and ConfigMaps lie in the job's namespace."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import trustme

from heterotrain_operator.clusters.kube.api_server.gateway import Gateway
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts
from heterotrain_operator.clusters.kube.observe.sources import (
    CREDENTIAL_SECONDS,
    RENEWAL_SECONDS,
    FromPods,
    FromPrometheus,
    Sources,
)
from heterotrain_operator.metrics.client import Client
from heterotrain_operator.metrics.prometheus import REFUSES, Reading
from heterotrain_operator.metrics.shares import Shares
from kube_server.api_server import ApiServer, StatusError
from unit.kube.documents import Document, job
from unit.metrics.servers import Script, serving

NOW = 1_000_000.0
ALLOWED = ("127.0.0.1",)
POD = PodFacts("digits-small-0", "u", "team-a", "digits", "small", 0, ip="127.0.0.1", ready_to_scrape=True)
EMPTY = {"status": "success", "data": {"resultType": "matrix", "result": []}}
TOKEN = {"secretRef": {"name": "prometheus", "key": "token"}}
BASIC = {"basicAuthRef": {"name": "prometheus"}}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is on this machine."""
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def script() -> Script:
    return Script(answer=EMPTY)


def case(settings: Document, data: dict[str, str] | None, outcome: str) -> Any:
    return pytest.param((settings, data, outcome), id=outcome)


Case = tuple[Document, dict[str, str] | None, str]


@pytest.fixture
def prometheus(script: Script) -> Iterator[str]:
    with serving(script) as address:
        yield address


class Patient:
    """A source, for tests that do nothing meanwhile; no connection outlives a look."""

    def __init__(self, source: FromPrometheus) -> None:
        self._source = source

    def read(self, *asked: Any) -> Reading:
        async def read() -> Reading:
            try:
                return await self._source.read(*asked)
            finally:
                await self._source._client.close()

        return asyncio.run(read())


@pytest.fixture
def source(gateway: Gateway) -> Patient:
    return Patient(FromPrometheus(gateway, Client(), ALLOWED, Shares(1)))


def secret(api: ApiServer, **data: str) -> None:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    api.put("secrets", {"metadata": {"name": "prometheus"}, "data": encoded})


def read(source: Patient, url: str, settings: Document | None = None, *, later: float = 0.0) -> Reading:
    given = {"source": "Prometheus", "prometheus": {"url": url, **(settings or {})}}
    return source.read(job({"metrics": given}), "team-a", [POD], NOW + later)


def basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def test_pod_that_does_not_answer_has_no_metrics() -> None:
    async def read() -> Reading:
        async with Client() as client:
            return await FromPods(client).read(job(), "team-a", [replace(POD, ip="127.255.0.9")], NOW)

    assert asyncio.run(read()).metrics == {POD.name: None}


@pytest.mark.parametrize(
    "case",
    [
        case(TOKEN, {"token": "s3cret\n"}, "Bearer s3cret"),
        case(BASIC, {"username": "ann", "password": "s3cret"}, basic("ann", "s3cret")),
    ],
)
def test_credentials_come_from_the_secret(
    source: Patient, api: ApiServer, script: Script, prometheus: str, case: Case
) -> None:
    settings, data, authorization = case
    assert data is not None
    secret(api, **data)
    script.authorization = authorization
    assert read(source, prometheus, settings).problem == ""


def test_secret_is_read_again_once_its_credentials_are_not_accepted(
    source: Patient, api: ApiServer, script: Script, prometheus: str
) -> None:
    secret(api, token="old")
    script.authorization = "Bearer old"
    assert read(source, prometheus, TOKEN).problem == ""
    script.authorization = "Bearer new"
    secret(api, token="new")
    assert read(source, prometheus, TOKEN, later=1.0).problem == REFUSES
    for later in (2.0, RENEWAL_SECONDS - 1):
        assert read(source, prometheus, TOKEN, later=later).problem == REFUSES
    assert len(api.reads) == 1
    assert read(source, prometheus, TOKEN, later=RENEWAL_SECONDS).problem == ""


def test_secret_is_read_again_now_and_then_and_sooner_where_there_is_none(
    source: Patient, api: ApiServer, script: Script, prometheus: str
) -> None:
    for later in (0.0, 1.0, RENEWAL_SECONDS - 1, RENEWAL_SECONDS):
        assert "there is no Secret" in read(source, prometheus, TOKEN, later=later).problem
    assert api.reads == [("get", "secrets", "prometheus")] * 2
    secret(api, token="s3cret")
    assert read(source, prometheus).problem == ""
    script.authorization = "Bearer s3cret"
    for later in (0.0, 1.0, CREDENTIAL_SECONDS - 1, CREDENTIAL_SECONDS):  # other settings count at once
        assert read(source, prometheus, TOKEN, later=later).problem == ""
    assert api.reads == [("get", "secrets", "prometheus")] * 4


@pytest.mark.parametrize(
    "case",
    [
        case(TOKEN, None, "there is no Secret team-a/prometheus"),
        case(TOKEN, {"other": "x"}, "Secret prometheus has no key 'token'"),
        case(BASIC, {"username": "ann"}, "Secret prometheus has no key 'password'"),
        case(TOKEN, {"token": ""}, "the bearer token is empty or holds characters that no header may hold"),
        case({"caRef": {"name": "ca", "key": "ca.crt"}}, None, "there is no ConfigMap team-a/ca"),
    ],
)
def test_what_is_missing_is_named(source: Patient, api: ApiServer, prometheus: str, case: Case) -> None:
    settings, data, problem = case
    if data is not None:
        secret(api, **data)
    found = read(source, prometheus, settings)
    assert found == Reading({POD.name: None}, problem=f"spec.metrics.prometheus: {problem}")


@pytest.mark.parametrize("value", ["%%%", base64.b64encode(b"\xff\xfe").decode()])
def test_value_that_is_no_text_is_named_and_not_shown(
    source: Patient, api: ApiServer, prometheus: str, value: str
) -> None:
    api.put("secrets", {"metadata": {"name": "prometheus"}, "data": {"token": value}})
    problem = read(source, prometheus, TOKEN).problem
    assert problem == "spec.metrics.prometheus: Secret prometheus: token is no text"


def test_secret_that_must_not_be_read_says_so(source: Patient, api: ApiServer, prometheus: str) -> None:
    def refuse(verb: str, plural: str, name: str) -> None:
        raise StatusError(403, "Forbidden", 'secrets "prometheus" is forbidden')

    api.refuse = refuse
    assert 'secrets "prometheus" is forbidden' in read(source, prometheus, TOKEN).problem


def test_authority_comes_from_the_config_map(source: Patient, api: ApiServer, script: Script) -> None:
    authority = trustme.CA()
    pem = authority.cert_pem.bytes().decode()
    api.put("configmaps", {"metadata": {"name": "ca"}, "data": {"ca.crt": pem}})
    with serving(script, authority) as url:
        assert read(source, url).problem != ""
        assert read(source, url, {"caRef": {"name": "ca", "key": "ca.crt"}}).problem == ""


def test_server_that_the_installation_does_not_allow_is_never_asked(gateway: Gateway, script: Script) -> None:
    with serving(script) as url:
        found = read(Patient(FromPrometheus(gateway, Client(), ("in-cluster",), Shares(1))), url)
    assert found.problem == "spec.metrics.prometheus: the operator's settings allow in-cluster, and not 127.0.0.1"
    assert script.asked == []


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


def test_server_is_not_asked_about_no_pods(source: Patient) -> None:
    away = job({"metrics": {"source": "Prometheus", "prometheus": {"url": "http://127.0.0.1:9"}}})
    assert source.read(away, "team-a", [], NOW) == Reading({})
