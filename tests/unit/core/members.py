"""Workers that train while their members change, and what tests ask of their plans."""

from __future__ import annotations

from dataclasses import replace

from heterotrain.contract import Plan
from heterotrain_operator.core.model import Decision, Group, Job
from unit.core.traces import World

A, B, C = "job-a-0", "job-a-1", "job-a-2"
D, E = "job-a-3", "job-a-4"


def elastic_world(replicas: int = 3, **changes: object) -> World:
    """A job of one group that trains, by now with batches that were measured."""
    job = Job("job", (Group("a", replicas),), global_batch=192)
    world = World(replace(job, **changes), protocol=3)  # type: ignore[arg-type]  # the tests' care
    world.start().run(3)
    return world


def names(plan: Plan | None) -> list[str]:
    assert plan is not None
    return [member.name for member in plan.members]


def reasons(decision: Decision) -> list[str]:
    return [event.reason for event in decision.events]


def settled(world: World, looks: int = 6) -> World:
    """A few looks later, with steps in between."""
    for _ in range(looks):
        world.train(2)
        world.tick(5)
    return world


def resize(world: World, replicas: int) -> None:
    world.job = replace(world.job, groups=(Group("a", replicas),))


def late(world: World) -> None:
    """No worker's volume shows a new plan."""
    vars(world.cluster.training)["publish"] = lambda _: None


def on_time(world: World) -> None:
    """All volumes show the newest plan."""
    training = world.cluster.training
    del vars(training)["publish"]
    if world.plan is not None:
        training.publish(world.plan)


def joined_by(world: World, replicas: int) -> World:
    """More workers are wanted, and are there."""
    resize(world, replicas)
    world.tick()
    return world


def named(world: World, replicas: int = 4) -> World:
    """A plan names newcomers, and nobody has taken a step since."""
    joined_by(world, replicas)
    world.train(1)
    world.tick()
    assert names(world.plan) == [f"job-a-{index}" for index in range(replicas)]
    return world


def nobody_reaches(world: World, *reached: str) -> None:
    """No plan that names others than these is ever carried out, since the members cannot reach them."""
    training = world.cluster.training
    publish = type(training).publish

    def those_reached(plan: Plan) -> None:
        if {member.name for member in plan.members} <= set(reached):
            publish(training, plan)

    vars(training)["publish"] = those_reached
