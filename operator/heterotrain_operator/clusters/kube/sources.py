"""Where a job's metrics are read: from its pods, or from the Prometheus server that its manifest names."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from heterotrain_operator.api import HeteroTrainingJob
from heterotrain_operator.api.policies import Prometheus
from heterotrain_operator.clusters.kube.gateway import Gateway, GatewayError
from heterotrain_operator.clusters.kube.observed import PodFacts
from heterotrain_operator.metrics.credentials import BasicAuth, BearerToken, Credentials
from heterotrain_operator.metrics.pods import scrape_pods
from heterotrain_operator.metrics.prometheus import PrometheusSource, Reading

logger = logging.getLogger(__name__)

CREDENTIAL_SECONDS = 60.0
"""For so long a Secret or ConfigMap that was read is good; then it may have been rotated."""

RENEWAL_SECONDS = 10.0
"""And for so long at least where the server cannot be asked, which may be for want of a rotated one."""


class Source(Protocol):
    """Reads the metrics of a job's pods."""

    def read(self, job: HeteroTrainingJob, namespace: str, pods: Sequence[PodFacts], now: float) -> Reading:
        """What the pods export, by name; never raises for what is not there. `now` in Unix seconds."""
        ...


class FromPods:
    """Asks every pod itself."""

    def read(self, job: HeteroTrainingJob, namespace: str, pods: Sequence[PodFacts], now: float) -> Reading:
        """As Source."""
        return Reading(scrape_pods({pod.name: pod.metrics_address for pod in pods}))


class FromPrometheus:
    """Asks the server that the job names, with the credentials that lie in the job's namespace."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._server: PrometheusSource | None = None
        self._settings: Prometheus | None = None
        self._problem = ""
        self._made_at = 0.0
        self._good_until = 0.0

    def read(self, job: HeteroTrainingJob, namespace: str, pods: Sequence[PodFacts], now: float) -> Reading:
        """As Source; without pods nothing is asked, and so nothing is wrong."""
        if not pods:
            return Reading({})
        names = [pod.name for pod in pods]
        settings = job.spec.metrics.prometheus
        if settings != self._settings or not self._made_at <= now < self._good_until:
            self._renew(settings, namespace, now)
        if self._server is None:
            return Reading(dict.fromkeys(names), problem=self._problem)
        since = {pod.name: pod.created_at for pod in pods if pod.created_at is not None}
        reading = self._server.read(job.metadata.name, namespace, names, now, since=since)
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
        return PrometheusSource(
            settings.url,
            credentials=self._credentials(settings, namespace),
            ca_pem=None
            if settings.ca_ref is None
            else _entry(self._object("ConfigMap", namespace, settings.ca_ref.name), settings.ca_ref.key),
            max_age_seconds=settings.max_age_seconds,
        )

    def _credentials(self, settings: Prometheus, namespace: str) -> Credentials | None:
        if settings.secret_ref is not None:
            secret = self._object("Secret", namespace, settings.secret_ref.name)
            return BearerToken(_decoded(secret, settings.secret_ref.key))
        if settings.basic_auth_ref is not None:
            secret = self._object("Secret", namespace, settings.basic_auth_ref.name)
            return BasicAuth(_decoded(secret, "username"), _decoded(secret, "password"))
        return None

    def _object(self, kind: str, namespace: str, name: str) -> Mapping[str, Any]:
        body = self._gateway.read(kind, namespace, name)
        if body is None:
            raise ValueError(f"there is no {kind} {namespace}/{name}")
        return body


def make_source(job: HeteroTrainingJob, gateway: Gateway) -> Source:
    """What the job's manifest asks for."""
    return FromPrometheus(gateway) if job.spec.metrics.source == "Prometheus" else FromPods()


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
