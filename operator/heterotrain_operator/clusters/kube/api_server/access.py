"""The way to a cluster, found as kubectl finds it: a kubeconfig and its context, or the pod's own account."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config
from kubernetes.config.config_exception import ConfigException

from heterotrain_operator.clusters.kube.api_server.transport import PatientClient
from heterotrain_operator.clusters.kube.reading_errors import AccessError

DEFAULT_KUBECONFIG = "~/.kube/config"
POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Where a pod reads the namespace of its own account."""


@dataclass(frozen=True, slots=True)
class Access:
    """What the user says about the way to a cluster; None stands for what kubectl would take."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Connection:
    """A client of one cluster's API, and the namespace that commands mean by default."""

    api: PatientClient
    namespace: str

    @property
    def server(self) -> str:
        """The address of the API, for messages."""
        return str(self.api.configuration.host)


def connect(access: Access, *, connections: int | None = None) -> Connection:
    """A client for the cluster that the user means; nothing is sent yet. It keeps so many `connections` open, None: as
    many as its library does.

    Raises AccessError if there is no kubeconfig (and this is no pod), if it is broken, or lacks the context.
    """
    files = _kubeconfig(access)
    if files is None:
        return _from_inside(access, connections)
    try:
        contexts, current = config.list_kube_config_contexts(config_file=files)
        chosen = current if access.context is None else _named(contexts, access.context, files)
        settings = client.Configuration()
        config.load_kube_config(config_file=files, context=chosen["name"], client_configuration=settings)
    except (ConfigException, yaml.YAMLError, OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise AccessError(f"the kubeconfig {files} cannot be used: {_in_one_line(error)}") from error
    namespace = access.namespace or (chosen.get("context") or {}).get("namespace") or "default"
    return Connection(_client(settings, connections), namespace)


def _kubeconfig(access: Access) -> str | None:
    """The kubeconfig file, or several joined as in KUBECONFIG; None: there is none, but this is a pod."""
    if access.kubeconfig is not None:
        if not Path(access.kubeconfig).expanduser().is_file():
            raise AccessError(f"--kubeconfig: there is no file {access.kubeconfig}")
        return access.kubeconfig
    variable = os.environ.get("KUBECONFIG", "")
    named = variable or DEFAULT_KUBECONFIG
    if any(Path(entry).expanduser().is_file() for entry in named.split(os.pathsep) if entry):
        return named
    if "KUBERNETES_SERVICE_HOST" in os.environ and access.context is None:
        return None
    missing = (
        f"KUBECONFIG names {variable}, which does not exist" if variable else f"{DEFAULT_KUBECONFIG} does not exist"
    )
    raise AccessError(f"no cluster is configured: {missing}; name a kubeconfig with --kubeconfig or KUBECONFIG")


def _named(contexts: list[dict[str, Any]], name: str, files: str) -> dict[str, Any]:
    for context in contexts:
        if context.get("name") == name:
            return context
    known = ", ".join(sorted(str(context.get("name")) for context in contexts))
    raise AccessError(f"--context: {files} has no context {name!r}; it has {known or 'none'}")


def _from_inside(access: Access, connections: int | None) -> Connection:
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)
        own = POD_NAMESPACE.read_text(encoding="utf-8").strip()
    except (ConfigException, OSError) as error:
        raise AccessError(f"the account of this pod cannot be used: {_in_one_line(error)}") from error
    return Connection(_client(settings, connections), access.namespace or own or "default")


def _client(settings: client.Configuration, connections: int | None) -> PatientClient:
    # A retry would only multiply the time until an unreachable cluster is reported.
    settings.retries = False
    if connections is not None:
        settings.connection_pool_maxsize = connections
    return PatientClient(settings)


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
