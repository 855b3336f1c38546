"""Where the workers' metrics are read: from themselves, or from a Prometheus server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from heterotrain_operator.api.base import DATA_KEY, HTTP_URL, MAX_TEXT, Model, ObjectName, PositiveSeconds
from heterotrain_operator.api.problems import Problem
from heterotrain_operator.api.rule import Cel, Rule


class KeyRef(Model):
    """One key of a Secret or ConfigMap in the job's namespace."""

    name: ObjectName = Field(description="Name of the object.")
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=DATA_KEY)] = Field(description="Key in its data.")


class NameRef(Model):
    """An object in the job's namespace."""

    name: ObjectName = Field(description="Name of the object.")


class Prometheus(Model):
    """A Prometheus server to read metrics from."""

    url: Annotated[str, Field(max_length=MAX_TEXT, pattern=HTTP_URL)] = Field(
        default="",
        description="Address of the server, e.g. http://prometheus.monitoring:9090; source Prometheus needs it.",
    )
    secret_ref: KeyRef | None = Field(
        default=None,
        description="Secret with a bearer token, whose annotation "
        "heterotrain.dev/prometheus-servers names the server. Absent: none is sent.",
    )
    basic_auth_ref: NameRef | None = Field(
        default=None,
        description="Secret of type kubernetes.io/basic-auth, with the keys username and password, annotated as that "
        "of secretRef; not beside secretRef. Absent: none are sent.",
    )
    ca_ref: KeyRef | None = Field(
        default=None,
        description="ConfigMap with the authority that signed the server's certificate. "
        "Absent: those that the operator's image trusts.",
    )
    max_age_seconds: PositiveSeconds = Field(default=30, description="Older samples are not used.")


class Metrics(Model):
    """Where the workers' metrics are read."""

    source: Literal["Pods", "Prometheus"] = Field(
        default="Pods", description="Read from the workers themselves, or from a Prometheus server."
    )
    prometheus: Prometheus = Field(default_factory=Prometheus, description="The server; for source Prometheus.")


def _prometheus_has_an_address(metrics: Metrics) -> Iterator[Problem]:
    if metrics.source == "Prometheus" and not metrics.prometheus.url:
        yield Problem("spec.metrics.prometheus.url", "is required with source Prometheus")


PROMETHEUS_HAS_AN_ADDRESS = Rule(
    ("spec.metrics.source", "spec.metrics.prometheus.url"),
    _prometheus_has_an_address,
    (
        Cel(
            "spec.metrics",
            "self.source != 'Prometheus' || self.prometheus.url != ''",
            "source Prometheus needs prometheus.url",
        ),
    ),
)


def _one_credential(metrics: Metrics) -> Iterator[Problem]:
    server = metrics.prometheus
    if server.secret_ref is not None and server.basic_auth_ref is not None:
        yield Problem("spec.metrics.prometheus", "needs at most one of secretRef and basicAuthRef, found both")


ONE_CREDENTIAL = Rule(
    ("spec.metrics.prometheus.secretRef", "spec.metrics.prometheus.basicAuthRef"),
    _one_credential,
    (
        Cel(
            "spec.metrics.prometheus",
            "!has(self.secretRef) || !has(self.basicAuthRef)",
            "set at most one of secretRef and basicAuthRef",
        ),
    ),
)
