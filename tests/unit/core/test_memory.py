"""The memory between decisions: small, exact, and refused if it is not ours."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterotrain.contract import Member, Plan
from heterotrain.foreign import MAX_NUMBER, MAX_WHOLE
from heterotrain_operator.core.batching.adjust import aligned
from heterotrain_operator.core.columns import columns_of
from heterotrain_operator.core.prediction.batch_cost import BatchCost
from heterotrain_operator.core.prediction.memory_model import MemoryUse
from heterotrain_operator.core.prediction.noise import Variation
from heterotrain_operator.core.prediction.relapses import Relapses
from heterotrain_operator.core.prediction.resource_use import ResourceUse
from heterotrain_operator.core.prediction.series import Series
from heterotrain_operator.core.prediction.step_time import StepTime
from heterotrain_operator.core.prediction.throughput_cap import ThroughputCap
from heterotrain_operator.core.remembered.job import Outcome, Progress, RestartBudget, Start
from heterotrain_operator.core.remembered.members import PASSAGES, PENDING, Passage, Passages, Slot, TransitionRecord
from heterotrain_operator.core.remembered.replacements import REPLACEMENTS, Remedies, Replacement
from heterotrain_operator.core.remembered.sizes import (
    POINTS,
    REFUSALS,
    REMOVALS,
    RESIZES,
    Point,
    Refusal,
    Resize,
    Sizes,
)
from heterotrain_operator.core.remembered_worker import KEY_LENGTH, NOBODY, RememberedWorker, key_of, rounded_workers
from heterotrain_operator.core.state import MAX_BYTES, Remembered, members_memory
from heterotrain_operator.core.stragglers.evidence import Evidence
from hostile import spoilt_text
from unit.core.layouts import plain_fields
from unit.core.traces import MemoryWorld, World, hetero_job

BYTES_PER_WORKER = 250
BYTES_OF_RELAPSED = 280
"""Of one that has turned slow again: few at a time, of the 333 that are left for each of 3,000."""

FINITE = st.floats(-MAX_NUMBER, MAX_NUMBER)
POSITIVE = st.just(0.0) | st.floats(1e-7, MAX_NUMBER)
NUMBER = st.integers(0, MAX_WHOLE)
KEY = st.just("") | st.text("abcXYZ-_0", min_size=KEY_LENGTH, max_size=KEY_LENGTH)


def any_of(kind: type[Any], **more: Any) -> st.SearchStrategy[Any]:
    """A value with anything in its columns that measurements can leave."""
    drawn = {float: POSITIVE, int: NUMBER, tuple: st.lists(POSITIVE, max_size=8).map(tuple)}
    columns = {name: drawn[type(default)] for _, name, default in columns_of(kind)}
    free = dict.fromkeys(("counted_steps", "counted_seconds", "counted_squares", "cpu_limit"), FINITE)
    return st.builds(kind, **{**columns, **{name: each for name, each in free.items() if name in columns}, **more})


SUMS = dict.fromkeys(("sum_w", "sum_wb", "sum_wbb", "sum_wy", "sum_wby"), st.floats(1e-7, MAX_NUMBER))
WORKER = any_of(
    RememberedWorker,
    step_time=any_of(StepTime),
    batch_cost=POSITIVE.map(BatchCost) | any_of(BatchCost, **SUMS),
    memory_use=any_of(MemoryUse),
    throughput_cap=any_of(ThroughputCap),
    resource_use=any_of(ResourceUse),
    variation=any_of(Variation),
    evidence=any_of(Evidence),
    relapses=any_of(Relapses),
    series=any_of(Series),
    key=KEY,
)
PASSAGE = Passage("job-a-1", 12, 5.0, "more workers are wanted", "job-a-0")
SOUND = Remembered(
    plan_version=3,
    generation=1,
    published_at=5.0,
    budget=RestartBudget(restarts=2),
    outcome=Outcome(reason="a"),
    pending=(Slot("a", 1, "b", "c", "abcdef", 2, 3, 100.0, 50.0, RememberedWorker(noted=3)), Slot("a", 2, due_at=5.0)),
    remedies=Remedies(
        replacing=(
            Replacement("a", 7, "job-a-1", "abcdef", "it is slow", 1, 5.0, 6.0, 0.25, 32.5),
            Replacement("a", 8, "job-a-2", "abcdef", due_at=5.0),
        ),
        replacements=2,
        replaced_at=5.0,
    ),
    sizes=Sizes(
        removed=(Resize("a", 3, -1),),
        resized=(Resize("a", 3, 4), Resize("b", 3, -2)),
        points=(Point((3, 0), (64, 0), 0.25, 12), Point((7, 0), (64, 0), 0.125, 12, left=True)),
        refusals=(Refusal("b", 2, 100.0, "exceeded quota"), Refusal("a", 1, 0.0)),
        best_size="3 0",
    ),
    passages=Passages(arrivals=(PASSAGE,), departures=(PASSAGE, PASSAGE)),
    transitions=TransitionRecord(idle_seconds=1.25),
    workers=(RememberedWorker(StepTime(1, 2), key="abcdef"),),
)


@settings(max_examples=30)
@given(st.lists(WORKER, max_size=2), st.none() | FINITE, NUMBER, st.booleans(), st.text())
def test_memory_reads_back_as_it_was_written(
    workers: list[RememberedWorker], moment: float | None, number: int, flag: bool, text: str
) -> None:
    memory = replace(
        SOUND,
        plan_version=number,
        start=Start(started_at=moment),
        budget=RestartBudget(draining=flag),
        progress=Progress(between_steps=flag),
        outcome=Outcome(message=text),
        workers=tuple(workers),
    )
    assert Remembered.from_json(memory.to_json()) == memory


ROWS = {"pending": PENDING, "replacing": REPLACEMENTS, "removed": REMOVALS, "arrivals": PASSAGES}
ROWS |= {"resized": RESIZES, "points": POINTS, "refusals": REFUSALS}


@pytest.mark.parametrize("name", ROWS)
def test_row_of_which_nonsense_is_told_is_none_and_no_more_are_read_than_are_allowed(name: str) -> None:
    table, stored = ROWS[name], json.loads(SOUND.to_json())
    [row, *_] = stored[name]
    assert len(table.read([row] * 1000)) == table.most
    spoilt = [
        row[:2],
        *([*row[:at], {"a": -1}, *row[at + 1 :]] for at in range(min(len(row), 10) - (name == "pending"))),
    ]
    whole = row[:2] if name == "resized" else row[:9]  # a group may be smaller than in the spec
    low = [[*row[:at], -1, *row[at + 1 :]] for at, value in enumerate(whole) if isinstance(value, int | float)]
    for rows in (None, 7, "x", [7], [[]], *([each] for each in spoilt + low)):
        assert table.read(rows) == ()
        assert json.loads(Remembered.from_json(json.dumps({**stored, name: rows})).to_json()).get(name, []) == []


def test_clock_that_leaps_moves_moments_but_those_that_have_not_come() -> None:
    later, earlier = SOUND.moved(1000.0), SOUND.moved(-1000.0)
    first, second = later.pending
    assert (first.due_at, first.blame_deferred_at, second.blame_deferred_at) == (1100.0, 1050.0, 0.0)
    assert [each.created_at for each in later.remedies.replacing] == [1006.0, 0.0]
    assert (later.remedies.replacing[0].due_at, later.passages.arrivals[0].at) == (1005.0, 1005.0)
    assert earlier.pending[0].due_at == 0.0


OTHER_BY_KIND = {type(None): 7.5, bool: True, int: 3, float: 0.5, str: "x"}
OTHER = {name: OTHER_BY_KIND[type(default)] for name, default in plain_fields(Remembered)}
"""A number, text or moment for each field of a job, other than its default."""


def test_every_field_of_a_job_is_read_as_it_was_stored_by_its_name() -> None:
    text = json.dumps({"schema": 1, **OTHER, "workers": []})
    assert json.loads(Remembered.from_json(text).rounded().to_json()) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "expected an object"),
        ("{", "Expecting"),
        ("[" * 100_000, "nested too deeply"),
        ('{"schema": "2"}', "schema '2' is none"),
        ('{"schema": 1, "workers": 3}', "memory.workers: expected a list"),
        ('{"schema": 1, "restarts": 1.5}', "memory.restarts: expected a whole number"),
        ('{"schema": 1, "restarts": 1' + "0" * 400 + "}", "memory.restarts: expected a whole number"),
        ('{"schema": 1, "draining": 1}', "memory.draining: expected bool"),
        ('{"schema": 1, "outcome": 1}', "memory.outcome: expected at most 4096 characters"),
        ('{"schema": 1, "message": "\\ud800"}', "memory.message: expected at most 4096 characters"),
        ('{"schema": 1, "started_at": NaN}', "memory.started_at: expected a number"),
        ('{"schema": 1, "started_at": 1' + "0" * 400 + "}", "memory.started_at: expected a number"),
        (" " * (MAX_BYTES + 1), "are read"),
    ],
)
def test_foreign_memory_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(ValueError) as error:
        Remembered.from_json(text)
    assert said in str(error.value)


@pytest.mark.parametrize("row", [["a"], {}, None, [1e999], [1, 2, 10**400], "x", [[]]])
def test_worker_of_whom_nonsense_is_told_is_one_of_whom_nothing_is_known(row: object) -> None:
    text = json.dumps({"schema": 1, "restarts": 3, "workers": [row, [5.0]]})
    assert Remembered.from_json(text) == Remembered(
        budget=RestartBudget(restarts=3), workers=(RememberedWorker(), RememberedWorker(StepTime(counted_steps=5.0)))
    )


@given(spoilt_text(json.loads(replace(SOUND, workers=(RememberedWorker(StepTime(1, 2)),)).to_json())))
def test_any_memory_is_one_that_can_be_written_or_refused(text: str) -> None:
    try:
        memory = Remembered.from_json(text)
    except ValueError as error:
        assert len(str(error).encode()) < 1000
        return
    assert Remembered.from_json(memory.rounded().to_json()) == memory.rounded()


@settings(max_examples=30)
@given(st.lists(WORKER, max_size=3), st.lists(WORKER, min_size=3, max_size=3), st.data())
def test_workers_are_rounded_together_as_one_by_one(
    workers: list[RememberedWorker], before: list[RememberedWorker], data: st.DataObject
) -> None:
    """Whichever of their values are still those of the memory before."""
    before = [rounded_workers((each,), (NOBODY,))[0] for each in before[: len(workers)]]
    mixed = [
        RememberedWorker(*(data.draw(st.sampled_from(pair)) for pair in zip(now, was, strict=True)))
        for now, was in zip(workers, before, strict=True)
    ]
    assert rounded_workers(mixed, before) == tuple(each.rounded(NOBODY) for each in mixed)


@pytest.mark.parametrize("policy", ["Proportional", "Optimal", "Profile"])
def test_worker_takes_at_most_two_hundred_and_fifty_bytes(policy: str) -> None:
    scales = {f"job-g{rank}-0": scale for rank, scale in enumerate((1, 2, 4, 3.3))}
    job = hetero_job(policy, list(scales.values()), global_batch=12345)
    world = MemoryWorld(job, scales, noise=0.1, seed=1, fixed=0.017)
    world.limit_mib, world.leasts, world.limits = 81920.0, dict.fromkeys(scales, 8), dict.fromkeys(scales, 0.123456)
    world.start().run(12)
    world.train(10)
    counters = ("observed_seconds", "cpu_seconds", "cpu_throttled_seconds", "cpu_wait_seconds")
    for worker in world.workers.values():
        worker.metrics = replace(worker.metrics, **dict.fromkeys(counters, 987.654))
    world.tick()
    for worker in world.workers.values():
        worker.answers = False
    world.tick()
    rows = json.loads(world.memory.to_json())["workers"]
    assert all(len(json.dumps(row, separators=(",", ":"))) <= BYTES_PER_WORKER for row in rows)
    relapsed = [each._replace(relapses=Relapses(0.212, 3210, 2489, 1234567)) for each in world.memory.workers]
    assert all(len(json.dumps(each.row(), separators=(",", ":"))) <= BYTES_OF_RELAPSED for each in relapsed)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["train"] * 3 + ["short", "slow", "limit", "kill", "silent", "back", "wait", "vanish"]),
        st.integers(0, 2),
    ),
    max_size=25,
)


def play(world: World, actions: list[tuple[str, int]]) -> World:
    """Let things happen to a job, one decision after each."""
    for action, rank in actions:
        name = f"job-g{rank}-0"
        worker = world.workers.get(name)
        members = {m.name for m in world.plan.members} if world.plan else set()
        current = bool(members) and all(
            name in world.workers and world.plan and world.plan.rank_of(name, world.workers[name].uid) is not None
            for name in members
        )
        if action in ("train", "short") and current:
            world.train(10 if action == "train" else 3)
        elif action == "vanish":
            world.workers.pop(name, None)
        elif worker is not None:
            if action == "slow":
                worker.scale *= 2
            elif action == "limit":
                worker.cpu_limit = 0.5 if worker.cpu_limit == 1.0 else 1.0
            elif action == "kill":
                worker.end(137)
            elif action in ("silent", "back"):
                worker.answers = action == "back"
        world.tick(7 if action == "wait" else 1)
    return world


@settings(max_examples=40, deadline=None)
@given(
    ACTIONS, st.sampled_from(["Proportional", "Optimal", "Profile"]), st.sampled_from([0.0, 0.12]), st.integers(0, 1000)
)
def test_decisions_are_the_same_with_the_memory_written_and_read_between_them(
    actions: list[tuple[str, int]], policy: str, noise: float, seed: int
) -> None:
    scales = {"job-g1-0": 2.0, "job-g2-0": 4.0}
    whole, torn = (
        play(World(hetero_job(policy), scales, noise=noise, seed=seed, forgetful=forgetful), actions)
        for forgetful in (False, True)
    )
    assert whole.decisions == torn.decisions
    assert whole.memory == torn.memory
    assert len(whole.decisions) == len(actions)


def of(*uids: str, version: int = 2, generation: int = 1) -> Plan:
    members = tuple(Member(f"job-a-{rank}", uid, f"h:{rank}", "a", 8) for rank, uid in enumerate(uids))
    return Plan(version, generation, "step", members)


def speeds(memory: Remembered, plan: Plan) -> list[float]:
    return [worker.batch_cost.speed for worker in members_memory(memory, plan)]


def known(*uids: str) -> Remembered:
    """Of plan 1, whose workers have the speeds 1, 2, ..."""
    costs = [BatchCost(speed=1.0 + rank) for rank in range(len(uids))]
    workers = tuple(RememberedWorker(batch_cost=cost, key=key_of(uid)) for cost, uid in zip(costs, uids, strict=True))
    return Remembered(plan_version=1, generation=1, workers=workers)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (of("z", "x"), [3, 1]),
        (of("z", "new", "x", "y", generation=2), [3, 0, 1, 2]),
        (of("y", "x", "z", version=1), [2, 1, 3]),
        (of("x", "other"), [1, 0]),
    ],
    ids=["fewer", "more", "swapped under the same version", "another one of the same name"],
)
def test_memory_follows_a_workers_uid_whatever_its_rank_and_name(plan: Plan, expected: list[float]) -> None:
    memory = known("x", "y", "z")
    assert speeds(memory, plan) == expected
    assert [worker.batch_cost.speed for worker in aligned(memory, plan, 0.0).workers] == expected
    assert aligned(memory, of("x", "y", "z", version=1), 0.0) is memory


def test_memory_without_keys_is_that_of_the_members_by_rank_and_gets_their_keys() -> None:
    memory = known("x", "y")
    unkeyed = replace(memory, workers=tuple(worker._replace(key="") for worker in memory.workers))
    assert members_memory(unkeyed, of("x", "y", version=1)) == memory.workers
    assert members_memory(unkeyed, of("x", "y", version=2)) == memory.workers
    assert speeds(unkeyed, of("x", "y", version=2, generation=2)) == [0, 0]
    assert speeds(unkeyed, of("x", "y", "z")) == [0, 0, 0]


def test_no_two_values_of_a_job_share_a_name_in_the_one_object_that_is_stored() -> None:
    names = [name for name, _ in plain_fields(Remembered)]
    assert len(set(names)) == len(names)
    assert not {"schema", "workers", "worker_keys"} & set(names)
