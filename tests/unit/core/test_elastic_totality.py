"""Whatever happens to workers whose members can change, and in whatever order: nobody trains twice, goes back or waits
for ever, and once nothing happens any more the job has the workers that it wants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heterotrain.contract import (
    MEMBERS_MAY_END,
    PHASE_EVALUATING,
    PHASE_PREPARING,
    PHASE_STARTING,
    PHASE_TRAINING,
    PHASE_WAITING,
    Plan,
    parse_plan,
)
from heterotrain_operator.clusters.simulated.pod import SimulatedPod
from heterotrain_operator.core.facts import SETTLE_SECONDS, bounds_of, group_of
from heterotrain_operator.core.model import Decision, Group, Job, Scaling, Seen, Stragglers
from heterotrain_operator.core.remembered.members import MOST_PENDING
from heterotrain_operator.core.scaling.sizes import bounds_of_size, sized
from heterotrain_operator.core.state import Remembered
from unit.core.jobs import ends, late
from unit.core.traces import World

WHICH = st.integers(0, 7)
HAPPENINGS = st.one_of(
    st.tuples(st.just("train"), st.integers(1, 5)),
    st.tuples(st.just("look"), st.sampled_from([0, 1, 5, 11, 40])),
    st.tuples(
        st.sampled_from(
            [
                *["kill", "preempt", "vanish", "delete", "asked", "script", "finish", "pause"],
                *["stay behind", "never starts", "finds no node", "fails at its start", "is on its way in"],
            ]
        ),
        WHICH,
    ),
    st.tuples(st.sampled_from(["volumes are late", "volumes are on time"]), st.just(0)),
    st.tuples(st.sampled_from(["silence", "answer"]), WHICH),
    st.tuples(st.just("resize"), st.tuples(st.integers(0, 4), st.integers(0, 3))),
    st.tuples(st.sampled_from(["silence all", "forget"]), st.just(0)),
)
NAMED = st.one_of(HAPPENINGS, st.tuples(st.just("name"), WHICH))


class Watched(World):
    """A world of which every decision is held to what must hold of all."""

    ends = 0
    published_at = 0.0
    lowest = -1

    def happen(self, what: str, number: object) -> None:
        """Let something happen to the worker of that number, or to the job."""
        pods = list(self.workers.values())
        pod = pods[number % len(pods)] if pods and isinstance(number, int) else None
        if what in ("train", "look") and isinstance(number, int):
            self.train(number) if what == "train" else self.look(float(number))
        elif what == "resize" and isinstance(number, tuple):
            first, second = number
            self.ends += 4
            a, b = self.job.groups
            least = None if a.min_replicas is None else min(a.min_replicas, first)
            groups = (replace(a, replicas=first, min_replicas=least), replace(b, replicas=second))
            self.job = replace(self.job, groups=groups)
        elif what == "volumes are late":
            late(self)
        elif what == "volumes are on time":
            self.deliver()
        elif what == "silence all":
            for each in pods:
                each.answers = False
        elif what == "forget":
            self.memory = Remembered.initial()
        elif what == "name" and isinstance(number, int):
            self.name(number)
        elif pod is not None and what in ("silence", "answer"):
            pod.answers = what == "answer"
        elif pod is not None and pod.exit_code is None:
            self.ends += 1
            if what in ("kill", "preempt", "vanish", "asked", "script"):
                ends(self, pod.name, what)
            elif what == "delete":
                self.cluster.act(replace(Decision("Running", ""), delete=(pod.name,)), self.memory)
            elif what == "finish" and pod.metrics.generation:
                pod.end(0, finished=True)
            elif what == "stay behind" and pod.metrics.generation == 0:
                pod.ready_at = self.now + 1e9
            elif what == "pause" and pod.metrics.generation:
                pod.metrics = replace(pod.metrics, phase=PHASE_EVALUATING)
            elif pod.metrics.generation == 0:
                self.hinder(pod, what)

    def hinder(self, pod: SimulatedPod, what: str) -> None:
        """Let something keep a newcomer from starting."""
        if what == "never starts":
            pod.metrics = replace(pod.metrics, phase=PHASE_PREPARING)
        elif what == "is on its way in":
            pod.metrics = replace(pod.metrics, phase=PHASE_STARTING)
        elif what == "finds no node":
            pod.phase, pod.message, pod.answers = "Pending", "Unschedulable", False
        elif what == "fails at its start":
            pod.end_out_of_memory("while it imported")

    def deliver(self) -> None:
        """All volumes show the newest plan."""
        training = self.cluster.training
        if vars(training).pop("publish", None) is not None and self.plan is not None:
            training.publish(self.plan)

    def trainees(self) -> dict[str, SimulatedPod]:
        """Workers that train together, and live, by name; nobody is being taken away."""
        followed = self.cluster.training._followed
        pods = [] if followed is None else followed.pods
        return {pod.name: pod for pod in pods if self.workers.get(pod.name) is pod and pod.is_ready}

    def name(self, number: int) -> None:
        """A member is four times as slow, and has been named for long enough to be acted upon."""
        rows = list(self.memory.workers)
        if self.plan is None or len(rows) != len(self.plan.members):
            return
        rank = number % len(rows)
        member = self.plan.members[rank]
        if member.name in self.workers:
            self.workers[member.name].scale = 4.0
        evidence = rows[rank].evidence._replace(named=1, advised=5, level=1400)
        rows[rank] = rows[rank]._replace(evidence=evidence)
        self.memory = replace(self.memory, workers=tuple(rows))

    def look(self, seconds: float) -> Decision:
        """Observe, decide and act, and check all three."""
        self.now += seconds
        self.cluster._tend()
        if self.forgetful:
            self.cluster.forget()
        seen = self.seen()
        step, memory, trainees = self.cluster.training.step, self.memory, self.trainees()
        decision = self.tick(0.0)
        self.check(seen, decision)
        if decision.phase == "Running" and memory.protocol > 1 and all(pod.answers for pod in trainees.values()):
            assert not set(decision.delete) & set(trainees), "who trains is not deleted"
        assert step >= self.lowest, "steps are taken twice only after all workers have started again"
        plan = decision.plan or seen.plan
        followed = plan is not None and any(
            pod.metrics.generation >= plan.generation for pod in self.workers.values() if pod.exit_code is None
        )
        starts_again = plan is None or (plan.continues == 0 and not followed)
        self.lowest = step if decision.phase == "Running" and not starts_again else -1
        return decision

    def lacks(self, plan: Plan) -> bool:
        """Whether a group has fewer members than its least."""
        groups = [member.group for member in plan.members]
        return any(groups.count(group.name) < (group.min_replicas or 0) for group in self.job.groups)

    def check(self, seen: Seen, decision: Decision) -> None:
        """What holds of every decision."""
        assert decision.reason
        assert Remembered.from_json(self.memory.to_json()) == self.memory
        assert len(self.memory.pending) <= MOST_PENDING
        there = {worker.name for worker in seen.workers}
        assert not there & {key.name for key in decision.create}
        assert len({key.name for key in decision.create}) == len(decision.create)
        assert set(decision.delete) <= there
        plan, before = decision.plan, seen.plan
        if plan is None:
            return
        assert parse_plan(plan.to_json()) == plan
        alive = {
            worker.uid: worker for worker in seen.workers if worker.exit_code is None and worker.deleting_since is None
        }
        changed = before is None or plan.generation > before.generation
        for member in plan.members:
            low, high = bounds_of(self.job, group_of(self.job, member.group))
            assert not changed or member.uid in alive
            assert not changed or low <= member.batch_size <= high
        if changed:
            assert plan.global_batch_size == self.job.global_batch
        if not changed or plan.continues == 0 or before is None:
            self.published_at = self.now
            return
        assert not plan.holds or self.lacks(plan)
        assert plan.continues <= before.generation
        trained = [alive[member.uid] for member in plan.members]
        assert any(each.metrics is None or each.metrics.generation >= 1 for each in trained)
        members = [alive.get(member.uid) for member in before.members]
        whole = all(worker is not None for worker in members)
        reported = [w.metrics.generation for w in members if w is not None and w.metrics is not None]
        over = all(generation >= before.generation for generation in reported)
        assert not whole or over or self.now - self.published_at >= SETTLE_SECONDS, "two changes are under way"
        self.published_at = self.now


def in_peace(world: Watched) -> None:
    """Everybody answers and starts, and nothing happens any more."""
    for _ in range(60):
        if any(pod.finished for pod in world.workers.values()):
            for pod in world.workers.values():  # all commit the last step, if one does
                if pod.exit_code is None and pod.metrics.generation:
                    pod.end(0, finished=True)
        world.deliver()
        for pod in world.workers.values():
            pod.answers, pod.ready_at, pod.message = True, None, pod.message if pod.exit_code is not None else ""
            pod.phase = "Running" if pod.phase == "Pending" else pod.phase
            if pod.metrics.generation == 0 and pod.metrics.phase != PHASE_WAITING:
                pod.metrics = replace(pod.metrics, phase=PHASE_WAITING)
            elif pod.metrics.phase == PHASE_EVALUATING:
                pod.metrics = replace(pod.metrics, phase=PHASE_TRAINING)
        world.train(3)
        if world.look(5.0).phase in ("Failed", "Succeeded"):
            return


def played(world: Watched, series: Sequence[tuple[str, object]]) -> dict[str, int] | None:
    """Let all of that happen, and then nothing any more: the replicas that are wanted; None if the job is over."""
    for what, number in series:
        world.happen(what, number)
        world.look(1.0)
    in_peace(world)
    wanted = {group.name: group.replicas for group in world.job.groups}
    last = world.decisions[-1]
    if last.phase != "Running":
        assert last.phase in ("Failed", "Succeeded") or not any(wanted.values())
        return None
    return wanted


def places(world: Watched) -> list[str]:
    """The groups of the members, and of the places that are given up."""
    assert not world.plan.holds
    assert not world.lacks(world.plan)
    given_up = [place.group for place in world.memory.pending if place.failures > world.job.backoff_limit]
    return [member.group for member in world.plan.members] + given_up


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(HAPPENINGS, max_size=25),
    st.sampled_from(["Optimal", "Proportional", "Uniform", "Profile"]),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from([None, 1, 2, 3]),
)
def test_any_series_of_ends_joins_and_lost_readings_ends_with_the_workers_that_are_wanted(
    series: Sequence[tuple[str, object]], policy: str, forgetful: bool, backoff_limit: int, least: int | None
) -> None:
    groups = (Group("a", 3, min_replicas=least), Group("b", 1))
    job = Job("job", groups, 96, policy=policy, backoff_limit=backoff_limit)
    world = Watched(job, {"job-b-0": 3.0}, forgetful=forgetful, protocol=MEMBERS_MAY_END)
    world.start()
    wanted = played(world, series)
    if wanted is None:
        return
    assert {name: places(world).count(name) for name in wanted} == wanted
    assert {member.uid for member in world.plan.members} == {pod.uid for pod in world.workers.values()}
    assert {pod.metrics.plan_version for pod in world.workers.values()} == {world.plan.version}
    assert world.created <= 4 + 8 * (1 + world.ends)
    assert len(world.plan.members) == len(world.memory.workers)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(NAMED, max_size=25), st.sampled_from(["Replace", "Remove"]), st.booleans(), st.integers(0, 2))
def test_stragglers_that_are_acted_upon_meanwhile_leave_a_job_that_has_its_workers(
    series: Sequence[tuple[str, object]], action: str, forgetful: bool, backoff_limit: int
) -> None:
    acting = Stragglers(action=action, cooldown_seconds=2, max_replacements=4)
    least = 16 if action == "Remove" else 1  # whoever is slow at its least batch holds the others up
    groups = (Group("a", 3, batch_min=least), Group("b", 1))
    job = Job("job", groups, 96, stragglers=acting, backoff_limit=backoff_limit)
    world = Watched(job, {"job-b-0": 3.0}, forgetful=forgetful, protocol=MEMBERS_MAY_END)
    world.start().run(2)
    wanted = played(world, series)
    if wanted is None:
        return
    removed = {each.group: -each.delta for each in world.memory.sizes.removed}
    assert {name: places(world).count(name) + removed.get(name, 0) for name in wanted} == wanted
    coming = {newcomer for _, newcomer in world.decisions[-1].replacing}
    assert {member.name for member in world.plan.members} == set(world.workers) - coming
    assert world.memory.remedies.replacements <= acting.max_replacements
    assert world.created <= 4 + 8 * (1 + world.ends) + 5 * (backoff_limit + 1)


# Each example takes as long as three of the others, for a search has so many rounds.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=settings().max_examples // 3)
@given(st.lists(HAPPENINGS, max_size=20), st.booleans(), st.floats(0.01, 2.0))
def test_search_for_the_workers_that_pay_keeps_its_bounds_and_ends_whatever_happens_meanwhile(
    series: Sequence[tuple[str, object]], forgetful: bool, threshold: float
) -> None:
    groups = (Group("a", 3, max_replicas=6), Group("b", 1, max_replicas=2))
    scaling = Scaling("Throughput", step=2, threshold=threshold)
    job = Job("job", groups, 96, scaling=scaling, backoff_limit=3)
    world = Watched(job, {"job-b-0": 3.0}, forgetful=forgetful, protocol=MEMBERS_MAY_END)
    world.start().run(2)
    if played(world, series) is None:
        return
    in_peace(world)
    in_peace(world)
    if world.decisions[-1].phase != "Running":
        return
    for group in world.job.groups:
        least, most = bounds_of_size(group)
        assert least <= places(world).count(group.name) <= most
    present = sized(world.job, world.memory)
    assert {each.name: places(world).count(each.name) for each in present.groups} == {
        each.name: each.replicas for each in present.groups
    }
    assert world.memory.sizes.at_rest
