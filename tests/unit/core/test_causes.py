"""A change of speed is explained by what steps spent before and after, and only by what accounts for most of it.

What holds a worker back is its speed, and what it computes the cost of its batch, even where both change at once.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain.foreign import MAX_NUMBER
from heterotrain_operator.core.model import WorkerMetrics
from heterotrain_operator.core.prediction.causes import (
    explained,
    remembered,
    shows_another_speed,
    window_closed,
)
from heterotrain_operator.core.prediction.resource_use import WRAP, Cause, ResourceUse, Spent
from heterotrain_operator.core.prediction.step_time import Estimate
from unit.core.traces import World, hetero_job

NAME = "job-g1-0"


class MeteredWorld(World):
    """Workers count what their steps spend: one CPU, held back for a fifth of the time by a limit that binds."""

    def __init__(self, policy: str = "Uniform", *, noise: float = 0.0, seed: int = 0, **changes: object) -> None:
        job = hetero_job(policy, (1, 1, 1), **changes)
        super().__init__(job, fixed=0.02, per_sample=0.002, noise=noise, seed=seed)
        self.disturbances: dict[str, tuple[float, str]] = {}
        self.exports = True
        self.start()

    def disturb(self, factor: float, kind: str = "", name: str = NAME) -> None:
        """By what factor one worker is slowed, and as what its seconds beyond the usual are counted."""
        self.workers[name].scale = factor
        self.disturbances[name] = factor, kind

    def train(self, steps: int) -> None:
        before = {name: worker.metrics for name, worker in self.workers.items()}
        super().train(steps)
        for member in self.plan.members if self.exports else ():
            worker, old = self.workers[member.name], before[member.name]
            same = old.plan_version == self.plan.version
            own = worker.metrics.own_seconds - (old.own_seconds if same else 0.0)
            factor, kind = self.disturbances.get(member.name, (1.0, ""))
            usual = own / factor
            spent = {"cpu_seconds": 0.8 * usual, "cpu_throttled_seconds": 0.2 * usual, "cpu_wait_seconds": 0.01 * usual}
            if kind:
                spent[kind] += own - usual
            totals = {
                name: (getattr(old, name) or 0.0) * same + seconds
                for name, seconds in {**spent, "observed_seconds": 1.2 * own}.items()
            }
            totals["computing_threads"] = 1.0
            worker.metrics = replace(worker.metrics, **totals)

    @property
    def cause(self) -> int:
        """What slowed the one that is disturbed, unless another one is named."""
        return self.memory.workers[1].resource_use.cause


@pytest.mark.parametrize(
    ("kind", "cause", "words"),
    [
        ("cpu_wait_seconds", Cause.NEIGHBOUR, "it waited for a CPU 60 % of the time, 1 % before: a neighbour"),
        (
            "cpu_throttled_seconds",
            Cause.CPU_LIMIT,
            "its unchanged CPU limit held it back 68 % of the time, 20 % before: ",
        ),
        (
            "cpu_seconds",
            Cause.COMPUTATION,
            "it used 188 % more CPU time per step: the script does more, or its CPU is ",
        ),
        ("", Cause.SCRIPT, "it used no more CPU time and waited for no CPU: the script itself (input, output, a lock)"),
    ],
)
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


@pytest.mark.parametrize(
    ("earlier", "spent", "on_cpu", "cause"),
    [
        (Spent(0.05, 0.05, 0.0), Spent(0.1, 0.1, 0.0), True, Cause.COMPUTATION),  # not the limit's fault
        (Spent(0.4, 0.0, 0.0), Spent(0.4, 0.4, 0.0), True, Cause.CPU_LIMIT),  # four threads, side by side
        (Spent(0.4, 0.0, 0.0), Spent(0.4, 0.1, 0.0), True, Cause.SCRIPT),
        (Spent(0.04, 0.0, 0.1), Spent(0.04, 0.0, 0.2), True, Cause.NEIGHBOUR),
        (Spent(0.1, 0.0, 0.0), Spent(None, None, None), True, None),
        (Spent(0.1, 0.0, 0.0), Spent(0.1, None, None), True, None),
        (Spent(0.1, 0.0, 0.0), Spent(0.14, 0.03, 0.03), True, None),  # a third of everything
        (Spent(0.1, 0.0, 0.0), Spent(0.4, 0.0, 0.1), True, None),  # more CPU time than steps can have used
        (Spent(0.4, 0.0, 0.0), Spent(0.1, 0.1, 0.0), True, None),
        (Spent(0.1, 0.0, 0.0), Spent(0.1, 0.0, 0.0), False, None),  # a GPU may wait for something
        (Spent(0.1, 0.0, 0.0), Spent(0.2, 0.0, 0.0), False, None),  # or the CPU for it, in a loop
    ],
)
def test_what_accounts_for_most_of_a_change_from_100_to_200_ms_is_its_cause(
    earlier: Spent, spent: Spent, on_cpu: bool, cause: Cause | None
) -> None:
    found = explained(earlier, spent, 0.1, 0.2, on_cpu=on_cpu)
    assert (found and found.cause) == cause


def closed(
    known: ResourceUse,
    metrics: WorkerMetrics,
    seconds: float,
    before: Estimate,
    *,
    jumped: bool = True,
    at_new_batch: bool = False,
) -> tuple[ResourceUse, str]:
    """After a window of ten steps of so many seconds."""
    window = Estimate(seconds, 0.0, 10)
    return window_closed(known, metrics, window, before=before, jumped=jumped, at_new_batch=at_new_batch, on_cpu=True)


@pytest.mark.parametrize(
    ("known", "throttled", "waited", "seconds", "was", "cause", "said"),
    [
        (Cause.NONE, 0.0, 1.4, 0.3, 0.15, Cause.NEIGHBOUR, "it waited"),
        (Cause.NONE, 0.0, 0.1, 0.3, 0.15, Cause.NONE, ""),
        (Cause.NONE, 0.0, None, 0.3, 0.15, Cause.NONE, ""),
        (Cause.NEIGHBOUR, 0.0, 0.1, 0.3, 0.6, Cause.NONE, "it waits for a CPU"),  # who has left
        (Cause.NONE, 1.5, 0.0, 0.3, 0.15, Cause.NONE, ""),  # as always, and the script sleeps more
    ],
)
def test_first_window_of_a_plan_shows_another_speed_only_where_waiting_for_a_cpu_began_or_ended(
    *, known: Cause, throttled: float, waited: float | None, seconds: float, was: float, cause: Cause, said: str
) -> None:
    own = 10 * seconds
    totals = {"cpu_seconds": 1.5, "cpu_throttled_seconds": throttled, "cpu_wait_seconds": waited}
    metrics = WorkerMetrics(2, steps=10.0, own_seconds=own, observed_seconds=own, **totals)
    use, words = closed(ResourceUse(cause=known), metrics, seconds, Estimate(was, 1e-6, 10), at_new_batch=True)
    assert use.cause == cause
    assert words.startswith(said) and bool(words) is bool(said)


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
    use, words = closed(known, metrics, mean, Estimate(was, 0.0, 10), jumped=how[0], at_new_batch=how[1])
    assert all(isinstance(each, int) and each >= 0 for each in use)
    assert "nan" not in words
    assert "inf" not in words


FIRST, SECOND = "job-g1-0", "job-g2-0"


def interfered(kind: str, *, exports: bool = True, noise: float = 0.0, seed: int = 0) -> MeteredWorld:
    """A neighbour beside one worker, then beside another; the first leaves as batches move because of the second, so
    that the new plan's first window shows another batch and another speed at once.
    """
    world = MeteredWorld("Optimal", noise=noise, seed=seed)
    world.exports = exports
    for worker in world.workers.values():
        worker.cpu_limit = 0.8  # cores; a worker that computes for 0.8 s in each second gets all of it
    world.run(4)
    world.disturb(2.5, kind, FIRST)
    world.run(6)
    world.disturb(2.5, kind, SECOND)
    assert world.run(1)[0].plan is not None
    world.disturb(1.0, name=FIRST)
    return world


@pytest.mark.parametrize("kind", ["cpu_throttled_seconds", "cpu_wait_seconds"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_neighbour_that_leaves_as_batches_move_is_seen_to_have_left(kind: str, seed: int) -> None:
    """Without the counters, its speed counts as the cost of its new batch, and the next plan is worse."""
    seen, unseen = interfered(kind, noise=0.05, seed=seed), interfered(kind, exports=False, noise=0.05, seed=seed)
    for world, is_seen in ((seen, True), (unseen, False)):
        world.run(1)
        slower = max(world.true_seconds()) / min(world.true_seconds())
        assert slower < 1.12 if is_seen else slower > 1.4


HELD = ResourceUse(held=250)
"""Under a limit of 0.4 cores that binds: 2.5 seconds for one of CPU time."""


@pytest.mark.parametrize(
    ("known", "now", "ratio", "cpu_limit", "threads", "at_new_batch", "is_shown"),
    [
        (HELD, 6.0, 1.8, 0.4, 1.0, False, True),
        (HELD, 6.0, 1.8, 0.4, 1.0, True, True),  # longer than the limit alone can do
        (HELD, 3.5, 1.8, 0.4, 1.0, True, False),  # windows vary by that much
        (HELD, 6.0, 1.1, 0.4, 1.0, True, False),  # it was held back, but not in its steps
        (HELD, 6.0, 0.7, 0.4, 1.0, True, False),
        (HELD, 1.1, 0.5, 0.4, 1.0, True, False),  # its smaller batch may leave quota over
        (HELD, 0.0, 1.8, 0.4, 1.0, True, False),  # not known
        (HELD._replace(held=100), 2.5, 1.5, 0.4, 1.0, True, False),  # it saved up quota before
        (HELD._replace(held=100), 2.0, 1.8, 2.0, 4.0, True, False),  # four threads on two cores
        (HELD._replace(held=100), 4.0, 1.8, 2.0, 4.0, True, True),
        (HELD._replace(held=100), 4.0, 1.8, 2.0, None, True, False),  # a trainer that does not say how many
        (HELD._replace(held=600), 2.5, 0.5, 0.4, 1.0, True, True),  # it shared its limit, and no longer does
        (HELD, 1.0, 0.5, 0.0, None, True, True),  # without a limit it waited for others
        (HELD._replace(cause=int(Cause.LIMIT_CHANGED)), 6.0, 1.8, 0.4, 1.0, False, False),
        (remembered(HELD, HELD, 8.0, jumped=True), 8.0, 1.5, 0.4, 1.0, True, False),  # the past is forgotten
    ],
)
def test_speed_is_told_from_what_a_limit_does(
    *,
    known: ResourceUse,
    now: float,
    ratio: float,
    cpu_limit: float,
    threads: float | None,
    at_new_batch: bool,
    is_shown: bool,
) -> None:
    how = {"cpu_limit": cpu_limit, "threads": threads, "at_new_batch": at_new_batch}
    assert shows_another_speed(known, now, ratio=ratio, **how) is is_shown


def test_jump_is_explained_however_long_the_plan_is_active() -> None:
    known, steps = ResourceUse(), 100.0
    before = Estimate(0.1, 0.0, 100)

    def metrics(steps: float, waited: float) -> WorkerMetrics:
        own = 0.1 * steps + waited
        totals = {"cpu_seconds": 0.1 * steps, "cpu_throttled_seconds": 0.0, "cpu_wait_seconds": waited}
        return WorkerMetrics(1, steps=steps, own_seconds=own, observed_seconds=own, **totals)

    for _ in range(5):
        steps += 4 * WRAP / 100  # 400 seconds of 0.1 s each
        known, _ = closed(known, metrics(steps, 0.0), 0.1, before, jumped=False)
        assert all(0 <= each <= WRAP for each in known)
    _, words = closed(known, metrics(steps + 10, 1.0), 0.2, before)
    assert words == "it waited for a CPU 50 % of the time, 0 % before: a neighbour"
    _, words = closed(ResourceUse(cpu=5000, waited=90), metrics(10, 1.0), 0.2, before)
    assert words.startswith("it waited for a CPU"), "counters that began again"
