"""Jobs whose workers come and go: what tests let happen to them, and what they ask of the decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from heterotrain.contract import MEMBERS_MAY_END, PHASE_PREPARING, PHASE_WAITING, Plan
from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.model import Condition, Decision, Group, Job, Seen, Stragglers, WorkerSeen
from heterotrain_operator.core.state import Remembered
from unit.core.traces import World

A, B, C = "job-a-0", "job-a-1", "job-a-2"
D, E = "job-a-3", "job-a-4"


def elastic_world(replicas: int = 3, *, least: int | None = None, **changes: Any) -> World:
    """A job of one group that trains, by now with batches that were measured."""
    job = Job("job", (Group("a", replicas, min_replicas=least),), global_batch=192)
    world = World(replace(job, **changes), protocol=MEMBERS_MAY_END)
    world.start().run(3)
    return world


def resize(world: World, replicas: int) -> None:
    world.job = replace(world.job, groups=(Group("a", replicas),))


def settled(world: World, looks: int = 6) -> World:
    """A few looks later, with steps in between."""
    for _ in range(looks):
        world.train(2)
        world.tick(5)
    return world


# --- what is asked of decisions ---------------------------------------------------------------------------------


def names(plan: Plan | None) -> list[str]:
    return [member.name for member in plan.members]


def reasons(decisions: Decision | Sequence[Decision], *wanted: str) -> list[str]:
    """The reasons of events, of all or of those that are wanted."""
    each = [decisions] if isinstance(decisions, Decision) else decisions
    return [event.reason for one in each for event in one.events if not wanted or event.reason in wanted]


def told(decisions: Sequence[Decision], *wanted: str) -> list[str]:
    """The messages of events of these reasons."""
    return [event.message for each in decisions for event in each.events if event.reason in wanted]


def created(decisions: Sequence[Decision]) -> list[str]:
    return [key.name for each in decisions for key in each.create]


def condition(decision: Decision, kind: str = "Degraded") -> Condition:
    return next(condition for condition in decision.conditions if condition.type == kind)


def failure(world: World) -> tuple[str, str]:
    """Reason and message of the condition Failed, which must be true."""
    failed = condition(world.decisions[-1], "Failed")
    assert failed.status
    return failed.reason, failed.message


# --- what happens to workers ------------------------------------------------------------------------------------


def ends(world: World, name: str, how: str = "kill") -> None:
    """Something becomes of a worker."""
    pod, step = world.workers[name], world.cluster.training.step
    if how == "kill":
        pod.end(137)
    elif how == "exit":
        pod.end(1, message="connection refused")
    elif how == "silent":
        pod.end(0)
    elif how == "preempt":
        pod.end(143, disrupted=True)
    elif how == "asked":
        pod.end_asked()
    elif how in ("finish", "fails after", "killed after", "preempted after"):
        ends_after_last_step(world, name, how)
    elif how == "left":
        pod.end_in_order(step)
    elif how == "fatal":
        pod.end_for_good("another model")
    elif how == "script":
        pod.end_by_script(step if pod.metrics.generation else 0)
    elif how == "out of memory":
        pod.end_out_of_memory("while it imported")
    elif how == "delete":
        pod.gone_at = world.now + 5
    else:
        assert how == "vanish"
        del world.workers[name]


def ends_after_last_step(world: World, name: str, how: str = "finish") -> None:
    """A worker has committed the job's last step, and its process ends. The first member that had not been lost by then
    led."""
    rest = (world.workers[each] for each in names(world.plan) if each in world.workers)
    leads = next(pod for pod in rest if pod.exit_code is None or pod.finished).name == name
    code, message = {"finish": (0, ""), "fails after": (1, "OSError: no such folder")}.get(how, (137, ""))
    pod = world.workers[name]
    pod.end(code, finished=True, leader=leads, message=message, disrupted=how == "preempted after")
    pod.last_step = world.cluster.training.step + 1


def changed(seen: Seen, *workers: str, **changes: Any) -> Seen:
    """What is seen, but that something else is true of these workers, or of all."""
    return replace(
        seen,
        workers=tuple(
            replace(each, **changes) if each.name in (workers or (each.name,)) else each for each in seen.workers
        ),
    )


def decided(world: World, seen: Seen, seconds: float = 0.0) -> tuple[Decision, Remembered]:
    """What would be decided about that."""
    return decide(world.job, seen, world.memory, world.now + seconds)


def one(world: World, name: str) -> WorkerSeen:
    return next(each for each in world.seen().workers if each.name == name)


def restart_fully(world: World) -> None:
    """Past the delay, until the next generation's plan."""
    world.tick(61)
    world.tick()


