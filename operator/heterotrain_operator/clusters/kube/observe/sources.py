"""Where a job's metrics are read: from its pods, or from the Prometheus server that its manifest names."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from heterotrain_operator.api import HeteroTrainingJob
from heterotrain_operator.api.spec.metrics import Prometheus
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway, GatewayError
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts
from heterotrain_operator.metrics.allowed import Server, allowed_server, same_server
from heterotrain_operator.metrics.client import Client
from heterotrain_operator.metrics.pods import scrape_pods
from heterotrain_operator.metrics.prometheus import BasicAuth, BearerToken, Credentials, PrometheusSource, Reading
from heterotrain_operator.metrics.shares import Shares

ANNOTATION_SERVERS = "heterotrain.dev/prometheus-servers"
"""Of a Secret: the URLs of the servers to which its credentials may be sent."""

CREDENTIAL_SECONDS = 60.0
"""A Secret or ConfigMap is read again after this time, for it may have been rotated."""

RENEWAL_SECONDS = 10.0
"""It is read again after this time where the server cannot be asked, for a rotated one may be why."""

QUERIES_EACH = 16
"""Most queries of one namespace at the same time."""

RENEWALS_EACH = 1
"""Most credentials of one namespace that are read at the same time, each in a thread of those that all have."""


class Source(Protocol):
    """Reads the metrics of a job's pods."""

    async def read(self, job: HeteroTrainingJob, namespace: str, pods: Sequence[PodFacts], now: float) -> Reading:
        """What the pods export, by name; never raises for what is not there. `now` in Unix seconds."""
        ...


class Sources:
    """The sources of all jobs, with what they share. For one event loop; `close` it there."""

    def __init__(self, gateway: Gateway, allowed: Sequence[str]) -> None:
        """`allowed` are the patterns of Prometheus servers that jobs may name."""
        self._gateway = gateway
        self._allowed = tuple(allowed)
        self._to_pods = Client()  # a proxy for the outside world knows nothing of pods
        self._to_servers = Client(proxies=True, per_owner=QUERIES_EACH)
        self._renewals = Shares(RENEWALS_EACH)

    def of(self, job: HeteroTrainingJob) -> Source:
        """What the job's manifest asks for."""
        if job.spec.metrics.source == "Prometheus":
            return FromPrometheus(self._gateway, self._to_servers, self._allowed, self._renewals)
        return FromPods(self._to_pods)

    async def close(self) -> None:
        """Close what is connected."""
        await self._to_pods.close()
        await self._to_servers.close()


class FromPods:
    """Asks every pod itself."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read(self, job: HeteroTrainingJob, namespace: str, pods: Sequence[PodFacts], now: float) -> Reading:
        """As Source."""
        addresses = {pod.name: pod.metrics_address for pod in pods}
        return Reading(await scrape_pods(self._client, addresses, owner=namespace))


class FromPrometheus:
    """Asks the server that the job names, with the credentials that lie in the job's namespace."""

    def __init__(self, gateway: Gateway, client: Client, allowed: Sequence[str], renewals: Shares) -> None:
        """`renewals` are the turns in which the jobs of a namespace read their credentials."""
        self._gateway = gateway
        self._client = client
        self._allowed = allowed
        self._renewals = renewals
        self._server: PrometheusSource | None = None
        self._settings: Prometheus | None = None
        self._problem = ""
        self._made_at = 0.0
        self._good_until = 0.0

    async def read(self, job: HeteroTrainingJob, namespace: str, pods: Sequence[PodFacts], now: float) -> Reading:
        """As Source; without pods nothing is asked, and so nothing is wrong."""
        if not pods:
            return Reading({})
        names = [pod.name for pod in pods]
        settings = job.spec.metrics.prometheus
        if settings != self._settings or not self._made_at <= now < self._good_until:
            async with self._renewals.of(namespace):
                await asyncio.to_thread(self._renew, settings, namespace, now)
        if self._server is None:
            return Reading(dict.fromkeys(names), problem=self._problem)
        since = {pod.name: pod.created_at for pod in pods if pod.created_at is not None}
        reading = await self._server.read(job.metadata.name, namespace, names, now, since=since)
        if reading.problem:
            self._good_until = min(self._good_until, self._made_at + RENEWAL_SECONDS)
        return reading

    def _renew(self, settings: Prometheus, namespace: str, now: float) -> None:
        self._settings, self._made_at, self._server = settings, now, None
        try:
            self._server = self._connect(settings, namespace)
        except (GatewayError, ValueError) as error:
            self._problem = f"spec.metrics.prometheus: {error}"
        self._good_until = now + (RENEWAL_SECONDS if self._server is None else CREDENTIAL_SECONDS)

    def _connect(self, settings: Prometheus, namespace: str) -> PrometheusSource:
        server = allowed_server(settings.url, namespace, self._allowed)
        return PrometheusSource(
            self._client,
            server,
            credentials=self._credentials(settings, namespace, server),
            ca_pem=None
            if settings.ca_ref is None
            else _entry(self._object("ConfigMap", namespace, settings.ca_ref.name), settings.ca_ref.key),
            max_age_seconds=settings.max_age_seconds,
        )

    def _credentials(self, settings: Prometheus, namespace: str, server: Server) -> Credentials | None:
        if settings.secret_ref is not None:
            secret = self._secret(settings.secret_ref.name, namespace, server)
            return BearerToken(_decoded(secret, settings.secret_ref.key))
        if settings.basic_auth_ref is not None:
            secret = self._secret(settings.basic_auth_ref.name, namespace, server)
            return BasicAuth(_decoded(secret, "username"), _decoded(secret, "password"))
        return None

    def _secret(self, name: str, namespace: str, server: Server) -> Mapping[str, Any]:
        """A Secret whose own annotation says that it is for the server: who may create jobs need not be who may read
        Secrets, and would otherwise have any of them sent to a server of their own.
        """
        secret = self._object("Secret", namespace, name)
        servers = (secret["metadata"].get("annotations") or {}).get(ANNOTATION_SERVERS, "")
        if not any(same_server(url, server, namespace, self._allowed) for url in re.split(r"[\s,]+", servers)):
            raise ValueError(
                f"Secret {name} is not sent to {server.url}: annotate it with {ANNOTATION_SERVERS}: {server.url} "
                "(URLs, separated by commas) if it is for that server"
            )
        return secret

    def _object(self, kind: str, namespace: str, name: str) -> Mapping[str, Any]:
        body = self._gateway.read(kind, namespace, name)
        if body is None:
            raise ValueError(f"there is no {kind} {namespace}/{name}")
        return body


def _entry(body: Mapping[str, Any], key: str) -> str:
    """Raises ValueError, naming object and key, if there is no such entry."""
    data = body.get("data") or {}
    if key not in data:
        raise ValueError(f"{body['kind']} {body['metadata']['name']} has no key {key!r}")
    return str(data[key])


def _decoded(secret: Mapping[str, Any], key: str) -> str:
    """Raises ValueError, without the value, if it is no text."""
    try:
        return base64.b64decode(_entry(secret, key), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError(f"Secret {secret['metadata']['name']}: {key} is no text") from None
