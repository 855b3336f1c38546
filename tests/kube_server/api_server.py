"""A tiny API server: objects with UIDs and resource versions, server-side apply, watches, owners; over real HTTP.

kmock, made for tests of kopf operators, neither counts resource versions nor creates by server-side apply, and both
carry the operator's promises. What is answered here was compared with a kube-apiserver of version 1.34;
`test_api_server.py` says what was, and can be run against a cluster.
"""

from __future__ import annotations

import copy
import itertools
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

Document = dict[str, Any]
Id = tuple[str, str, str]
"""Plural, namespace (empty without one), and name."""

KINDS = {
    "pods": ("/api/v1", "Pod"),
    "services": ("/api/v1", "Service"),
    "configmaps": ("/api/v1", "ConfigMap"),
    "secrets": ("/api/v1", "Secret"),
    "events": ("/api/v1", "Event"),
    "nodes": ("/api/v1", "Node"),
    "namespaces": ("/api/v1", "Namespace"),
    "heterotrainingjobs": ("/apis/heterotrain.dev/v1alpha1", "HeteroTrainingJob"),
    "networkpolicies": ("/apis/networking.k8s.io/v1", "NetworkPolicy"),
    "leases": ("/apis/coordination.k8s.io/v1", "Lease"),
    "customresourcedefinitions": ("/apis/apiextensions.k8s.io/v1", "CustomResourceDefinition"),
}
CLUSTER_WIDE = ("nodes", "namespaces", "customresourcedefinitions")
APPLY, MERGE, JSON_PATCH = (
    f"application/{kind}" for kind in ("apply-patch+yaml", "merge-patch+json", "json-patch+json")
)


CUT = "cut"
"""In a script of a watch: the connection breaks off in the middle of a line."""
GONE = "gone"
"""The script of a watch that is refused, for its version is too old."""


