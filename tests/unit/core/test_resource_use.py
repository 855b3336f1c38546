"""A change of speed is explained by what steps spent before and after, and only by what accounts for most of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain.foreign import MAX_NUMBER
from heterotrain_operator.core.model import Decision, WorkerMetrics
from heterotrain_operator.core.prediction.causes import explained, window_closed
from heterotrain_operator.core.prediction.resource_use import WRAP, Cause, ResourceUse, Spent, name_of
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.state import Memory
from unit.core.metered import NAME, MeteredWorld

SLOWED = [
    (
        "cpu_wait_seconds",
        Cause.NEIGHBOUR,
        "it waited for a CPU 60 % of the time, 1 % before: a neighbour",
    ),
    (
        "cpu_throttled_seconds",
        Cause.CPU_LIMIT,
        "its unchanged CPU limit held it back 68 % of the time, 20 % before: a fault, or a neighbour under the same "
        "limit",
    ),
    (
        "cpu_seconds",
        Cause.COMPUTATION,
        "it used 188 % more CPU time per step: the script does more, or its CPU is slower",
    ),
    (
        "",
        Cause.SCRIPT,
        "it used no more CPU time and waited for no CPU: the script itself (input, output, a lock)",
    ),
]


@pytest.mark.parametrize(("kind", "cause", "words"), SLOWED)
def test_jump_is_explained_by_what_its_steps_spend_more_of(kind: str, cause: Cause, words: str) -> None:
    world = MeteredWorld()
    world.run(5)
    assert world.cause == Cause.NONE
    world.disturb(2.5, kind)
    reason = world.run(1)[0].reason
    assert f"{NAME} went from 148 ms to 370 ms: {words}" in reason
    assert world.cause == cause
    world.run(3)
    assert world.cause == cause, "it lasts"
    world.disturb(1.0)
    assert f"{NAME} went from" in world.run(1)[0].reason
    assert world.cause == Cause.NONE


def test_neighbour_that_leaves_is_said_to_have_been_one() -> None:
    world = MeteredWorld()
    world.disturb(2.5, "cpu_wait_seconds")
    world.run(5)
    world.disturb(1.0)
    assert "to 148 ms: it waited for a CPU 1 % of the time, 60 % before" in world.run(1)[0].reason


def test_neighbour_that_came_and_left_is_said_to_be_gone() -> None:
    world = MeteredWorld()
    world.run(10)
    world.disturb(2.5, "cpu_wait_seconds")
    world.run(3)
    world.disturb(1.0)
    assert "to 148 ms: it waits for a CPU 1 % of the time now" in world.run(1)[0].reason
    world.disturb(2.5, "cpu_throttled_seconds")
    assert "its unchanged CPU limit held it back 68 % of the time, 15 % before" in world.run(1)[0].reason


def test_what_many_steps_spent_in_the_mean_explains_no_jump_the_other_way() -> None:
    world = MeteredWorld()
    world.disturb(10.0, "cpu_wait_seconds")
    world.run(3)
    world.disturb(1.0)
    world.run(1)
    world.disturb(4.0, "cpu_wait_seconds")  # slower than last, quicker than most
    [decision] = world.run(1)
    assert decision.reason.endswith(" to 592 ms")


def test_cause_ends_with_what_it_was_seen_by() -> None:
    world = MeteredWorld()
    world.run(3)
    world.disturb(2.5, "cpu_wait_seconds")
    world.run(2)
    assert world.cause == Cause.NEIGHBOUR
    world.disturb(2.5, "cpu_seconds")
    world.run(1)
    assert world.cause == Cause.NONE


def test_lowered_limit_is_neither_fault_nor_neighbour() -> None:
    world = MeteredWorld()
    world.workers[NAME].cpu_limit = 1.0
    world.run(3)
    world.workers[NAME].cpu_limit = 0.5
    world.disturb(5.0, "cpu_throttled_seconds")  # and so more than the limits predict
    world.tick()
    assert world.cause == Cause.LIMIT_CHANGED
    assert f"{NAME} went from 296 ms to 740 ms: its CPU limit changed" in world.run(1)[0].reason
    assert world.cause == Cause.NONE


def test_script_that_computes_more_under_a_limit_that_binds_is_not_the_limits_fault() -> None:
    found = explained(Spent(0.05, 0.05, 0.0), Spent(0.1, 0.1, 0.0), 0.1, 0.2, on_cpu=True)
    assert found is not None
    assert found.cause is Cause.COMPUTATION


def test_limit_that_holds_several_threads_back_does_so_side_by_side() -> None:
    found = explained(Spent(0.4, 0.0, 0.0), Spent(0.4, 0.4, 0.0), 0.1, 0.2, on_cpu=True)
    assert found is not None
    assert found.words.startswith("its unchanged CPU limit held it back 50 % of the time, 0 % before")
    few = explained(Spent(0.4, 0.0, 0.0), Spent(0.4, 0.1, 0.0), 0.1, 0.2, on_cpu=True)
    assert few is not None
    assert few.cause is Cause.SCRIPT


def test_worker_that_waited_most_of_the_time_before_is_told_by_its_seconds() -> None:
    found = explained(Spent(0.04, 0.0, 0.1), Spent(0.04, 0.0, 0.2), 0.11, 0.21, on_cpu=True)
    assert found is not None
    assert found.words == "it waited for a CPU 200 ms per step, 100 ms before: a neighbour"


@pytest.mark.parametrize(
    "spent",
    [
        Spent(None, None, None),
        Spent(0.1, None, None),
        Spent(0.14, 0.03, 0.03),  # a third of everything
    ],
)
def test_what_figures_do_not_tell_is_not_explained(spent: Spent) -> None:
    assert explained(Spent(0.1, 0.0, 0.0), spent, 0.1, 0.2, on_cpu=True) is None


@pytest.mark.parametrize(
    ("earlier", "spent"),
    [
        (Spent(0.1, 0.0, 0.0), Spent(0.4, 0.0, 0.1)),  # a neighbour came in the window of the first evaluation
        (Spent(0.4, 0.0, 0.0), Spent(0.1, 0.1, 0.0)),  # the limit held it back in the first window without one
    ],
)
def test_cpu_time_that_steps_cannot_have_used_explains_nothing(earlier: Spent, spent: Spent) -> None:
    assert explained(earlier, spent, 0.1, 0.2, on_cpu=True) is None


def test_gpu_may_wait_for_something_without_the_script_being_at_fault() -> None:
    for cpu in (0.1, 0.2):  # asleep, or in a loop
        assert explained(Spent(0.1, 0.0, 0.0), Spent(cpu, 0.0, 0.0), 0.1, 0.2, on_cpu=False) is None


def test_workers_that_export_none_of_this_are_followed_as_before() -> None:
    world = MeteredWorld()
    world.exports = False
    world.run(3)
    world.disturb(2.5)
    assert f"{NAME} went from 148 ms to 370 ms" in world.run(1)[0].reason
    assert world.memory.workers[1].resource_use == ResourceUse()


def test_jump_is_explained_however_long_the_plan_is_active() -> None:
    known, steps = ResourceUse(), 100.0

    def metrics(steps: float, waited: float) -> WorkerMetrics:
        cpu = 0.1 * steps
        return WorkerMetrics(
            1,
            steps=steps,
            own_seconds=cpu + waited,
            observed_seconds=cpu + waited,
            cpu_seconds=cpu,
            cpu_throttled_seconds=0.0,
            cpu_wait_seconds=waited,
        )

    before = Estimate(0.1, 0.0, 100)
    for _ in range(5):
        steps += 4 * WRAP / 100  # 400 seconds of 0.1 s each
        known, _ = window_closed(
            known,
            metrics(steps, 0.0),
            Estimate(0.1, 0.0, 9),
            before=before,
            jumped=False,
            at_new_batch=False,
            on_cpu=True,
        )
        assert all(0 <= each <= WRAP for each in known)
    now = metrics(steps + 10, 1.0)
    _, words = window_closed(
        known, now, Estimate(0.2, 0.0, 10), before=before, jumped=True, at_new_batch=False, on_cpu=True
    )
    assert words == "it waited for a CPU 50 % of the time, 0 % before: a neighbour"


def test_counters_that_began_again_count_from_there() -> None:
    known = ResourceUse(cpu=5000, waited=90)
    now = WorkerMetrics(1, steps=10.0, observed_seconds=2.0, cpu_seconds=1.0, cpu_wait_seconds=1.0)
    _, words = window_closed(
        known, now, Estimate(0.2, 0.0, 10), before=Estimate(0.1, 0.0, 10), jumped=True, at_new_batch=False, on_cpu=True
    )
    assert words == "it waited for a CPU 50 % of the time: a neighbour"


BEFORE, SLOWER, FASTER = Estimate(0.1, 0.0, 200), Estimate(0.2, 0.0, 10), Estimate(0.05, 0.0, 10)


def counted(steps: int, **totals: float | None) -> WorkerMetrics:
    """Counters after so many steps of 0.1 s; those of the CPU in seconds in all, by default 0.05 each of computing and
    throttling for each step.
    """
    usual = WorkerMetrics(
        1,
        steps=float(steps),
        own_seconds=0.1 * steps,
        observed_seconds=0.1 * steps,
        cpu_seconds=0.05 * steps,
        cpu_throttled_seconds=0.05 * steps,
        cpu_wait_seconds=0.0,
    )
    return replace(usual, **totals)  # type: ignore[arg-type]  # all are floats, or None


def after(*seen: WorkerMetrics) -> ResourceUse:
    """What is remembered after undisturbed windows that ended with these counters."""
    use = ResourceUse()
    for metrics in seen:
        use, _ = window_closed(
            use, metrics, Estimate(0.1, 0.0, 10), before=BEFORE, jumped=False, at_new_batch=False, on_cpu=True
        )
    return use


@pytest.mark.parametrize("figure", ["cpu_seconds", "cpu_throttled_seconds", "cpu_wait_seconds", "observed_seconds"])
def test_counter_that_was_missing_when_the_window_began_or_ended_explains_nothing(figure: str) -> None:
    usual = counted(90), counted(100, **{figure: None})
    totals = {"cpu_seconds": 5.5, "cpu_throttled_seconds": 5.5, "cpu_wait_seconds": 9.0, "observed_seconds": 12.0}
    now = counted(110, **{figure: totals[figure]})
    for began, ended in ((usual[1], now), (usual[0], usual[1])):
        use, words = window_closed(
            after(began), ended, SLOWER, before=BEFORE, jumped=True, at_new_batch=False, on_cpu=True
        )
        assert (use.cause, words) == (Cause.NONE, "")
    assert after(*usual, now) == after(now), "the next window is counted again"


def test_limit_that_was_lost_from_sight_is_not_said_to_hold_nobody_back() -> None:
    for began, said in ((counted(90), ""), (counted(90, cpu_throttled_seconds=None), "what slowed it is over")):
        known = after(began)._replace(cause=int(Cause.CPU_LIMIT))
        now = counted(100, cpu_throttled_seconds=None)
        _, words = window_closed(known, now, FASTER, before=BEFORE, jumped=True, at_new_batch=False, on_cpu=True)
        assert words == said


def test_limit_that_always_holds_a_worker_back_is_not_to_blame_for_the_first_window_of_a_plan() -> None:
    now = WorkerMetrics(
        1,
        steps=10.0,
        own_seconds=2.0,
        observed_seconds=2.0,
        cpu_seconds=0.5,
        cpu_throttled_seconds=0.5,  # as before, and the script sleeps for the other second
        cpu_wait_seconds=0.0,
    )
    use, words = window_closed(ResourceUse(), now, SLOWER, before=BEFORE, jumped=True, at_new_batch=True, on_cpu=True)
    assert (use.cause, words) == (Cause.NONE, "")


def test_cause_that_a_newer_version_knows_is_no_cause_here() -> None:
    assert name_of(99) == ""
    assert name_of(Cause.SCRIPT) == "Script"


ANY = st.none() | st.floats() | st.floats(0, MAX_NUMBER)
PLAUSIBLE = st.floats(1e-7, 1e5)


METRICS = st.builds(
    WorkerMetrics,
    st.just(1),
    steps=st.sampled_from([10.0, 20.0]),
    own_seconds=st.floats(0, MAX_NUMBER),
    observed_seconds=ANY,
    cpu_seconds=ANY,
    cpu_throttled_seconds=ANY,
    cpu_wait_seconds=ANY,
)


@given(
    st.builds(ResourceUse, *[st.integers(0, 2**53)] * 4),
    METRICS,
    PLAUSIBLE,
    PLAUSIBLE,
    st.tuples(st.booleans(), st.booleans()),
)
def test_no_figure_makes_a_decision_fail(
    known: ResourceUse, metrics: WorkerMetrics, mean: float, was: float, how: tuple[bool, bool]
) -> None:
    before, window = Estimate(was, 0.0, 10), Estimate(mean, 0.0, 10)
    jumped, at_new_batch = how
    use, words = window_closed(
        known, metrics, window, before=before, jumped=jumped, at_new_batch=at_new_batch, on_cpu=True
    )
    assert all(isinstance(each, int) and each >= 0 for each in use)
    assert "nan" not in words
    assert "inf" not in words


def test_explanations_are_the_same_with_a_restart_between_every_two_decisions() -> None:
    def decisions(forgetful: bool) -> list[Decision]:
        world = MeteredWorld()
        world.forgetful = forgetful
        world.run(3)
        world.disturb(2.5, "cpu_wait_seconds")
        world.run(2)
        return world.decisions

    assert decisions(True) == decisions(False)


def test_memory_of_a_version_that_did_not_know_of_this_is_read() -> None:
    world = MeteredWorld()
    world.exports = False
    world.run(3)
    document = json.loads(world.memory.to_json())
    document["workers"] = [row[:31] for row in document["workers"]]
    text = json.dumps(document)
    world.memory, world.exports = Memory.from_json(text), True
    world.disturb(2.5, "cpu_wait_seconds")
    world.run(2)
    assert world.memory.workers[1].resource_use.cpu > 0
