"""Who may do what: the operator exactly what the docs list, workers nothing at all."""

from __future__ import annotations

from itertools import product

import pytest

from e2e.api import Document
from e2e.cluster import Cluster
from e2e.conftest import SYSTEM, Apply
from e2e.installation import Installation
from e2e.manifests import idle
from e2e.test_chart import documented
from e2e.waiting import wait_for
from heterotrain import contract
from heterotrain_operator.clusters.kube.objects.pods import secret_in

pytestmark = pytest.mark.e2e

Right = tuple[str, ...]


def granted(cluster: Cluster, user: str, namespace: str) -> set[Right]:
    """What `kubectl auth can-i --list` shows of a user: API group, resource, names, verb."""
    review: Document = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "metadata": {},
        "spec": {"namespace": namespace},
    }
    status = cluster.create(review, "--validate=false", f"--as={user}")["status"]
    assert not status["incomplete"]
    rights: set[Right] = set()
    for rule in status["resourceRules"]:
        names = ",".join(rule.get("resourceNames", ()))
        for group, resource, verb in product(rule["apiGroups"], rule["resources"], rule["verbs"]):
            rights.add((group, resource, names, verb))
    return rights


def test_operator_may_do_what_the_docs_list_and_nothing_else(
    cluster: Cluster, installation: Installation, namespace: str
) -> None:
    # What the cluster lets any account do, such as to ask what it may do.
    anybody = granted(cluster, f"system:serviceaccount:{namespace}:default", namespace)
    everywhere = documented("Jobs and their parts") | documented("Nodes")
    everywhere = {right for right in everywhere if right[2] != "token,ca"}  # none is named in this installation
    assert granted(cluster, installation.account, namespace) - anybody == everywhere
    assert granted(cluster, installation.account, SYSTEM) - anybody == everywhere | documented("The Lease")


def test_workers_have_no_token(apply: Apply, cluster: Cluster) -> None:
    tokenless = apply(idle("tokenless"))
    (pod,) = wait_for(
        lambda: [pod for pod in tokenless.pods() if pod["status"]["phase"] == "Running"], 90, "the worker to run"
    )
    assert pod["spec"]["automountServiceAccountToken"] is False
    where = (f"--namespace={tokenless.namespace}", pod["metadata"]["name"])
    assert cluster.kubectl("exec", *where, "--", "sh", "-c", "find /var/run/secrets 2>/dev/null || true") == ""


def test_workers_share_a_secret_that_the_operator_cannot_read(
    apply: Apply, cluster: Cluster, installation: Installation, namespace: str
) -> None:
    guarded = apply(idle("guarded"))
    (pod,) = wait_for(
        lambda: [pod for pod in guarded.pods() if pod["status"]["phase"] == "Running"], 90, "the worker to run"
    )
    where = (f"--namespace={guarded.namespace}", pod["metadata"]["name"])
    secret = cluster.kubectl("exec", *where, "--", "printenv", contract.ENV_SECRET).strip()
    assert len(bytes.fromhex(secret)) == contract.SECRET_BYTES
    children = guarded.children()
    assert f"secrets {secret_in(pod)}" in children
    assert "networkpolicies guarded-workers" in children
    assert {right[3] for right in granted(cluster, installation.account, namespace) if right[1] == "secrets"} == {
        "create"
    }
