"""The next plan's number, and what is remembered when a plan takes another's place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heterotrain.contract import Plan
from heterotrain.foreign import MAX_WHOLE
from heterotrain_operator.core.batching.policy import Promise
from heterotrain_operator.core.batching.rollback import promised, trusted_anew
from heterotrain_operator.core.facts import Facts
from heterotrain_operator.core.prediction.batch_cost import remember
from heterotrain_operator.core.prediction.step_time import estimate_of
from heterotrain_operator.core.prediction.throughput_cap import forgotten, raised
from heterotrain_operator.core.state import Memory, WorkerMemory


def next_version(facts: Facts, memory: Memory) -> int:
    """Greater than any plan seen: the one in force, the one remembered, and every one that a worker follows.

    So a deleted plan never strands workers, which ignore older ones. Numbers that no plan can have are nobody's.
    """
    versions = [memory.plan_version, *(w.metrics.plan_version for w in facts.workers if w.metrics is not None)]
    if facts.plan is not None:
        versions.append(facts.plan.version)
    return max(version for version in (0, *versions) if version < MAX_WHOLE) + 1


def rebalanced_plan(memory: Memory, before: Plan, version: int, apply_at: str, batches: Sequence[int]) -> Plan:
    """The same members under a new version with other batches; the generation stays."""
    return replace(
        before,
        version=version,
        generation=max(before.generation, memory.generation),
        apply_at=apply_at,
        members=tuple(replace(member, batch_size=batch) for member, batch in zip(before.members, batches, strict=True)),
    )


def adjusted(
    memory: Memory,
    before: Plan,
    after: Plan,
    now: float,
    *,
    stage: int | None,
    promise: Promise | None = None,
    foretold: Sequence[bool] = (),
) -> Memory:
    """Memory once `after` replaces `before` with the same members: what was measured becomes a point of the
    shapes, and what `after` promises, and on whose `foretold` speed it rests (by rank), is remembered.
    """
    memory = promised(memory, promise, before.batch_sizes)
    foretold = foretold or (False,) * len(after.members)
    workers = tuple(
        replace(_ended_plan(known, old.batch_size, new.batch_size, is_measured=not expected), foretold=int(expected))
        for known, old, new, expected in zip(memory.workers, before.members, after.members, foretold, strict=True)
    )
    return replace(
        memory,
        plan_version=after.version,
        generation=after.generation,
        published_at=now,
        workers=workers,
        adjustments=memory.adjustments + (before.batch_sizes != after.batch_sizes),
        stage=memory.stage if stage is None else stage,
    )


def recovered_plan(memory: Memory, after: Plan, now: float) -> Memory:
    """Memory once a lost plan is published anew: of the same workers the knowledge stays."""
    same = memory.generation == after.generation and len(memory.workers) == len(after.members)
    workers = memory.workers if same else (WorkerMemory(),) * len(after.members)
    return replace(
        memory,
        plan_version=after.version,
        generation=after.generation,
        started_at=now if memory.started_at is None else memory.started_at,
        published_at=now,
        workers=tuple(worker.unmeasured() for worker in workers),
    )


def known_workers(memory: Memory, plan: Plan | None) -> dict[str, WorkerMemory]:
    """What is remembered of the members of the last plan, by name, ready for a new generation."""
    if plan is None or plan.version != memory.plan_version or len(plan.members) != len(memory.workers):
        return {}
    return {
        member.name: _ended_plan(worker, member.batch_size, member.batch_size)
        for member, worker in zip(plan.members, memory.workers, strict=True)
    }


def started_plan(memory: Memory, after: Plan, now: float, knowledge: Sequence[WorkerMemory]) -> Memory:
    """Memory once a new generation starts, with what is known of `after`'s members, by rank; measurements begin
    again."""
    passed = memory.progress_step > memory.script_error_step
    return replace(
        trusted_anew(memory),
        plan_version=after.version,
        generation=after.generation,
        published_at=now,
        generation_at=now,
        unexplained_at=None,
        starting_at=None,
        restart_at=None,
        placements=0,
        half_placed_at=None,
        most_placed=0,
        pods_created_at=None,
        progress_step=-1,
        progress_at=now,
        advanced_at=now,
        between_steps=False,
        stepped=False,
        script_error_step=-1 if passed else memory.script_error_step,
        reason="",
        message="",
        workers=tuple(knowledge),
    )


def _ended_plan(known: WorkerMemory, old_batch: int, new_batch: int, *, is_measured: bool = True) -> WorkerMemory:
    estimate = estimate_of(known) if old_batch > 0 else None
    remembered = remember(known, old_batch, estimate)
    # A throughput that is only expected is none that a raise could be held to.
    watched = raised(remembered, old_batch, new_batch, estimate) if is_measured else forgotten(remembered)
    return watched.unmeasured()