class StatusError(Exception):
    """An answer that is an error, as a Status object words it."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
        self.status |= {"reason": reason, "message": message, "details": details}


class ApiServer:
    """What the cluster holds.

    `refuse(verb, plural, name)` may raise a StatusError, or wait. Nothing may be listed in `forbidden` namespaces, nor
    read of `forbidden` resources, anywhere (`pods/log`) or in one namespace (`events:team-a`; `events:` is in all at
    once). `writes` lists what was not refused: verb, plural, name and the body that was sent; `reads` verb, plural, and
    name or label selector; `asked` paths and queries. `missing` kinds are not served, and nothing is if it is `broken`.
    `logs` are by pod; a pod that has none waits to start. `scripts`, where there are any, are what watches send, one
    for each in turn: events, CUT where the connection breaks off in the middle of a line, or only GONE where the
    version is too old.
    """

    def __init__(self) -> None:
        self.objects: dict[Id, Document] = {}
        self.writes: list[tuple[str, str, str, Any]] = []
        self.reads: list[tuple[str, str, str]] = []
        self.refuse: Callable[[str, str, str], None] = lambda verb, plural, name: None
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.missing: set[str] = set()
        self.forbidden: set[str] = set()
        self.broken = False
        self.logs: dict[str, str] = {}
        self.scripts: list[list[Document | str]] | None = None
        self.clock: Callable[[], float] = time.time
        self._forgotten = 0
        self._versions = itertools.count(100)
        self._version = 100
        self._history: list[tuple[int, str, str, Document]] = []
        self._changed = threading.Condition(threading.RLock())

    # --- for tests ------------------------------------------------------------------------------------------

    def get(self, plural: str, name: str, namespace: str = "team-a") -> Document | None:
        """An object as it is now."""
        with self._changed:
            return copy.deepcopy(self.objects.get((plural, namespace, name)))

    def the(self, plural: str, name: str, namespace: str = "team-a") -> Document:
        """An object as it is now, which there must be."""
        found = self.get(plural, name, namespace)
        assert found is not None, f"there is no {name} among {self.names(plural)}"
        return found

    def names(self, plural: str) -> list[str]:
        """Names of all objects of a kind."""
        with self._changed:
            return sorted(name for kind, _, name in self.objects if kind == plural)

    def put(self, plural: str, body: Document, namespace: str = "team-a") -> Document:
        """Create an object, or replace one whole, in spite of everything."""
        with self._changed:
            return copy.deepcopy(self._store((plural, namespace, body["metadata"]["name"]), body))

    def restore(self, plural: str, body: Document) -> None:
        """An object as a cluster had it, with its own UID, version and moments; no watch shows that it comes."""
        metadata = body["metadata"]
        with self._changed:
            self.objects[plural, metadata.get("namespace", ""), metadata["name"]] = copy.deepcopy(body)

    def clear(self, plural: str) -> None:
        """Take all objects of a kind away; no watch shows that they go."""
        with self._changed:
            self.objects = {key: body for key, body in self.objects.items() if key[0] != plural}

    def change(self, plural: str, name: str, patch: Document, namespace: str = "team-a") -> Document:
        """A merge patch, as some controller would send it."""
        with self._changed:
            key = (plural, namespace, name)
            return copy.deepcopy(self._store(key, merged(self.objects[key], patch)))

    def remove(self, plural: str, name: str, namespace: str = "team-a", *, watched: bool = True) -> None:
        """Take an object away with all that it owns; without `watched` no watch shows it."""
        with self._changed:
            self._remove((plural, namespace, name), watched=watched)

    def forget_history(self) -> None:
        """As a restart does: watches end, and none can be resumed from before."""
        with self._changed:
            self._history.clear()
            self._version = self._forgotten = next(self._versions)
            self._changed.notify_all()

    # --- storage --------------------------------------------------------------------------------------------

    def _store(self, key: Id, body: Document, *, status: bool = False) -> Document:
        """Writes the object if it differs from what is there; a status does not count as a new generation."""
        old = self.objects.get(key)
        new = copy.deepcopy(body)
        meta = new.setdefault("metadata", {})
        kept = (
            {"uid": str(uuid.uuid4()), "creationTimestamp": moment(self.clock()), "generation": 1}
            if old is None
            else old["metadata"]
        )
        meta |= {name: kept[name] for name in ("uid", "creationTimestamp", "generation")}
        meta |= {"name": key[2]} | ({"namespace": key[1]} if key[1] else {})
        new |= {"apiVersion": KINDS[key[0]][0].split("/", 2)[2], "kind": KINDS[key[0]][1]}
        meta["resourceVersion"] = "" if old is None else old["metadata"]["resourceVersion"]
        if new == old:
            return new
        if old is not None and not status and new.get("spec") != old.get("spec"):
            meta["generation"] += 1
        self.objects[key] = new
        self._record("ADDED" if old is None else "MODIFIED", key, new)
        return new

    def _remove(self, key: Id, *, watched: bool) -> None:
        old = self.objects.pop(key)
        if watched:
            self._record("DELETED", key, old)
        uid = old["metadata"]["uid"]
        for other, found in list(self.objects.items()):
            if any(owner["uid"] == uid for owner in found["metadata"].get("ownerReferences", ())):
                self._remove(other, watched=watched)

    def _record(self, kind: str, key: Id, body: Document) -> None:
        self._version = next(self._versions)
        body["metadata"]["resourceVersion"] = str(self._version)
        self._history.append((self._version, kind, key[0], copy.deepcopy(body)))
        self._changed.notify_all()

    # --- requests -------------------------------------------------------------------------------------------

    def discover(self, path: str) -> Document | None:
        """What there is at /version, /api and below /apis; None if nothing is."""
        groups: dict[str, list[str]] = {}
        for plural, (prefix, _) in KINDS.items():
            if plural not in self.missing:
                groups.setdefault(prefix, []).append(plural)
        if path in ("/api", "/version"):
            return {"kind": "APIVersions", "versions": ["v1"], "major": "1", "minor": "34"}
        if path == "/apis":
            split = [prefix.split("/") for prefix in groups if prefix != "/api/v1"]
            versions = [
                (group, {"groupVersion": f"{group}/{version}", "version": version}) for *_, group, version in split
            ]
            return {
                "kind": "APIGroupList",
                "groups": [{"name": g, "versions": [v], "preferredVersion": v} for g, v in versions],
            }
        if path not in groups:
            return None
        verbs = ["get", "list", "watch", "create", "patch", "delete"]
        plain = {"singularName": "", "verbs": verbs}
        return {
            "kind": "APIResourceList",
            "resources": [
                {"name": plural, "kind": KINDS[plural][1], "namespaced": plural not in CLUSTER_WIDE, **plain}
                for plural in groups[path]
            ],
        }

    def listed(
        self, plural: str, namespace: str, labels: str, *, fields: str = "", limit: int = 0, token: str = ""
    ) -> Document:
        """All of a kind that the selectors mean, or so many of them, and a token for those after them.

        Of later pages a kube-apiserver shows what was there when the first was asked for, and here it is what is there
        now; the watch from the first one's version on comes to the same.
        """
        self.refuse("list", plural, "")
        self._check_right("list", plural, namespace)
        if namespace in self.forbidden:
            raise _forbidden("list", plural, namespace)
        with self._changed:
            self.reads.append(("list", plural, labels))
            version, *after = json.loads(token) if token else (self._version, "", "")
            if version < self._forgotten:
                raise StatusError(410, "Expired", "The provided continue parameter is too old")
            found = {
                key: body
                for key, body in sorted(self.objects.items())
                if key[0] == plural
                and namespace in ("", key[1])
                and selected(body, labels, fields)
                and [*key[1:]] > after
            }
            meta = {"resourceVersion": str(version)}
            if 0 < limit < len(found):
                meta["continue"] = json.dumps([version, *list(found)[limit - 1][1:]])
            items = list(found.values())[: limit or None]
            prefix, kind = KINDS[plural]
            group = prefix.split("/", 2)[2]
            return {"kind": f"{kind}List", "apiVersion": group, "metadata": meta, "items": copy.deepcopy(items)}

    def watch(
        self, plural: str, namespace: str, labels: str, *, fields: str = "", since: int, seconds: float
    ) -> Iterator[Document | str]:
        """Events after a version, until the time is over or history is lost; or those of a script."""
        self._check_right("watch", plural, namespace)
        if self.scripts is None:
            return self._happened(plural, namespace, labels, fields=fields, since=since, seconds=seconds)
        assert self.scripts, "one watch more than the test expects"
        script = self.scripts.pop(0)
        if script == [GONE]:
            raise StatusError(410, "Expired", "too old resource version")
        return iter(script)

    def _happened(
        self, plural: str, namespace: str, labels: str, *, fields: str, since: int, seconds: float
    ) -> Iterator[Document]:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            with self._changed:
                if since < self._forgotten:
                    yield {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
                    return
                news = [event for event in self._history if event[0] > since]
                if not news:
                    self._changed.wait(ends - time.monotonic())
            for version, event, kind, body in news:
                since = version
                where = body["metadata"].get("namespace", "")
                if kind == plural and namespace in ("", where) and selected(body, labels, fields):
                    yield {"type": event, "object": body}

    def log(self, namespace: str, pod: str, container: str, tail: int | None) -> str:
        """What a pod has printed, or its last lines."""
        self._check_right("get", "pods/log", namespace)
        with self._changed:
            self._found(("pods", namespace, pod))
        if pod not in self.logs:
            why = f'container "{container}" in pod "{pod}" is waiting to start: ContainerCreating'
            raise StatusError(400, "BadRequest", why)
        lines = self.logs[pod].splitlines(keepends=True)
        return "".join(lines if tail is None else lines[-tail:])

    def read(self, key: Id) -> Document:
        """One object."""
        self.refuse("get", key[0], key[2])
        self._check_right("get", key[0], key[1])
        with self._changed:
            self.reads.append(("get", key[0], key[2]))
            return copy.deepcopy(self._found(key))

    def write(self, verb: str, key: Id, body: Any, *, kind: str = "", status: bool = False) -> Document:
        """Create, replace, patch (by its content type) or delete."""
        if verb == "create":
            name = body["metadata"].get("name") or f"{body['metadata'].pop('generateName')}{next(self._versions)}"
            key = (key[0], key[1], name)
        self.refuse(verb, key[0], key[2])
        with self._changed:
            self.writes.append((f"{verb} status" if status else verb, key[0], key[2], copy.deepcopy(body)))
            return copy.deepcopy(self._written(verb, key, body, kind, status))

    def _written(self, verb: str, key: Id, body: Any, kind: str, status: bool) -> Document:
        exists = key in self.objects
        if verb == "create":
            if exists:
                raise StatusError(409, "AlreadyExists", f'{key[0]} "{key[2]}" already exists')
            return self._store(key, body)
        if verb == "patch" and kind == APPLY and not exists:
            return self._store(key, {**body, "metadata": without(body["metadata"], "resourceVersion")})
        old = self._found(key)
        if verb == "delete":
            return self._deleted(key, old, body or {})
        if kind == JSON_PATCH:
            return self._store(key, self._json_patched(old, body), status=status)
        wanted = body["metadata"].get("resourceVersion")
        if wanted not in (None, old["metadata"]["resourceVersion"]):
            raise StatusError(409, "Conflict", f'Operation cannot be fulfilled on {key[0]} "{key[2]}"')
        if kind == APPLY and key[0] == "pods" and old["spec"] != merged(old["spec"], body["spec"]):
            raise StatusError(422, "Invalid", f'Pod "{key[2]}" is invalid: spec: Forbidden', causes=[{"field": "spec"}])
        return self._store(key, merged(old, body) if verb == "patch" else body)

    def _json_patched(self, old: Document, operations: list[Document]) -> Document:
        new = copy.deepcopy(old)
        for operation in operations:
            *parents, last = operation["path"].strip("/").split("/")
            place = new
            for parent in parents:
                place = place[parent]
            if operation["op"] == "test" and place.get(last) != operation["value"]:
                raise StatusError(422, "Invalid", "the server rejected our request due to an error in our request")
            if operation["op"] == "add":
                place[last] = operation["value"]
        return new

    def _deleted(self, key: Id, old: Document, options: Document) -> Document:
        uid = options.get("preconditions", {}).get("uid", old["metadata"]["uid"])
        if uid != old["metadata"]["uid"]:
            raise StatusError(409, "Conflict", f"the UID in the precondition ({uid}) does not match the UID in record")
        running = key[0] == "pods" and old.get("status", {}).get("phase") == "Running"
        if running and options.get("gracePeriodSeconds") != 0:
            grace = {"deletionTimestamp": moment(self.clock() + 30), "deletionGracePeriodSeconds": 30}
            return self._store(key, merged(old, {"metadata": grace}))
        self._remove(key, watched=True)
        return old

    def _check_right(self, verb: str, resource: str, namespace: str) -> None:
        if {resource, f"{resource}:{namespace}"} & self.forbidden:
            raise _forbidden(verb, resource, namespace)

    def _found(self, key: Id) -> Document:
        if key not in self.objects:
            raise StatusError(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        return self.objects[key]


def moment(unix_seconds: float) -> str:
    """As Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_seconds))


def merged(old: Any, patch: Any) -> Any:
    """A JSON merge patch; server-side apply by one manager comes to the same, as long as nothing is taken away."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def without(document: Document, name: str) -> Document:
    """A copy without a field."""
    return {key: value for key, value in document.items() if key != name}


def selected(body: Document, labels: str, fields: str = "") -> bool:
    """By labels that exist, or equal, and by fields that equal."""
    bears = body["metadata"].get("labels", {})
    for term in filter(None, labels.split(",")):
        name, equal, value = term.partition("=")
        if name not in bears or (equal and bears[name] != value):
            return False
    for term in filter(None, fields.split(",")):
        path, _, wanted = term.partition("=")
        found: Any = body
        for part in path.split("."):
            found = found.get(part, {})
        if found != wanted:
            return False
    return True


def _forbidden(verb: str, resource: str, namespace: str) -> StatusError:
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    message = f'{resource} is forbidden: User "ann" cannot {verb} resource "{resource}" {where}'
    return StatusError(403, "Forbidden", message)
