"""Whatever is seen has an answer: no exception, no invalid plan, and the same answer twice changes nothing more."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heterotrain.contract import PHASES, Member, Plan, parse_plan
from heterotrain.foreign import MAX_NUMBER, MAX_WHOLE
from heterotrain_operator.core.batching.policies import POLICIES
from heterotrain_operator.core.columns import columns_of
from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.facts import bounds_of, group_of
from heterotrain_operator.core.model import Decision, Group, Job, Seen, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.memory_model import MemoryUse
from heterotrain_operator.core.prediction.noise import Variation
from heterotrain_operator.core.prediction.relapses import Relapses
from heterotrain_operator.core.prediction.resource_use import ResourceUse
from heterotrain_operator.core.prediction.roughness import Roughness
from heterotrain_operator.core.prediction.step_time import StepTime
from heterotrain_operator.core.prediction.throughput_cap import ThroughputCap
from heterotrain_operator.core.prediction.whole_steps import WholeSteps
from heterotrain_operator.core.remembered.batching import Batching, Promises
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.core.stragglers.evidence import Evidence
from unit.core.layouts import plain_fields
from unit.core.traces import hetero_world

ANY_FLOAT = st.floats()
SMALL = st.integers(0, 4)
GROUPS = st.lists(
    st.builds(
        Group,
        name=st.sampled_from(["a", "b"]),
        replicas=st.integers(0, 3),
        device=st.sampled_from(["cpu", "gpu"]),
        batch_min=st.integers(0, 20),
        batch_max=st.none() | st.integers(0, 200),
        cpu_limit=st.none() | ANY_FLOAT,
        flops=st.none() | ANY_FLOAT,
        multiple_of=st.sampled_from([1, 1, 1, 2, 6, 16]),
    ),
    min_size=1,
    max_size=2,
    unique_by=lambda group: group.name,
)
JOBS = st.builds(
    Job,
    name=st.just("job"),
    groups=GROUPS.map(tuple),
    global_batch=st.integers(1, 400),
    policy=st.sampled_from([*POLICIES, "Nonsense"]),
    initial=st.sampled_from(["Uniform", "Static"]),
    interval=st.integers(1, 20),
    fixed_global_batch=st.booleans(),
    dry_run=st.booleans(),
    suspend=st.sampled_from([False, False, False, True]),
    backoff_limit=SMALL,
    active_deadline_seconds=st.none() | st.floats(1, 1e6),
)
METRICS = st.builds(
    WorkerMetrics,
    plan_version=st.integers(-1, 5),
    generation=SMALL,
    batch_size=st.integers(-5, 400),
    step=st.integers(-5, 10_000),
    phase=st.sampled_from([*PHASES, "", "dancing"]),
    in_collective=st.booleans(),
    steps=st.sampled_from([0.0, 5.0, 30.0, 100.0]) | ANY_FLOAT,
    samples=ANY_FLOAT,
    own_seconds=st.sampled_from([1.0, 3.0, 20.0]) | ANY_FLOAT,
    own_seconds_squared=st.sampled_from([0.3, 5.0]) | ANY_FLOAT,
    wait_seconds=ANY_FLOAT,
    cpu_limit=st.none() | ANY_FLOAT,
    least_batch_size=st.integers(-5, 2000),
)


@st.composite
def workers(draw: st.DrawFn) -> WorkerSeen:
    group, index = draw(st.sampled_from(["a", "b", "z"])), draw(SMALL)
    return WorkerSeen(
        name=f"job-{group}-{index}",
        uid=f"{group}{index}{draw(st.sampled_from(['', '-new']))}",
        group=group,
        index=index,
        phase=draw(st.sampled_from(["Running", "Running", "Running", "Pending", "Succeeded", "Failed"])),
        address=draw(st.sampled_from(["10.0.0.1:1", ""])),
        cpu_limit=draw(st.none() | ANY_FLOAT),
        exit_code=draw(st.sampled_from([None, None, None, 0, 1, 137, 143, -9, 1000])),
        finished=draw(st.booleans()),
        message=draw(st.sampled_from(["", "boom"])),
        disrupted=draw(st.sampled_from([False, False, True])),
        asked_to_stop=draw(st.booleans()),
        left=draw(st.booleans()),
        gated=draw(st.sampled_from([False, False, True])),
        node=draw(st.sampled_from(["", "node-1"])),
        metrics=draw(st.none() | METRICS),
    )


@st.composite
def observations(draw: st.DrawFn) -> Seen:
    there = draw(st.lists(workers(), max_size=6))
    plan = None
    if draw(st.booleans()):
        named = [w for w in there if w.group != "z"] if draw(st.booleans()) else there
        members = tuple(
            Member(w.name, f"{w.group}{w.index}", "10.0.0.1:1", w.group, draw(st.integers(0, 100))) for w in named
        )
        plan = Plan(draw(st.integers(1, 4)), draw(SMALL), "step", members)
    return Seen(tuple(there), plan)


def check(job: Job, seen: Seen, decision: Decision) -> None:
    assert decision.reason
    assert len(decision.conditions) == 8
    names = {worker.name for worker in seen.workers}
    assert not names & {key.name for key in decision.create}
    assert set(decision.delete) <= names
    if decision.plan is None:
        return
    assert parse_plan(decision.plan.to_json()) == decision.plan
    assert seen.plan is None or decision.plan.version > seen.plan.version
    repeated = seen.plan is not None and decision.plan.batch_sizes == seen.plan.batch_sizes
    if not repeated:
        for member in decision.plan.members:
            low, high = bounds_of(job, group_of(job, member.group))
            assert low <= member.batch_size <= high
            assert member.batch_size % group_of(job, member.group).multiple_of == 0
        if job.fixed_global_batch and job.policy != "Profile":
            assert decision.plan.global_batch_size == job.global_batch


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(JOBS, st.lists(observations(), min_size=1, max_size=4), st.floats(0, 1000))
def test_any_observation_has_an_answer(job: Job, series: list[Seen], seconds: float) -> None:
    memory = Remembered.initial()
    now = 1_700_000_000.0
    for seen in series:
        decision, memory = decide(job, seen, memory, now)
        check(job, seen, decision)
        assert Remembered.from_json(memory.to_json()) == memory
        again, _ = decide(job, seen, memory, now)
        assert not (decision.plan and again.plan)
        assert not (decision.create and again.create)
        now += seconds


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["Uniform", "Static", "Proportional", "Optimal", "Profile"]),
    st.lists(st.lists(METRICS, min_size=3, max_size=3), min_size=1, max_size=5),
    st.booleans(),
)
def test_any_metrics_of_a_training_job_have_an_answer(
    policy: str, series: list[list[WorkerMetrics]], fixed: bool
) -> None:
    world = hetero_world(policy, fixed_global_batch=fixed)
    for row in series:
        if world.plan is None or len(world.workers) < 3:
            break
        for worker, metrics in zip(world.workers.values(), row, strict=True):
            worker.metrics = replace(metrics, plan_version=world.plan.version)
        seen = world.seen()
        check(world.job, seen, world.tick())


ANY_NUMBER = st.sampled_from([0, 0, 1, 5, 30, 0.5]) | st.floats(-MAX_NUMBER, MAX_NUMBER)
ANY_WHOLE = st.sampled_from([0, 0, 1, 20, 300]) | st.integers(-MAX_WHOLE, MAX_WHOLE)
DEFAULTS = {
    number: default
    for kind in (
        BatchCost,
        Evidence,
        MemoryUse,
        Relapses,
        ResourceUse,
        StepTime,
        ThroughputCap,
        Variation,
        RememberedWorker,
    )
    for number, _, default in columns_of(kind)
}

BY_KIND = {float: ANY_NUMBER, int: ANY_WHOLE, bool: st.booleans()}
OF_THE_JOB: dict[str, st.SearchStrategy[float]] = {
    name: BY_KIND[type(default)]
    for kind in (Batching, Promises, Roughness, WholeSteps)
    for name, default in plain_fields(kind)
}


@settings(deadline=None)
@given(
    st.sampled_from(["Proportional", "Optimal", "Profile"]),
    st.lists(
        st.tuples(
            *(
                ANY_NUMBER if isinstance(DEFAULTS.get(column), float) else ANY_WHOLE
                for column in range(max(DEFAULTS) + 1)
            )
        ),
        min_size=3,
        max_size=3,
    ),
    st.fixed_dictionaries({}, optional={**OF_THE_JOB, "start_seconds": ANY_NUMBER, "whole_version": st.integers(0, 3)}),
)
def test_any_numbers_in_a_stored_memory_have_an_answer(
    policy: str, rows: list[tuple[float, ...]], of_the_job: dict[str, float]
) -> None:
    """Whoever may edit one ConfigMap must not stop the operator."""
    world = hetero_world(policy)
    world.run(3)
    stored = json.loads(world.memory.to_json())
    world.memory = Remembered.from_json(json.dumps({**stored, **of_the_job, "workers": rows}))
    for _ in range(3):
        seen = world.seen()
        check(world.job, seen, world.tick())
        assert Remembered.from_json(world.memory.to_json()) == world.memory


@pytest.mark.parametrize("number", [10**308, 2**53, -(10**30)], ids=["huge", "first", "negative"])
@pytest.mark.parametrize("field", ["plan_version", "generation", "step", "batch_size", "memory_batch_size"])
def test_number_that_no_plan_can_hold_is_not_taken_over_from_a_worker(field: str, number: int) -> None:
    """Else the next plan had a greater one, which nobody follows, and the memory would not be read again."""
    world = hetero_world()
    world.run(3)
    before = world.plan
    assert before is not None
    liar = world.workers["job-g1-0"]
    told = liar.metrics
    liar.metrics = replace(told, **{field: number})
    for _ in range(3):
        world.tick(30)
    world.plan = None
    world.tick(30)
    assert Remembered.from_json(world.memory.to_json()) == world.memory
    liar.metrics = told
    plan = world.tick().plan or world.plan
    assert plan is None or parse_plan(plan.to_json()).version <= before.version + 2


@pytest.mark.parametrize("version", [2**53 - 2, 2**53 - 1, 2**52 + 1, 2**52])
def test_one_report_of_a_plan_that_cannot_be_does_not_use_up_the_versions(version: int) -> None:
    """Else the next plan had the last version of all, and the job's batches stayed for ever."""
    world = hetero_world()
    world.run(3)
    liar = world.workers["job-g1-0"]
    told = liar.metrics
    liar.metrics = replace(told, plan_version=version)
    for _ in range(3):
        world.tick()
    liar.metrics = told
    for scale in (3.0, 1.0, 3.0):
        before = world.plan
        world.workers["job-g0-0"].scale = scale
        world.run(6)
        assert world.plan != before
        assert Remembered.from_json(world.memory.to_json()) == world.memory
