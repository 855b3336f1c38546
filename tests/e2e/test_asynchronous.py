"""A job that trains asynchronously: its workers go on whatever ends one of them, and wait for another parameter server,
which goes on from the newest checkpoint.
"""

from __future__ import annotations

import pytest

from e2e.api import Document
from e2e.conftest import Apply
from e2e.history import History
from e2e.installation import PROCESS, Installation
from e2e.jobs import JobOnCluster
from e2e.manifests import group, job
from e2e.members import REPLACED_SECONDS, wait_for_members
from e2e.nodes import Nodes
from e2e.waiting import wait_for
from heterotrain import contract

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

UPDATES = 1500
"""Enough for all that befalls the job, and an end within the time."""

SCRIPT = "examples/digits.py"
"""In the command line of workers, and of the parameter server."""


def unequal(**training: object) -> Document:
    """Three unequal workers and a parameter server with a limit of its own."""
    groups = [group("large", "400m"), group("medium", "200m"), group("small", "100m")]
    server = {"template": group("server", "300m")["template"]}
    manifest = job("digits", *groups, steps=UPDATES, parameterServer=server)
    manifest["spec"]["training"] |= {"mode": "ASP", "learningRateScaling": "Linear", **training}
    return manifest


def server_uid(struck: JobOnCluster) -> str:
    """Of the parameter server that the active plan names."""
    server = struck.plan.server
    assert server is not None, "the plan names no parameter server"
    return server.uid


@pytest.mark.disruptive
def test_a_worker_the_server_and_the_operator_are_killed_and_the_job_ends_well(
    apply: Apply, nodes: Nodes, installation: Installation
) -> None:
    struck = apply(unequal())
    with History(struck) as history:
        struck.wait_for_step(60)
        wait_for_members(struck, 3)
        assert [member.group for member in struck.plan.members] == ["large", "medium", "small"]
        first = server_uid(struck)

        nodes.signal(struck.pod("small"), "KILL", SCRIPT)
        wait_for(lambda: struck.events("WorkerFailed"), 60, "the end of a worker to be seen")
        wait_for_members(struck, 3, REPLACED_SECONDS)
        assert server_uid(struck) == first
        struck.wait_for_step(struck.step() + 30)

        nodes.signal(struck.pod("server"), "KILL", SCRIPT)
        lost = wait_for(lambda: struck.events("ServerLost"), 60, "the end of the server to be seen")[-1]
        assert struck.pod_name("server") in lost["message"]
        wait_for(lambda: server_uid(struck) != first, REPLACED_SECONDS, "a plan with another server")
        generations = {plan.generation for plan in history.plans.values()}
        reached = struck.wait_for_step(1, REPLACED_SECONDS)
        struck.wait_for_step(reached + 30)
        assert struck.condition("Degraded")["reason"] != "ServerLost"
        assert max(generations) == struck.plan.generation, "its workers stayed who they were"
        assert struck.status["server"]["ends"] == 1

        (operator,) = installation.pods()
        nodes.signal(operator, "KILL", PROCESS)
        before = struck.step()
        struck.wait_for_step(before + 30)
        installation.wait_until_ready(1)
        ended = struck.wait_for_phase("Succeeded", 400)
    assert ended["step"] == UPDATES
    assert ended["restarts"] == 0
    assert "CheckpointNotDurable" not in {event["reason"] for event in struck.events()}
    pods = history.pods_made()
    assert pods[struck.pod_name("server")] == 2
    assert {pods[struck.pod_name(name)] for name in ("large", "medium")} == {1}


def test_unequal_workers_send_updates_at_one_rate_and_the_status_says_so(apply: Apply) -> None:
    struck = apply(unequal(asynchronous={"maxStaleness": 8}))
    struck.wait_for_step(UPDATES // 5, 300)

    def batches() -> list[int]:
        return [member.batch_size for member in struck.plan.members]

    wait_for(lambda: batches()[0] > 1.5 * batches()[2], 120, "unequal batches")
    status = struck.status
    assert status["updatesPerSecond"] > 0
    assert status["server"]["phase"] in contract.PHASES
    workers = [struck.worker(name) for name in ("large", "medium", "small")]
    assert all(worker["updates"] > 0 for worker in workers)
    assert all(worker["staleness"] <= 2 * 8 for worker in workers)
    assert batches() == sorted(batches(), reverse=True)
