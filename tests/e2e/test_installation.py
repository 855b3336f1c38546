"""The chart once it is installed: its own test passes, and users may do what the docs say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from e2e.api import Document
from e2e.cluster import Cluster
from e2e.installation import HELM_SECONDS, Installation
from e2e.manifests import idle
from e2e.programs import run
from e2e.test_chart import documented_for_users
from e2e.test_rights import granted
from e2e.waiting import wait_for

pytestmark = pytest.mark.e2e


def test_release_passes_its_own_test(installation: Installation) -> None:
    told = run("helm", "test", installation.release, f"--namespace={installation.namespace}", seconds=HELM_SECONDS)
    assert "Succeeded" in told


@pytest.mark.disruptive("podSecurityContext.runAsUser=1000650000", "podSecurityContext.runAsGroup=0")
def test_operator_runs_as_whichever_user_the_cluster_chooses(installation: Installation) -> None:
    installation.wait_until_ready()
    (pod,) = installation.pods()
    assert pod["spec"]["securityContext"]["runAsUser"] == 1000650000


@pytest.mark.disruptive
def test_policy_refuses_templates_that_ask_for_too_much_where_it_holds(
    cluster: Cluster, installation: Installation, make_namespace: Callable[[], str]
) -> None:
    held, free = make_namespace(), make_namespace()
    greedy = idle("greedy")
    greedy["spec"]["workerGroups"][0]["template"]["spec"]["nodeName"] = "some-node"

    def refused(manifest: Document, namespace: str) -> str:
        """Why the API server would refuse the job; empty if it would not."""
        try:
            cluster.create(manifest, f"--namespace={namespace}", "--dry-run=server")
        except AssertionError as error:
            return str(error)
        return ""

    selector = f'{{"matchLabels":{{"kubernetes.io/metadata.name":"{held}"}}}}'
    installation.install("admissionPolicy.enabled=true", f"admissionPolicy.namespaceSelector={selector}")
    wait_for(lambda: refused(greedy, held), 60, "the policy to hold")
    assert "template.spec.nodeName must be left out" in refused(greedy, held)
    assert (refused(idle("modest"), held), refused(greedy, free)) == ("", "")
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    path = f"{policies}/{installation.namespace}-{installation.release}"
    status = wait_for(lambda: cluster.api.get(path).get("status"), 60, "the rules' types to be checked")
    assert not (status.get("typeChecking") or {}).get("expressionWarnings")


@pytest.mark.parametrize("role", ["view", "edit"])
def test_users_of_a_namespace_may_do_with_jobs_what_the_docs_say(
    cluster: Cluster, installation: Installation, namespace: str, role: str
) -> None:
    user = f"{role}-{namespace}"
    cluster.kubectl(
        "create", "rolebinding", user, f"--namespace={namespace}", f"--clusterrole={role}", f"--user={user}"
    )
    wanted = {(group, resource, verb) for roles, group, resource, verb in documented_for_users() if role in roles}

    def jobs() -> set[tuple[str, str, str]]:
        rights = granted(cluster, user, namespace)
        return {(group, resource, verb) for group, resource, _, verb in rights if group == "heterotrain.dev"}

    # Kubernetes adds the rights to its roles in its own time.
    wait_for(jobs, 30, f"{role} to hold for jobs")
    assert jobs() == wanted
