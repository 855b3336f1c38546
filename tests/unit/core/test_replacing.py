"""Stragglers are acted on: one by fault is replaced by a newcomer that is faster, and nobody waits for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from heterotrain.contract import MEMBERS_CHANGE, MEMBERS_MAY_END, PHASE_PREPARING, PHASE_WAITING, Plan
from heterotrain_operator.core.lifecycle.prior import place_of
from heterotrain_operator.core.memory.replacements import (
    MOST_REPLACEMENTS,
    Remedies,
    Removal,
    Replacement,
    from_rows,
    rows_of,
)
from heterotrain_operator.core.model import Decision, Group, Job, Stragglers
from heterotrain_operator.core.state import Memory
from heterotrain_operator.core.stragglers.verdict import Remedy
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


# --- when ---------------------------------------------------------------------------------------------------------


def test_straggler_by_fault_is_replaced_by_one_plan_and_nobody_starts_again() -> None:
    made = world()
    before = {name: pod.uid for name, pod in made.workers.items()}
    slowed(made)
    decisions = made.run(20)
    assert reasons(decisions) == ["ReplacingStraggler", "WorkerReplaced"]
    swap = next(each for each in decisions if each.plan is not None and NEWCOMER in members(each.plan))
    assert SLOW not in members(swap.plan)
    assert swap.plan is not None
    assert swap.plan.continues > 0
    assert {name: pod.uid for name, pod in made.workers.items() if name != NEWCOMER} == {
        name: uid for name, uid in before.items() if name != SLOW
    }
    assert made.memory.budget.restarts == 0
    assert made.memory.remedies.replacing == ()
    assert made.decisions[-1].stragglers == ()


def test_newcomer_is_created_only_after_two_intervals_in_a_row_in_which_it_would_gain() -> None:
    made = world()
    slowed(made)
    counts = []
    while not made.run(1)[-1].create:
        counts.append(made.memory.workers[2].evidence.advised)
    assert counts[-2:] == [1, 2]
    assert max(counts[:-2]) <= 1
    assert made.decisions[-2].stragglers[0].remedy is made.decisions[-3].stragglers[0].remedy is Remedy.REPLACE


def test_gain_that_is_gone_in_one_interval_counts_from_the_beginning() -> None:
    made = world()
    slowed(made)
    while not any(row.evidence.advised for row in made.memory.workers):
        made.run(1)
    assert created(made.run(1)) == []
    rows = [row._replace(evidence=row.evidence._replace(named=0)) for row in made.memory.workers]
    made.memory = replace(made.memory, workers=tuple(rows))
    made.workers[SLOW].scale /= 4
    assert created(made.run(15)) == []
    assert not any(row.evidence.advised for row in made.memory.workers)


@pytest.mark.parametrize("limit", [0.5, 0.25])
def test_worker_that_its_limit_slows_is_never_replaced(limit: float) -> None:
    made = world()
    for worker in made.workers.values():
        worker.cpu_limit = 1.0
    made.run(4)
    made.workers[SLOW].cpu_limit = limit
    slowed(made, factor=1 / limit)
    assert created(made.run(25)) == []


@pytest.mark.parametrize("action", ["Ignore", "Report", "Rebalance"])
def test_nobody_is_replaced_where_the_user_does_not_want_it(action: str) -> None:
    made = world(Stragglers(action=action, cooldown_seconds=0))
    slowed(made)
    assert created(made.run(20)) == []
    assert SLOW in members(made.plan)


def test_job_decides_as_before_unless_the_field_says_otherwise() -> None:
    silent, plain = world(Stragglers(action="Report")), world(Stragglers())
    for each in (silent, plain):
        slowed(each)
    assert [each.plan for each in silent.run(15)] == [each.plan for each in plain.run(15)]


def test_dry_run_replaces_nobody_and_says_so() -> None:
    made = world(dry_run=True)
    slowed(made)
    decisions = made.run(20)
    assert created(decisions) == []
    assert "dry run" in decisions[-1].stragglers[0].hindrance


def test_workers_that_meet_only_at_their_start_keep_their_straggler_and_are_balanced() -> None:
    made = world(protocol=1)
    slowed(made)
    decisions = made.run(20)
    assert created(decisions) == []
    [verdict] = decisions[-1].stragglers
    assert "cannot change while it trains" in verdict.hindrance
    assert made.plan is not None
    assert made.plan.batch_sizes[2] < min(batch for rank, batch in enumerate(made.plan.batch_sizes) if rank != 2)
    assert made.memory.budget.restarts == 0


def test_first_member_that_has_to_stay_is_not_replaced() -> None:
    made = world(protocol=MEMBERS_CHANGE)
    slowed(made, "job-a-0")
    decisions = made.run(20)
    assert created(decisions) == []
    assert "has to stay" in decisions[-1].stragglers[0].hindrance


@pytest.mark.parametrize(("peers", "replaced"), [(0, False), (2, True)])
def test_worker_that_always_was_too_slow_is_replaced_only_where_others_of_its_group_are_faster(
    peers: int, replaced: bool
) -> None:
    groups = (Group("a", 3), Group("c", 1 + peers, batch_min=32))
    settings = Stragglers(action="Replace", cooldown_seconds=0)
    job = Job("job", groups, 192, stragglers=settings)
    made = World(job, {"job-c-0": 6.0}, noise=0.03, seed=1, protocol=MEMBERS_MAY_END).start()
    decisions = made.run(25)
    assert bool(created(decisions)) is replaced


def test_restart_is_counted_as_no_change_of_members() -> None:
    made = world(protocol=MEMBERS_CHANGE)
    made.job = replace(made.job, groups=(Group("a", 7),))
    made.tick()
    made.tick()
    assert made.memory.transitions.switching == "join"
    made.workers["job-a-1"].end(137)
    for _ in range(8):
        made.train(2)
        made.tick(5)
    assert made.memory.budget.restarts == 1
    assert (made.memory.transitions.joins, made.memory.transitions.switching) == (0, "")


def test_straggler_that_is_about_to_leave_is_not_deleted_while_the_job_ends() -> None:
    made = world(protocol=MEMBERS_CHANGE)
    slowed(made)
    while not (made.plan is not None and NEWCOMER in members(made.plan)):
        made.run(1)
    made.workers["job-a-0"].end(0, finished=True)  # before anybody has gone over
    assert SLOW not in made.tick().delete


def test_straggler_of_a_group_that_changes_by_plan_alone_is_replaced() -> None:
    made = world(protocol=MEMBERS_CHANGE)
    slowed(made)
    made.run(20)
    assert members(made.plan) == ["job-a-0", "job-a-1", "job-a-3", "job-a-4", "job-a-5", NEWCOMER]
    assert made.memory.budget.restarts == 0


# --- until the newcomer is warm -----------------------------------------------------------------------------------


def test_nothing_changes_before_the_newcomer_is_warm() -> None:
    made = world()
    slowed(made)
    until_created(made)
    prepares(made)
    before = members(made.plan)
    decisions = made.run(5)
    assert members(made.plan) == before
    assert created(decisions) == []
    assert [each.delete for each in decisions] == [()] * 5
    assert decisions[-1].replacing == ((SLOW, NEWCOMER),)


def test_replacement_that_dies_while_it_warms_leaves_all_as_it_was() -> None:
    made = world(Stragglers(action="Replace", cooldown_seconds=60), backoff_limit=0)
    slowed(made)
    until_created(made)
    prepares(made)
    made.run(2)
    before = members(made.plan)
    made.workers[NEWCOMER].end_for_good("no such device")
    decisions = made.run(3)
    assert reasons(decisions[:1]) == ["ReplacementGivenUp"]
    assert all(each.phase == "Running" for each in decisions)
    assert members(made.plan) == before
    assert NEWCOMER not in made.workers
    assert made.memory.budget.restarts == 0
    assert made.memory.pending == ()


def test_another_newcomer_is_tried_as_often_as_places_are_then_the_straggler_stays() -> None:
    made = world(Stragglers(action="Replace", cooldown_seconds=1e6), backoff_limit=2)
    slowed(made)
    decisions = until_created(made)
    for _ in range(40):
        for name, pod in made.workers.items():
            if name not in members(made.plan) and pod.exit_code is None:
                pod.end(1)
        made.train(5)
        decisions.append(made.tick(5))
    assert reasons(decisions) == ["ReplacingStraggler", "ReplacementFailed", "ReplacementFailed", "ReplacementGivenUp"]
    assert len(created(decisions)) == 3
    assert SLOW in members(made.plan)
    assert made.memory.remedies.replacements == 1


def test_newcomer_that_never_starts_is_given_up_after_the_startup_deadline() -> None:
    settings = Stragglers(action="Replace", cooldown_seconds=60)
    made = world(settings, backoff_limit=0, startup_deadline_seconds=100.0, progress_timeout_seconds=1e6)
    slowed(made)
    until_created(made)
    prepares(made)
    made.tick(60)
    assert NEWCOMER in made.workers
    decision = made.tick(60)
    assert NEWCOMER in decision.delete
    assert reasons([decision]) == ["ReplacementGivenUp"]


def test_newcomer_whose_warm_up_shows_no_gain_goes_and_the_straggler_stays() -> None:
    made = world(Stragglers(action="Replace", cooldown_seconds=1e6))
    slowed(made)
    until_created(made)
    is_warm(made, seconds=4 * (0.002 + 0.032))
    decisions = made.run(3)
    assert reasons(decisions) == ["ReplacementGivenUp"]
    assert "warm-up" in next(e.message for each in decisions for e in each.events if e.reason == "ReplacementGivenUp")
    assert SLOW in members(made.plan)
    assert NEWCOMER not in made.workers


def test_newcomer_at_the_straggler_s_place_is_taken_for_as_slow_unless_its_warm_up_shows_otherwise() -> None:
    for seconds, joins in ((None, False), (0.034, True)):
        made = world(Stragglers(action="Replace", cooldown_seconds=1e6))
        slowed(made)
        until_created(made)
        made.workers[NEWCOMER].node = "node-2"
        place = place_of(made.workers[NEWCOMER].seen())
        rows = [row._replace(place=place) if rank == 2 else row for rank, row in enumerate(made.memory.workers)]
        made.memory = replace(made.memory, workers=tuple(rows))
        is_warm(made, seconds=seconds)
        made.run(6)
        assert (NEWCOMER in members(made.plan)) is joins


def test_name_of_a_newcomer_that_goes_is_not_free_before_it_is_gone() -> None:
    made = world()
    slowed(made)
    until_created(made)
    prepares(made)
    made.job = replace(made.job, groups=(Group("a", 7),), stragglers=Stragglers(action="Report"))
    decision = made.tick()
    assert NEWCOMER in decision.delete
    assert [key.name for key in decision.create] == ["job-a-7"]


def test_straggler_that_recovers_stays_and_the_newcomer_goes() -> None:
    made = world()
    slowed(made)
    until_created(made)
    prepares(made)
    made.workers[SLOW].scale /= 4
    decisions = made.run(15)
    assert reasons(decisions, "StragglerRecovered", "ReplacementGivenUp") == [
        "StragglerRecovered",
        "ReplacementGivenUp",
    ]
    assert NEWCOMER not in made.workers


def test_newcomer_has_an_index_that_nobody_had_before_it() -> None:
    made = world()
    slowed(made)
    made.run(20)
    assert SLOW not in made.workers
    slowed(made, "job-a-4")
    assert [key.name for each in until_created(made) for key in each.create] == ["job-a-7"], "and not the free 2"


def test_newcomer_takes_the_place_of_a_straggler_that_dies_meanwhile() -> None:
    made = world()
    slowed(made)
    until_created(made)
    prepares(made)
    made.workers[SLOW].end(137)
    made.run(1)
    is_warm(made)
    made.run(6)
    assert len(members(made.plan)) == 6
    assert SLOW not in members(made.plan)
    assert made.created == 7, "and no other one is created"
    assert made.memory.remedies.replacing == ()


def test_newcomer_whose_swap_no_split_allows_is_kept_and_swapped_once_one_does() -> None:
    made = world()
    slowed(made)
    until_created(made)
    prepares(made)
    group = replace(made.job.groups[0], batch_min=32)  # as many as the global batch holds
    made.job = replace(made.job, groups=(replace(group, replicas=7),))
    made.tick()
    is_warm(made, seconds=0.034)
    decisions = made.run(3)
    assert f"{NEWCOMER} cannot take the place of {SLOW} yet" in decisions[-1].reason
    stored = made.memory.remedies.replacing
    decisions += made.run(3)
    assert made.memory.remedies.replacing == stored, "nothing is written again and again"
    assert (reasons(decisions), created(decisions)) == ([], [])
    assert NEWCOMER in made.workers
    assert SLOW in members(made.plan)
    made.job = replace(made.job, groups=(group,))
    assert reasons(made.run(6)) == ["WorkerReplaced"]


# --- between the plan that swaps the two and the step at which all go over to it ------------------------------------


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


@pytest.mark.parametrize("forgetful", [False, True])
@pytest.mark.parametrize("protocol", [MEMBERS_CHANGE, MEMBERS_MAY_END])
@pytest.mark.parametrize("how", ["kill", "preempt", "fatal", "delete", "vanish"])
def test_straggler_whose_newcomer_fails_before_the_switch_stays_a_member(
    protocol: int, how: str, forgetful: bool
) -> None:
    made = swapping(protocol)
    made.forgetful = forgetful
    uid, before = made.workers[SLOW].uid, made.created
    fails(made, how)
    decision = made.tick()
    assert decision.phase == "Running"
    assert sorted(members(decision.plan)) == [f"job-a-{index}" for index in range(6)]
    assert decision.create == ()
    assert SLOW not in decision.delete
    assert decision.plan is not None
    assert decision.plan.continues > 0
    assert reasons([decision]) == ["ReplacementFailed"]
    assert decision.plan.batch_sizes[-1] < min(decision.plan.batch_sizes[:-1]), "it is as slow as it was"
    decisions = made.run(12)
    assert reasons(decisions) == ["WorkerReplaced"], "another newcomer takes the place"
    assert len(members(made.plan)) == 6
    assert SLOW not in members(made.plan)
    assert made.workers.keys() - set(members(made.plan)) <= {NEWCOMER if how == "delete" else ""}
    assert (made.created, made.memory.budget.restarts, made.memory.pending) == (before + 1, 0, ())
    assert uid not in {pod.uid for pod in made.workers.values()}


def test_two_stragglers_whose_newcomers_fail_together_get_one_each() -> None:
    made = world(Stragglers(action="Replace", cooldown_seconds=0, max_replacements=4), replicas=8)
    stragglers, newcomers = {"job-a-2", "job-a-3"}, ("job-a-8", "job-a-9")
    slowed(made, *stragglers)
    while not made.workers.keys() >= set(newcomers):
        made.run(1)
        for name in made.workers.keys() & set(newcomers):
            prepares(made, name)
    for name in newcomers:
        is_warm(made, name)
    while not stragglers.isdisjoint(members(made.plan)):
        decision = made.tick()
    assert decision.plan is not None
    assert set(newcomers) <= set(members(made.plan))
    for name in newcomers:
        fails(made, "kill", name)
    made.tick()
    assert stragglers <= set(members(made.plan))
    assert len({entry.index for entry in made.memory.remedies.replacing}) == 2
    decisions = made.run(30)
    assert reasons(decisions, "WorkerReplaced") == ["WorkerReplaced"] * 2
    assert len(members(made.plan)) == 8
    assert stragglers.isdisjoint(members(made.plan))


def test_straggler_stays_where_no_newcomer_is_ever_followed() -> None:
    made = world(Stragglers(action="Replace", cooldown_seconds=1e6), backoff_limit=1)
    training = made.cluster.training
    publish = type(training).publish
    there = {f"job-a-{index}" for index in range(6)}
    vars(training)["publish"] = lambda plan: publish(training, plan) if set(members(plan)) <= there else None
    slowed(made)
    decisions = []
    for _ in range(120):
        made.train(2)
        decisions.append(made.tick(5))
        assert decisions[-1].phase == "Running"
    assert reasons(decisions) == ["ReplacingStraggler", "ReplacementFailed", "ReplacementGivenUp"]
    assert made.workers.keys() == set(members(made.plan)) == there
    assert made.memory.budget.restarts == 0


def test_place_of_straggler_and_newcomer_that_both_fail_is_filled_once() -> None:
    made = swapping()
    fails(made, "kill")
    fails(made, "kill", SLOW)
    made.run(8)
    assert len(members(made.plan)) == 6
    assert made.created == 8
    assert made.memory.remedies.replacing == ()


def test_swap_begins_with_what_is_known_of_the_place_and_not_with_equal_batches() -> None:
    made = world(replicas=4)
    made.workers["job-a-0"].scale *= 0.5
    made.workers["job-a-1"].scale *= 0.5
    made.run(20)
    slowed(made, "job-a-3")
    decisions = made.run(20)
    swap = next(each for each in decisions if each.plan is not None and "job-a-4" in members(each.plan))
    assert swap.plan is not None
    batches = dict(zip(members(swap.plan), swap.plan.batch_sizes, strict=True))
    # The newcomer is expected to be as fast as the straggler was when it was healthy: half as fast as the first two.
    assert batches["job-a-4"] == pytest.approx(batches["job-a-2"], rel=0.25)
    assert batches["job-a-4"] < 0.75 * batches["job-a-0"]


@pytest.mark.parametrize(("scale", "share"), [(2.0, 0.5), (1.0, 1.0), (0.25, 1.0)])
def test_swap_gives_a_newcomer_the_batch_that_fits_its_warm_up_but_no_more_than_a_healthy_worker(
    scale: float, share: float
) -> None:
    made = world()
    slowed(made, factor=6.0)
    until_created(made)
    made.workers[NEWCOMER].scale = scale
    is_warm(made, seconds=scale * (0.002 + 0.032))
    swap = made.run(1)[-1]
    assert swap.plan is not None
    batches = dict(zip(members(swap.plan), swap.plan.batch_sizes, strict=True))
    assert batches[NEWCOMER] == pytest.approx(share * batches["job-a-0"], rel=0.2)


# --- how often ----------------------------------------------------------------------------------------------------


def test_no_more_are_replaced_than_the_budget_allows() -> None:
    made = world(Stragglers(action="Replace", cooldown_seconds=0, max_replacements=1))
    slowed(made)
    slowed(made, "job-a-4", factor=3.0)
    decisions = made.run(40)
    assert reasons(decisions) == ["ReplacingStraggler", "WorkerReplaced"]
    [verdict] = decisions[-1].stragglers
    assert verdict.worker == "job-a-4"
    assert "no replacement is left" in verdict.hindrance


def test_two_replacements_are_as_far_apart_as_the_cooldown() -> None:
    made = world(Stragglers(action="Replace", cooldown_seconds=600))
    slowed(made)
    slowed(made, "job-a-4", factor=3.0)
    decisions = made.run(40)
    assert reasons(decisions, "ReplacingStraggler") == ["ReplacingStraggler"]
    made.now += 600
    assert reasons(made.run(4), "ReplacingStraggler") == ["ReplacingStraggler"]


def test_without_a_cooldown_stragglers_are_replaced_beside_one_another() -> None:
    made = world()
    slowed(made, SLOW, "job-a-4")
    made.run(25)
    assert members(made.plan)[:4] == ["job-a-0", "job-a-1", "job-a-3", "job-a-5"]
    assert len(members(made.plan)) == 6


# --- what is remembered -------------------------------------------------------------------------------------------


def test_replacement_outlives_the_operator() -> None:
    made = world()
    made.forgetful = True
    slowed(made)
    until_created(made)
    prepares(made)
    made.run(2)
    made.memory = Memory.from_json(made.memory.to_json())
    decisions = made.run(2)
    is_warm(made)
    decisions += made.run(6)
    assert created(decisions) == []
    assert reasons(decisions) == ["WorkerReplaced"]


def test_memory_that_is_lost_takes_the_newcomer_for_one_too_many() -> None:
    made = world()
    slowed(made)
    until_created(made)
    prepares(made)
    made.memory = Memory.initial()
    made.run(3)
    assert NEWCOMER not in made.workers
    assert SLOW in members(made.plan)


def test_suspended_job_keeps_no_newcomer() -> None:
    made = world()
    slowed(made)
    until_created(made)
    prepares(made)
    made.job = replace(made.job, suspend=True)
    assert NEWCOMER in made.tick().delete
    made.tick()
    assert made.memory.remedies.replacing == ()


def test_job_that_succeeds_gives_the_newcomer_up() -> None:
    made = world()
    slowed(made)
    until_created(made)
    prepares(made)
    for name, pod in made.workers.items():
        if name != NEWCOMER:
            pod.end(0, finished=True)
    decided = made.tick()
    assert decided.phase == "Succeeded"
    assert NEWCOMER in decided.delete
    assert reasons([decided]) == ["ReplacementGivenUp"]
    assert decided.replacing == made.memory.remedies.replacing == ()
    assert reasons([made.tick()]) == []


def test_newcomer_goes_once_the_members_can_no_longer_change_while_they_train() -> None:
    made = world()
    slowed(made)
    until_created(made)
    prepares(made)
    for name, pod in made.workers.items():
        if name != NEWCOMER:
            pod.protocol = 1
    decided = made.run(1)[-1]
    assert decided.phase == "Running"
    assert NEWCOMER in decided.delete
    [event] = [event for event in decided.events if event.reason == "ReplacementGivenUp"]
    assert event.message == "job-a-2 stays: the members can no longer change while they train"
    assert decided.replacing == made.memory.remedies.replacing == ()
    assert reasons(made.run(3)) == []
    assert SLOW in members(made.plan)


def test_newcomer_after_whose_joining_members_can_no_longer_change_has_replaced_the_straggler() -> None:
    made = world()
    slowed(made)
    decisions = until_created(made)
    while NEWCOMER not in members(made.plan):
        decisions += made.run(1)
    for pod in made.workers.values():
        pod.protocol = 1
    decisions += made.run(3)
    assert reasons(decisions) == ["ReplacingStraggler", "WorkerReplaced"]
    assert made.memory.remedies.replacing == ()
    assert NEWCOMER in members(made.plan)


@pytest.mark.parametrize(
    "rows",
    [None, 5, [5], [["a"]], [["a", -1, "b", "x" * 6, "", 0, 0, 0, 0, 0]], [["a", 1, "b", "short", "", 0, 0, 0, 0, 0]]],
)
def test_malformed_replacements_are_none(rows: object) -> None:
    assert from_rows(rows) == ()


def test_replacements_read_back_as_they_were_written_and_no_more_than_are_allowed() -> None:
    each = Replacement("a", 7, "job-a-1", "abcdef", "it is slow", 1, 5.0, 6.0, 0.25, 32.5)
    assert from_rows(rows_of([each])) == (each,)
    assert len(from_rows(rows_of([each] * 40))) == MOST_REPLACEMENTS
    remedies = Remedies(replacing=(each,), removed=(Removal("a", 3, 1),), replacements=2, replaced_at=5.0)
    memory = Memory(remedies=remedies)
    assert Memory.from_json(memory.to_json()) == memory
    assert memory.moved(10).remedies.replacing[0].created_at == 16.0


# --- what changes cost ----------------------------------------------------------------------------------------------


def test_standstill_of_a_change_is_measured_and_is_what_a_replacement_costs() -> None:
    made = world()
    slowed(made)
    made.run(20)
    assert (made.memory.transitions.swaps, made.memory.transitions.joins, made.memory.transitions.leaves) == (1, 0, 0)
    assert 0 < made.memory.transitions.transition_seconds < 5
    slowed(made, "job-a-4", factor=1.5)
    last = made.run(20)
    ahead = next(v.outlooks for each in last for v in each.stragglers if v.outlooks is not None)
    assert ahead.replacement_seconds < 7


def test_replacement_costs_a_whole_start_where_workers_only_meet_at_their_start() -> None:
    made = world(protocol=1)
    made.memory = replace(made.memory, start=replace(made.memory.start, start_seconds=33.0))
    slowed(made)
    [verdict] = made.run(15)[-1].stragglers
    assert verdict.outlooks is not None
    assert verdict.outlooks.replacement_seconds == 33.0
