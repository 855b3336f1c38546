"""Which servers a job may have the operator ask.

The operator reaches servers that a tenant does not reach, and must not ask them on a tenant's behalf. Names of Services
are completed up to `.svc`, so that none is looked up outside of the cluster, as `example.com` would be: `name` stands
for a Service in the job's namespace, `name.namespace` and `name.namespace.svc` for one in the namespace that they name.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass

from heterotrain_operator.core.facts import listed

IN_CLUSTER = "in-cluster"
"""The pattern that allows any Service."""

DEFAULT_ALLOWED = (IN_CLUSTER,)

_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SERVICE = re.compile(rf"(?P<name>(?=[a-z]){_LABEL})(\.(?P<namespace>{_LABEL})(?P<full>\.svc(\.cluster\.local)?)?)?")
_SERVICE_ENDS = (".svc", ".svc.cluster.local")
_PATTERN = re.compile(r"(?:[a-z0-9*.-]+|\[[0-9a-f:*.]+\])(?::(?:[0-9]{1,5}|\*))?")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Server:
    """A server to ask.

    `url` has the completed name of a Service and no slash at its end; `name` is the host as the user wrote it, which is
    the one in the server's certificate.
    """

    url: str
    name: str


class NotAllowedError(ValueError):
    """The operator's settings do not allow the server."""


def check_pattern(pattern: str) -> None:
    """Raises ValueError unless the pattern is IN_CLUSTER, or a host with an optional port; `*` matches any text."""
    if pattern != IN_CLUSTER and not _PATTERN.fullmatch(pattern):
        raise ValueError(f"{pattern!r} is neither {IN_CLUSTER} nor a host such as prometheus.example.com or *:9090")


def checked_url(url: str) -> urllib.parse.SplitResult:
    """The parts of a server's URL. Raises ValueError, with no secret in its message, if it is not valid."""
    parts = urllib.parse.urlsplit(url)
    if "@" in parts.netloc:
        raise ValueError("the URL holds credentials; put them into a Secret")
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is no URL such as http://prometheus.monitoring:9090")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} has a query or a fragment; leave them out")
    _ = parts.port  # raises ValueError, naming it, if it is no port
    return parts


def allowed_server(url: str, namespace: str, allowed: Sequence[str]) -> Server:
    """The server to ask for a job of that namespace. A pattern without a port allows all ports of the host.

    Raises NotAllowedError if no pattern allows the server, ValueError if the URL is not valid.
    """
    parts = checked_url(url)
    host, port = str(parts.hostname), parts.port or _PORTS[parts.scheme]
    if any(_matches(pattern, host, port) for pattern in allowed if pattern != IN_CLUSTER):
        return Server(url.rstrip("/"), host)
    service = _SERVICE.fullmatch(host)
    if IN_CLUSTER not in allowed or service is None or host == "localhost":
        raise NotAllowedError(f"the operator's settings allow {listed(list(allowed)) or 'no server'}, and not {host}")
    if not service["full"]:
        host_there = f"{service['name']}.{service['namespace'] or namespace}.svc"
        parts = parts._replace(netloc=host_there if parts.port is None else f"{host_there}:{parts.port}")
    return Server(parts.geturl().rstrip("/"), host)


def same_server(url: str, server: Server, namespace: str, allowed: Sequence[str]) -> bool:
    """Whether a URL names this server, or a path above it, as a job of that namespace would name it."""
    try:
        named = allowed_server(url, namespace, allowed)
    except ValueError:
        return False
    *origin, path = _parts(server.url)
    *named_origin, named_path = _parts(named.url)
    return origin == named_origin and f"{path}/".startswith(f"{named_path}/")


def may_be_of(host: str, address: str) -> bool:
    """Whether an address can belong to the host; a Service has no address with another meaning on each machine."""
    if not host.endswith(_SERVICE_ENDS):
        return True
    found = ipaddress.ip_address(address.partition("%")[0])
    found = getattr(found, "ipv4_mapped", None) or found
    return not (found.is_loopback or found.is_link_local or found.is_multicast or found.is_unspecified)


def _parts(url: str) -> tuple[str, str | None, int, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme], parts.path


def _matches(pattern: str, host: str, port: int) -> bool:
    bare = f"[{host}]" if ":" in host else host
    has_port = ":" in pattern.rpartition("]")[2]
    return fnmatch.fnmatchcase(f"{bare}:{port}" if has_port else bare, _literal(pattern))


def _literal(pattern: str) -> str:
    """The pattern with its brackets escaped, since `fnmatch` reads brackets as a set of characters."""
    return pattern.replace("[", "[[]")