def start_and_end(world: World, *codes: tuple[int, str]) -> None:
    """Workers are created, and end with these codes and words before there is a plan."""
    world.tick()
    for worker, (code, message) in zip(world.workers.values(), codes, strict=False):
        worker.end(code, message=message)


# --- what becomes of plans --------------------------------------------------------------------------------------


def stuck_world(replicas: int = 4, **changes: Any) -> World:
    """Three workers train, and others are wanted, whose pods `hold` keeps from starting."""
    world = elastic_world(**changes)
    resize(world, replicas)
    return world


def newcomers(world: World) -> list[str]:
    return [pod.name for pod in world.workers.values() if pod.metrics.generation == 0 and pod.exit_code is None]


def looks(world: World, number: int, seconds: float, message: str, node: str = "node-1") -> list[Decision]:
    """So many looks, in which all newcomers' pods wait for that reason."""
    found = []
    for _ in range(number):
        for name in newcomers(world):
            pod = world.workers[name]
            pod.phase, pod.message, pod.node, pod.answers = "Pending", message, node, False
        world.train(1)
        found.append(world.tick(seconds))
    return found


def failing(world: World, number: int, seconds: float, how: str = "exit") -> list[Decision]:
    """The same, in which all newcomers end."""
    found = []
    for _ in range(number):
        for name in newcomers(world):
            ends(world, name, how)
        world.train(1)
        found.append(world.tick(seconds))
    return found


def late(world: World) -> None:
    """No worker's volume shows a new plan."""
    vars(world.cluster.training)["publish"] = lambda _: None


def nobody_reaches(world: World, *reached: str) -> None:
    """No plan that names others than these is ever carried out, since the members cannot reach them."""
    training = world.cluster.training
    publish = type(training).publish
    vars(training)["publish"] = lambda plan: publish(training, plan) if set(names(plan)) <= set(reached) else None


def named(world: World, replicas: int = 4) -> World:
    """A plan names newcomers, and nobody has taken a step since."""
    resize(world, replicas)
    world.tick()
    world.train(1)
    world.tick()
    assert names(world.plan) == [f"job-a-{index}" for index in range(replicas)]
    return world


# --- stragglers -------------------------------------------------------------------------------------------------

SLOW, NEWCOMER = "job-a-2", "job-a-6"


def straggler_world(
    stragglers: Stragglers | None = None, *, protocol: int = MEMBERS_MAY_END, replicas: int = 6, **changes: Any
) -> World:
    """Alike workers that are balanced, and known to be healthy."""
    settings = stragglers or Stragglers(cooldown_seconds=0)
    job = replace(Job("job", (Group("a", replicas),), 192, stragglers=settings), **changes)
    made = World(job, noise=0.03, seed=2, protocol=protocol).start()
    made.run(12)
    return made


def slowed(made: World, *workers: str, factor: float = 4.0) -> World:
    for name in workers or (SLOW,):
        made.workers[name].scale *= factor
    return made


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


def replacing(stragglers: Stragglers | None = None, **changes: Any) -> World:
    """A newcomer is there for a straggler, and its script loads."""
    made = slowed(straggler_world(stragglers, **changes))
    until_created(made)
    prepares(made)
    return made


def swapping(**changes: Any) -> World:
    """A plan names the newcomer and not the straggler, and nobody has taken a step since."""
    made = slowed(straggler_world(Stragglers(action="Replace", cooldown_seconds=1e6), **changes))
    while NEWCOMER not in names(made.plan):
        made.run(1)
    assert SLOW not in names(made.plan)
    return made
