"""The chart once it is installed: its own test passes, and users may do what the docs say."""

from __future__ import annotations

import pytest

from e2e.cluster import Cluster
from e2e.installation import HELM_SECONDS, Installation
from e2e.programs import run
from e2e.test_chart import documented_for_users
from e2e.test_rights import granted
from e2e.waiting import wait_for

pytestmark = pytest.mark.e2e


def test_release_passes_its_own_test(installation: Installation) -> None:
    told = run("helm", "test", installation.release, f"--namespace={installation.namespace}", seconds=HELM_SECONDS)
    assert "Succeeded" in told


@pytest.mark.disruptive
def test_operator_runs_as_whichever_user_the_cluster_chooses(installation: Installation) -> None:
    installation.install("podSecurityContext.runAsUser=1000650000", "podSecurityContext.runAsGroup=0")
    try:
        installation.wait_until_ready()
        (pod,) = installation.pods()
        assert pod["spec"]["securityContext"]["runAsUser"] == 1000650000
    finally:
        installation.install()


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
