"""Options of the operator, from its environment, checked before anything starts."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heterotrain_operator.metrics.allowed import DEFAULT_ALLOWED, check_pattern

NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""Of Kubernetes; anything else might be taken for a pattern."""

DEFAULT_LEASE = "heterotrain-operator"
DEFAULT_METRICS_PORT = 9090
DEFAULT_HEALTH_PORT = 8080


@dataclass(frozen=True, slots=True)
class Options:
    """`watched` are the namespaces whose jobs it runs, empty for all; `namespace` holds the Lease.

    `prometheus_allow` are patterns of the servers that jobs may have asked for their metrics; `metrics_from` are
    NetworkPolicyPeers that may read workers' metrics, None if no NetworkPolicies are to be made.
    """

    watched: tuple[str, ...]
    namespace: str
    identity: str
    lease: str
    log_level: int
    metrics_port: int
    health_port: int
    prometheus_allow: tuple[str, ...] = DEFAULT_ALLOWED
    metrics_from: tuple[Mapping[str, Any], ...] | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Options:
        """Raises ValueError, naming the variable, if one cannot be used."""
        level = environment.get("HETEROTRAIN_LOG_LEVEL", "INFO").upper()
        levels = logging.getLevelNamesMapping()
        if level not in levels:
            raise ValueError(f"HETEROTRAIN_LOG_LEVEL: {level} is none of {', '.join(levels)}")
        watched = _listed(environment.get("HETEROTRAIN_NAMESPACES", ""))
        for name in watched:
            if not NAMESPACE.fullmatch(name):
                raise ValueError(f"HETEROTRAIN_NAMESPACES: {name!r} is no name of a namespace")
        allow = _listed(environment.get("HETEROTRAIN_PROMETHEUS_ALLOW", ",".join(DEFAULT_ALLOWED)))
        for pattern in allow:
            try:
                check_pattern(pattern)
            except ValueError as error:
                raise ValueError(f"HETEROTRAIN_PROMETHEUS_ALLOW: {error}") from None
        return cls(
            watched=watched,
            namespace=environment.get("POD_NAMESPACE", "default"),
            identity=environment.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}",
            lease=environment.get("HETEROTRAIN_LEASE", DEFAULT_LEASE),
            log_level=levels[level],
            metrics_port=_port(environment, "HETEROTRAIN_METRICS_PORT", DEFAULT_METRICS_PORT),
            health_port=_port(environment, "HETEROTRAIN_HEALTH_PORT", DEFAULT_HEALTH_PORT),
            prometheus_allow=allow,
            metrics_from=_peers(environment, "HETEROTRAIN_METRICS_FROM"),
        )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _peers(environment: Mapping[str, str], name: str) -> tuple[Mapping[str, Any], ...] | None:
    text = environment.get(name)
    if not text:
        return None
    try:
        peers = json.loads(text)
    except (ValueError, RecursionError):
        peers = None
    if not (isinstance(peers, list) and peers and all(isinstance(peer, dict) and peer for peer in peers)):
        raise ValueError(f"{name}: {text!r} is no JSON list of NetworkPolicyPeers")
    return tuple(peers)


def _port(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    if not (re.fullmatch("[0-9]{1,5}", text) and 0 < int(text) < 65536):
        raise ValueError(f"{name}: {text!r} is no port")
    return int(text)
