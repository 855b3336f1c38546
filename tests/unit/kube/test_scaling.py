"""A job finds its size in a cluster: under a quota, and whenever its operator dies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.contract import MEMBERS_MAY_END
from heterotrain_operator.clusters.kube.api_server.gateway import Gateway
from kube_server.api_server import ApiServer, StatusError
from unit.kube.worlds import TEMPLATE, World

SPEC = {
    "workerGroups": [{"name": "small", "replicas": 1, "maxReplicas": 3, "template": TEMPLATE}],
    "training": {"globalBatchSize": 192, "steps": 100_000},
    "scaling": {"condition": "Throughput", "step": 1},
}


def goes_on(world: World, rounds: int, seconds: float, *, dies: bool) -> None:
    """Pods start and end, members follow the plan and take ten steps in each round, which are shorter the more they
    are. The operator `dies` before each round.
    """
    workers = world.workers
    for _ in range(rounds):
        world.run_pods()
        world.end_pods()
        names = world.api.names("pods")
        workers.reported = {name: metrics for name, metrics in workers.reported.items() if name in names}
        workers.wait(*(name for name in names if name not in workers.reported))
        members = {member.name for member in world.plan.members} if world.status.get("planVersion") else set()
        if members:
            plan, leader = world.plan, workers.reported[world.plan.members[0].name]
            done = leader.steps + 10 if leader.plan_version == plan.version else 10
            waiting = {name: each for name, each in workers.reported.items() if name not in members}
            workers.follow(plan, own_seconds=0.3 / len(members), steps=int(done))
            told = {"step": leader.step + 10, "total_steps": 100_000}
            workers.reported = {name: replace(each, **told) for name, each in workers.reported.items()} | waiting
        workers.reported = {name: replace(each, protocol=MEMBERS_MAY_END) for name, each in workers.reported.items()}
        if dies:
            world.restart_operator()
        world.round(seconds)


@pytest.mark.parametrize("dies", [False, True])
def test_job_grows_until_a_quota_stops_it_and_grows_on_once_that_is_gone(
    api: ApiServer, gateway: Gateway, dies: bool
) -> None:
    world = World(api, gateway, SPEC)

    def refuse(verb: str, kind: str, name: str) -> None:
        if (verb, kind) == ("create", "pods") and len(api.names("pods")) >= 2:
            raise StatusError(403, "Forbidden", f'pods "{name}" is forbidden: exceeded quota: team')

    api.refuse = refuse
    world.round()
    # An operator that dies forgets who was refused, and waits for them as long as workers may take to start.
    goes_on(world, 80 if dies else 20, 11, dies=dies)
    scaling = world.status["scaling"]
    assert (len(world.plan.members), scaling["sizes"]) == (2, [{"group": "small", "workers": 2}])
    assert ("small: not there" if dies else "exceeded quota: team") in scaling["blocked"]
    [blocked] = [each for each in world.status["conditions"] if each["type"] == "ScalingBlocked"]
    assert (blocked["status"], blocked["reason"]) == ("True", "WorkersNotGiven")
    assert {"Scaled", "ScalingGivenUp"} <= {*world.events}
    api.refuse = lambda *_: None
    goes_on(world, 70, 11, dies=dies)
    scaling = world.status["scaling"]
    assert (len(world.plan.members), scaling["blocked"], scaling["atRest"]) == (3, "", True)
    assert [each["size"] for each in scaling["points"]] == ["small 1", "small 2", "small 3"]
    assert world.status["ready"] == "3/3"
