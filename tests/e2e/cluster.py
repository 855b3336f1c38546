"""The cluster under test: kubectl for what is done to it, plain GETs for what is looked at often."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import yaml

from e2e.api import CORE, Api, ApiError, Document
from e2e.programs import run
from e2e.waiting import wait_for

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
"""Label of a namespace that admits only pods of the *restricted* Pod Security Standard."""


class Cluster:
    """Whatever cluster KUBECONFIG names."""

    def __init__(self) -> None:
        """Raises AssertionError, with what to do about it, if there is none that answers."""
        named = os.environ.get("KUBECONFIG", "")
        assert named, "the end-to-end tests need a cluster: `make kind` prints the line that sets KUBECONFIG"
        assert Path(named).is_file(), f"KUBECONFIG names {named}, which does not exist: run `make kind`"
        self.api = Api()
        try:
            self.version: str = self.api.get("/version")["gitVersion"]
        except ApiError as error:
            raise AssertionError(f"the cluster of {named} does not answer: {error}") from error

    def kubectl(self, *arguments: str, text: str | None = None, seconds: float = 60.0) -> str:
        """What kubectl prints. Raises AssertionError if it fails."""
        return run("kubectl", *arguments, text=text, seconds=seconds)

    def apply(self, *documents: Document) -> None:
        """`kubectl apply`, as a user does it."""
        self.kubectl("apply", "--filename", "-", text=yaml.safe_dump_all(documents))

    def create(self, document: Document, *arguments: str) -> Document:
        """`kubectl create`, and what the API server makes of it."""
        created: Document = json.loads(
            self.kubectl("create", "--filename", "-", "--output", "json", *arguments, text=yaml.safe_dump(document))
        )
        return created

    def make_namespace(self, name: str) -> None:
        """A namespace that enforces the *restricted* standard, new or not."""
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}})
        # Pods cannot be created before their namespace has an account.
        path = f"{CORE}/namespaces/{name}/serviceaccounts/default"
        wait_for(lambda: self.api.find(path), 30, f"the account of namespace {name}")

    def nodes(self, selector: str = "") -> list[Document]:
        """The nodes, all or those of a label selector."""
        return self.api.items(f"{CORE}/nodes", labelSelector=selector)

    def node_is_ready(self, name: str) -> bool:
        """Whether a node's condition Ready is true."""
        return condition(self.api.get(f"{CORE}/nodes/{name}"), "Ready").get("status") == "True"

    def all_nodes_are_ready(self) -> bool:
        """Whether every node is Ready, and open for pods."""
        return all(
            condition(node, "Ready").get("status") == "True" and not node["spec"].get("unschedulable")
            for node in self.nodes()
        )


def condition(document: Document, kind: str) -> Document:
    """The condition of a type in an object's status; empty if it has none."""
    return entry_of((document.get("status") or {}).get("conditions") or (), "type", kind)


def entry_of(entries: Iterable[Document], key: str, value: str) -> Document:
    """The entry of a list whose `key` has a value; empty if there is none."""
    return next((entry for entry in entries if entry.get(key) == value), {})
