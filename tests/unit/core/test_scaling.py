"""How many workers pay: the search ends at the size that the condition asks for, whatever is measured."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain.contract import MEMBERS_MAY_END
from heterotrain_operator.clusters.simulated.communication import Measured
from heterotrain_operator.clusters.simulated.laws import Affine
from heterotrain_operator.clusters.simulated.noise import Independent
from heterotrain_operator.clusters.simulated.scenario import Scenario, WorkerModel
from heterotrain_operator.core.model import Decision, Group, Job, Scaling, Seen, Stragglers
from heterotrain_operator.core.remembered.sizes import Point, Resize
from heterotrain_operator.core.scaling.conditions import CONDITIONS, Outlook, efficiency, utility
from heterotrain_operator.core.scaling.curve import Size
from heterotrain_operator.core.scaling.schedule import Range, next_size
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.experiments.simulations import SimulationResult, simulate
from unit.core.traces import World

THROUGHPUT = Scaling("Throughput", step=4)


def point(workers: Size, throughput: float) -> Point:
    """A step of 64 samples, shared equally by all."""
    samples = tuple(64 * count // sum(workers) for count in workers)
    return Point(workers, samples, sum(samples) / throughput, 10)


def searched(
    start: Size, throughput: Callable[[Size], float], reach: Range, scaling: Scaling = THROUGHPUT
) -> tuple[list[Size], dict[Size, Point]]:
    """The sizes that a search has one after the other, each of which is measured once."""
    points, best, sizes = {start: point(start, throughput(start))}, start, [start]
    condition, outlook = CONDITIONS[scaling.condition], Outlook(0.0, 1e5, 2e4, (0.001,) * len(start))
    assert condition is not None
    while True:
        after = next_size(
            best, points, reach, lambda a, b: condition(scaling, outlook, a, b).pays, lambda _, fresh: fresh[0]
        )
        points = {size: replace(each, left=size in after.left) for size, each in points.items()}
        best = after.best
        if after.size != sizes[-1]:
            sizes.append(after.size)
        if after.at_rest:
            assert after.size == after.best
            return sizes, points
        assert after.size not in points
        points[after.size] = point(after.size, throughput(after.size))


@pytest.mark.parametrize("start", range(4, 25, 4))
def test_throughput_that_falls_from_four_workers_on_ends_at_four(start: int) -> None:
    """Elasticity 7.1.1: from 4, 8 ... 24 workers, four at a time, all trials end at 4."""
    curve = {4: 400.0, 8: 390.0, 12: 370.0, 16: 350.0, 20: 320.0, 24: 300.0}
    sizes, _ = searched((start,), lambda size: curve[size[0]], Range([(4, 24)], 4))
    assert sizes[-1] == (4,)
    if start == 24:
        assert sizes == [(24,), (20,), (16,), (12,), (8,), (4,)], "at the upper bound it begins with fewer"
    if start == 8:
        assert sizes == [(8,), (12,), (4,)], "the next lower size that was not measured"


def test_search_adds_workers_as_long_as_each_brings_enough() -> None:
    sizes, _ = searched((32,), lambda size: size[0] ** 0.8, Range([(1, 64)], 4))
    assert sizes == [(count,) for count in range(32, 65, 4)]
    sizes, _ = searched((2,), lambda size: min(size[0], 9.0), Range([(1, 64)], 4))
    assert sizes == [(2,), (6,), (10,), (14,), (10,)]


def test_by_utility_workers_of_one_group_are_tried_in_place_of_anothers() -> None:
    worth = Scaling("Utility", step=1, corners=((0.0, 50.0), (2e4, 0.0)))
    for swaps, last in ((True, (1, 2)), (False, (2, 1))):
        reach = Range([(1, 4), (1, 4)], 1, swaps=swaps)
        sizes, _ = searched((2, 1), lambda size: {(2, 1): 100.0, (1, 2): 120.0}.get(size, 50.0), reach, worth)
        assert sizes[-1] == last


SIZES = st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(any)
BOUNDS = st.tuples(st.integers(0, 4), st.integers(5, 9))


@given(
    start=SIZES,
    bounds=st.tuples(BOUNDS, BOUNDS),
    step=st.integers(1, 5),
    levels=st.lists(st.floats(1e-3, 1e3), min_size=7, max_size=7),
    shape=st.sampled_from(["any", "concave", "falling"]),
    condition=st.sampled_from([THROUGHPUT, Scaling("Utility", form="Linear", corners=((0.0, 50.0), (2e4, 0.0)))]),
)
def test_search_ends_within_bounds_and_goes_back_to_one_size_at_most(
    *, start: Size, bounds: Sequence[tuple[int, int]], step: int, levels: list[float], shape: str, condition: Scaling
) -> None:
    start = tuple(min(max(have, low), high) for have, (low, high) in zip(start, bounds, strict=True))
    if not any(start):
        return

    def throughput(size: Size) -> float:
        count = sum(size)
        drawn = levels[(3 * size[0] + 5 * size[1]) % len(levels)]
        return {"any": drawn, "concave": count**0.5 * 100, "falling": 100 / count}[shape]

    reach = Range(bounds, step, swaps=condition.condition == "Utility")
    sizes, points = searched(start, throughput, reach, condition)
    assert len(sizes) <= len(points) + 1, "every size is measured once, and one of them may be gone back to"
    assert len({*sizes}) >= len(sizes) - 1
    for size in sizes:
        assert any(size)
        assert all(low <= have <= high for have, (low, high) in zip(size, bounds, strict=True))
    for before, after in itertools.pairwise(sizes[:-1]):
        assert before != after


def test_workers_of_unlike_groups_count_by_their_speed() -> None:
    """Two slow workers of 8 samples each beside a fast one of 48, and one more of those."""
    small, great = Point((1, 2), (48, 16), 1.0, 10), Point((2, 2), (55, 9), 64 / 110, 10)
    # One of the fast ones has 27.5 samples, so that before it were 64 / 27.5 - 1 of its kind.
    assert efficiency(small, great) == pytest.approx((110 - 64) / (64 / (64 / 27.5 - 1)))
    assert efficiency(Point((4,), (64,), 0.64, 10), Point((8,), (64,), 0.64 * 2 / 3, 10)) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("form", "seconds", "value"),
    [
        ("Linear", 50, 10),
        ("Linear", 150, 6),
        ("Linear", 900, 2),
        ("Concave", 150, 8),
        ("Step", 100, 10),
        ("Step", 150, 6),
        ("Step", 300, 1),
        ("Step", 900, 0),
    ],
)
def test_utility_runs_between_its_corners_and_is_flat_outside(form: str, seconds: float, value: float) -> None:
    """The last corner of Step, (200, 2), is bridged to the end that the job was to have first, after 400 s."""
    scaling = Scaling("Utility", form=form, corners=((100.0, 10.0), (200.0, 2.0)))
    assert utility(scaling, seconds, 400.0) == pytest.approx(value)


def scenario(job: Job, *, noise: float = 0.0, steps: int | None = None, **more: object) -> Scenario:
    """Workers whose exchange takes longer the more there are, so that four of 24 are best."""
    model = WorkerModel(Affine(0.02, 0.0004), noise=Independent(noise), protocol=MEMBERS_MAY_END)
    exchange = Measured({1: 0.0, 2: 0.02, 4: 0.05, 8: 0.12, 24: 0.4})
    made = Scenario(job, other_workers=model, communication=exchange, intervals=50, total_steps=steps)
    return replace(made, **more)  # type: ignore[arg-type]  # names and types are the tests' care


def last_size(result: SimulationResult) -> int:
    return len(result.plans[-1].workers)


def said(result: SimulationResult, reason: str) -> list[str]:
    return [each.event.message for each in result.events if each.event.reason == reason]


@pytest.mark.parametrize("seed", range(3))
def test_job_finds_the_workers_that_pay_and_stays_with_them(seed: int) -> None:
    job = Job("job", (Group("a", 8, min_replicas=4, max_replicas=24),), 1024, scaling=THROUGHPUT)
    result = simulate(scenario(job, noise=0.1, seed=seed), forgetful=seed == 0)
    [stopped] = said(result, "ScalingStopped")
    assert last_size(result) == 4
    assert "a 4 -> 8: " in stopped
    assert "not above 0.1" in stopped
    assert len(result.plans) < 10


def test_utility_asks_for_more_workers_where_an_early_end_is_worth_their_price() -> None:
    def ends_with(price: float) -> int:
        groups = (Group("a", 2, max_replicas=6, price_per_hour=price),)
        corners = ((0.0, 1.0), (1000.0, 0.0))
        scaling = Scaling("Utility", step=1, corners=corners)
        result = simulate(scenario(Job("job", groups, 1024, scaling=scaling), steps=1000))
        assert said(result, "ScalingStopped")
        return last_size(result)

    cheap, dear = ends_with(0.01), ends_with(30.0)
    assert cheap > dear == 1


def test_group_without_workers_grows_where_its_workers_pay() -> None:
    groups = (Group("slow", 2, max_replicas=4), Group("fast", 0, max_replicas=2))
    models = {
        "slow": WorkerModel(Affine(0.0, 0.004), protocol=MEMBERS_MAY_END),
        "fast": WorkerModel(Affine(0.0, 0.0005), protocol=MEMBERS_MAY_END),
    }
    job = Job("job", groups, 256, scaling=replace(THROUGHPUT, step=1, threshold=0.5))
    result = simulate(scenario(job, models=models, communication=Measured({1: 0.01}), intervals=80))
    names = result.plans[-1].workers
    assert sum("fast" in name for name in names) == 2
    assert said(result, "ScalingStopped")


def world(**changes: object) -> World:
    group = Group("a", 2, max_replicas=4)
    made = World(Job("job", (group,), 128, scaling=replace(THROUGHPUT, step=1)), protocol=MEMBERS_MAY_END)
    made.job = replace(made.job, **changes)  # type: ignore[arg-type]  # names and types are the tests' care
    return made.start()


def members(made: World) -> int:
    assert made.plan is not None
    return len(made.plan.members)


def test_edit_of_the_replicas_ends_what_was_found() -> None:
    made = world()
    made.run(20)
    assert members(made) == 4
    assert made.memory.sizes.resized == (Resize("a", 2, 2),)
    made.job = replace(made.job, groups=(replace(made.job.groups[0], replicas=1, max_replicas=1),))
    made.run(10)
    assert members(made) == 1
    assert made.memory.sizes.resized == ()


@pytest.mark.parametrize("changes", [{"dry_run": True}, {"scaling": Scaling()}])
def test_number_of_workers_stays_in_a_dry_run_and_without_a_condition(changes: dict[str, object]) -> None:
    made = world(**changes)
    decisions = made.run(20)
    assert (members(made), made.memory.sizes.points) == (2, ())
    conditions = {each.type: each for each in decisions[-1].conditions}
    assert ("ScalingBlocked" in conditions) == ("dry_run" in changes)


def test_workers_whose_group_cannot_change_are_left_alone_and_the_job_says_so() -> None:
    made = world()
    for pod in made.workers.values():
        pod.protocol = 1
    made = World(made.job, protocol=1).start()
    decisions = made.run(10)
    [blocked] = [each for each in decisions[-1].conditions if each.type == "ScalingBlocked"]
    assert (blocked.status, blocked.reason, members(made)) == (True, "MembersCannotChange", 2)
    assert "training.backend: gloo" in blocked.message


def test_throughput_that_changes_for_long_has_other_sizes_tried_again() -> None:
    made = world(groups=(Group("a", 2, min_replicas=2, max_replicas=3),))
    made.run(20)
    assert (members(made), made.memory.sizes.at_rest) == (3, True)
    for pod in made.workers.values():
        pod.scale *= 1.5
    made.run(8)
    assert made.memory.sizes.at_rest, "what comes and goes is not followed"
    decisions = made.run(20)
    assert [each.reason for decision in decisions for each in decision.events if each.reason == "ScalingStopped"]


def test_straggler_that_is_about_to_be_removed_condemns_no_size_and_its_place_stays_gone() -> None:
    job = Job("job", (Group("a", 3, min_replicas=3, max_replicas=6),), 128)
    job = replace(job, scaling=replace(THROUGHPUT, step=1, every_batches=30), stragglers=Stragglers(action="Remove"))
    made = World(job, {"job-a-3": 40.0}, protocol=MEMBERS_MAY_END).start()
    made.run(8)
    assert "job-a-3" in made.workers
    made.scales = {}  # who is created later under that name is as fast as the others
    made.run(30)
    sizes = made.memory.sizes
    assert (members(made), sizes.at_rest, sizes.removed) == (5, True, (Resize("a", 3, -1),))
    assert [each.workers for each in sizes.points] == [(3,), (4,), (5,)]


class Quota(World):
    """No more workers than `most`; `named` ones are refused, or find no place."""

    most, refuses, waiting = 3, True, frozenset[str]()

    def act(self, decision: Decision) -> None:
        room = self.most - len(self.workers)
        beyond = decision.create[max(room, 0) :]
        self.waiting = frozenset(key.name for key in beyond) if decision.create else self.waiting
        super().act(replace(decision, create=decision.create[: max(room, 0)]))

    def seen(self) -> Seen:
        refused = tuple((name, "exceeded quota: pods") for name in self.waiting if self.refuses)
        return replace(super().seen(), refused=refused)


@pytest.mark.parametrize("refuses", [True, False])
def test_workers_that_are_not_to_be_had_are_given_up_and_tried_again_after_ever_longer(refuses: bool) -> None:
    group = Group("a", 2, min_replicas=2, max_replicas=6)
    job = Job("job", (group,), 128, scaling=replace(THROUGHPUT, step=2), startup_deadline_seconds=90.0)
    made = Quota(job, protocol=MEMBERS_MAY_END)
    made.refuses = refuses
    made.start()

    def given_up(intervals: int, seconds: float) -> list[str]:
        decisions = []
        for _ in range(intervals):
            made.train(made.job.interval)
            decisions.append(made.tick(seconds))
        return [each.message for one in decisions for each in one.events if each.reason == "ScalingGivenUp"]

    [message] = given_up(12, 10.0)
    assert message.startswith("a 4 -> 3: 1 of the workers")
    assert "within 10 minutes" in message
    assert ("exceeded quota" in message) == refuses
    assert members(made) == 3
    [blocked] = [each for each in made.decisions[-1].conditions if each.type == "ScalingBlocked"]
    assert blocked.status is True
    assert made.decisions[-1].scaling is not None
    assert "waiting for" not in made.decisions[-1].reason
    assert given_up(20, 10.0) == [], "the group is left alone"
    [message] = given_up(20, 60.0)
    assert "within 20 minutes" in message
    made.most = 6
    made.waiting = frozenset()
    given_up(100, 40.0)
    assert members(made) == 6, "once the quota is gone the job grows on"
    assert made.memory.sizes.refusals == ()


def test_job_goes_back_to_the_size_at_which_it_was_refused_more_and_an_edit_has_more_asked_for_again() -> None:
    made = Quota(
        Job("job", (Group("a", 2, min_replicas=1, max_replicas=4),), 128, scaling=replace(THROUGHPUT, step=1)),
        protocol=MEMBERS_MAY_END,
    )
    made.most = 2
    made.start()
    decisions = made.run(30)
    events = [each.message for decision in decisions for each in decision.events if each.reason.startswith("Scal")]
    assert [message[:8] for message in events] == ["a 2 -> 3", "a 3 -> 2", "a 2 -> 1", "a 1 -> 2"]
    assert (members(made), len(made.memory.sizes.refusals), made.memory.sizes.at_rest) == (2, 1, True)
    made.most, made.waiting = 4, frozenset()
    made.job = replace(made.job, scaling=replace(made.job.scaling, every_batches=11))
    made.run(20)
    assert (members(made), made.memory.sizes.refusals) == (4, ())


def test_garbage_among_the_sizes_that_are_stored_is_none() -> None:
    made = world()
    made.run(3)
    points = [[0.1, 10, 0, 5000, 128], [0.1, 10, 0, 3, 1, 64, 64], [1e9, 10, 0, 3, 128], "x", [], [0.1, 10, 0, 0, 0]]
    stored = {**json.loads(made.memory.to_json()), "points": points, "best_size": "5000", "refusals": [["a", -1, "x"]]}
    stored |= {"resized": [["a", 2, 10**6], ["b", 1, 1], [None]], "at_rest": False, "resized_at": None}
    made.memory = Remembered.from_json(json.dumps(stored))
    made.run(20)
    assert 1 <= members(made) <= 4
    assert made.memory.sizes.at_rest
