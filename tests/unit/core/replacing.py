"""Workers of which one becomes a straggler, and what tests ask of those that come in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heterotrain.contract import MEMBERS_MAY_END, PHASE_PREPARING, PHASE_WAITING, Plan
from heterotrain_operator.core.model import Decision, Group, Job, Stragglers
from unit.core.traces import World

SLOW, NEWCOMER = "job-a-2", "job-a-6"


def world(
    stragglers: Stragglers | None = None, *, protocol: int = MEMBERS_MAY_END, replicas: int = 6, **changes: object
) -> World:
    """Alike workers that are balanced, and known to be healthy."""
    settings = stragglers or Stragglers(action="Replace", cooldown_seconds=0)
    job = replace(Job("job", (Group("a", replicas),), 192, stragglers=settings), **changes)  # type: ignore[arg-type]
    made = World(job, noise=0.03, seed=2, protocol=protocol).start()
    made.run(12)
    return made


def slowed(made: World, *names: str, factor: float = 4.0) -> None:
    for name in names or (SLOW,):
        made.workers[name].scale *= factor


def reasons(decisions: Sequence[Decision], *wanted: str) -> list[str]:
    wanted = wanted or ("ReplacingStraggler", "ReplacementFailed", "ReplacementGivenUp", "WorkerReplaced")
    return [event.reason for each in decisions for event in each.events if event.reason in wanted]


def created(decisions: Sequence[Decision]) -> list[str]:
    return [key.name for each in decisions for key in each.create]


def members(plan: Plan | None) -> list[str]:
    assert plan is not None
    return [member.name for member in plan.members]


def until_created(made: World, looks: int = 60) -> list[Decision]:
    decisions = []
    for _ in range(looks):
        decisions += made.run(1)
        if decisions[-1].create:
            return decisions
    raise AssertionError("nobody was created")


def prepares(made: World, name: str = NEWCOMER) -> None:
    """The newcomer takes its time."""
    made.workers[name].metrics = replace(made.workers[name].metrics, phase=PHASE_PREPARING)


def is_warm(made: World, name: str = NEWCOMER, *, seconds: float | None = None, batch: int = 32) -> None:
    """The newcomer is ready, after steps of that many seconds, if any."""
    pod, shown = made.workers[name], () if seconds is None else ((batch, seconds), (batch // 2, seconds))
    pod.metrics = replace(pod.metrics, phase=PHASE_WAITING, warm_up=shown)


def swapping(protocol: int = MEMBERS_MAY_END, **changes: object) -> World:
    """A plan names the newcomer and not the straggler, and nobody has taken a step since."""
    made = world(Stragglers(action="Replace", cooldown_seconds=1e6), protocol=protocol, **changes)
    slowed(made)
    while NEWCOMER not in members(made.plan):
        made.run(1)
    assert SLOW not in members(made.plan)
    return made


def fails(made: World, how: str, name: str = NEWCOMER) -> None:
    """Something becomes of the newcomer."""
    pod = made.workers[name]
    if how == "kill":
        pod.end(137)
    elif how == "preempt":
        pod.end(143, disrupted=True)
    elif how == "fatal":
        pod.end_for_good("another model")
    elif how == "delete":
        pod.gone_at = made.now + 5
    else:
        del made.workers[name]
