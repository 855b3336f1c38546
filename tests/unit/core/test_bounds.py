"""Bounds of batches: multiples, passes, what workers report to need, and what their memory holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heterotrain.contract import Plan
from heterotrain_operator.api.availability import known_policies
from heterotrain_operator.core.batching.bounds import bounded_below, bounds_in_passes
from heterotrain_operator.core.batching.policies import POLICIES, Seat
from heterotrain_operator.core.batching.policies.optimal import propose
from heterotrain_operator.core.batching.policies.static import static_shares
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.prediction.memory_model import MEBIBYTE, MemoryUse, failed, fitting_batch, measured
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.split.allocation import Line, iteration_seconds, waterfill
from heterotrain_operator.core.split.passes import at_once
from unit.core.jobs import restart_fully
from unit.core.traces import MemoryWorld, World, hetero_job, hetero_world


def unequal_world(policy: str, *, multiple: int, total: int = 192) -> World:
    """Four unequal workers, whose batches are multiples of this."""
    scales = (1.0, 1.5, 2.0, 4.0)
    groups = tuple(Group(f"g{rank}", 1, cpu_limit=1 / scale, multiple_of=multiple) for rank, scale in enumerate(scales))
    job = Job("job", groups, total, policy=policy)
    by_name = {f"job-g{rank}-0": scale for rank, scale in enumerate(scales)}
    return World(job, by_name, noise=0.05, fixed=0.01).start()


@pytest.mark.parametrize(
    ("policy", "fixed"), [*((policy, True) for policy in known_policies()), ("Proportional", False), ("Profile", False)]
)
def test_every_plan_of_every_policy_keeps_the_multiple(policy: str, fixed: bool) -> None:
    world = unequal_world(policy, multiple=16)
    world.job = replace(world.job, fixed_global_batch=fixed)
    for _ in range(12):
        assert world.plan.global_batch_size == 192 or not fixed
        assert all(member.batch_size % 16 == 0 for member in world.plan.members)
        world.run(1)


def test_a_multiple_that_is_set_while_running_repairs_the_plan_and_says_why() -> None:
    world = unequal_world("Optimal", multiple=1)
    world.run(6)
    world.job = replace(world.job, groups=tuple(replace(group, multiple_of=16) for group in world.job.groups))
    decision = world.tick()
    assert "which is no multiple of 16" in decision.reason
    assert all(member.batch_size % 16 == 0 for member in decision.plan.members)
    world.run(6)
    assert all(member.batch_size % 16 == 0 for member in world.plan.members)


def test_a_multiple_that_the_global_batch_cannot_hold_degrades_the_job_and_leaves_its_plan() -> None:
    world = unequal_world("Optimal", multiple=1, total=200)
    world.run(4)
    world.job = replace(world.job, groups=tuple(replace(group, multiple_of=16) for group in world.job.groups))
    decision = world.tick()
    assert decision.plan is None
    degraded = next(c for c in decision.conditions if c.type == "Degraded")
    assert degraded.status
    assert "no batches in multiples of 16 within their bounds add up to 200" in degraded.message


def assert_held(plan: Plan | None, total: int, most: dict[str, int]) -> None:
    assert plan.global_batch_size == total
    assert all(at_once(member) <= most[member.group] for member in plan.members)


@pytest.mark.parametrize("policy", known_policies())
def test_workers_that_hold_too_little_are_told_to_take_several_passes(policy: str) -> None:
    groups = (Group("large", 1, batch_max=40, cpu_limit=1.0), Group("small", 2, batch_max=10, cpu_limit=0.5))
    world = World(Job("job", groups, 192, policy=policy)).start()
    assert_held(world.plan, 192, {"large": 40, "small": 10})
    world.run(6)
    assert_held(world.plan, 192, {"large": 40, "small": 10})
    # Four passes are enough for all, so nobody takes a fifth.
    assert all(member.batch_size <= 4 * {"large": 40, "small": 10}[member.group] for member in world.plan.members)


SCALES = (1.0, 20.0, 40.0)
NAMES = [f"job-g{rank}-0" for rank in range(len(SCALES))]
HELD = st.lists(st.integers(0, 40).flatmap(lambda low: st.tuples(st.just(low), st.integers(low, 90))), min_size=1)


def needy_world(policy: str, least: int = 8, **changes: object) -> World:
    """60 samples for a fast worker and two slow ones, to whom a balanced split would give 4 and 2 or fewer."""
    made = World(hetero_job(policy, SCALES, **{"global_batch": 60, **changes}), dict(zip(NAMES, SCALES, strict=True)))
    made.leasts = dict.fromkeys(NAMES, least)
    return made


def batches_seen(made: World, intervals: int = 10) -> list[tuple[int, ...]]:
    """Of all plans from the first one on."""
    made.start()
    found = []
    for _ in range(intervals):
        found.append(made.plan.batch_sizes)
        made.run(1)
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_no_plan_gives_a_worker_fewer_samples_than_it_reports_to_need(policy: str) -> None:
    assert all(min(batches) >= 8 for batches in batches_seen(needy_world(policy)))


@pytest.mark.parametrize("policy", ["Proportional", "Optimal"])
def test_slow_workers_end_at_what_they_need_and_the_fast_one_takes_the_rest(policy: str) -> None:
    assert batches_seen(needy_world(policy))[-1] == (44, 8, 8)
    assert min(batches_seen(needy_world(policy, least=1))[-1]) < 4, "without the report they get less"


def test_plan_that_gives_too_little_is_repaired_at_once_and_says_why() -> None:
    made = needy_world("Optimal", least=1)
    batches_seen(made)
    for worker in made.workers.values():
        worker.least_batch = 8
    made.tick()
    assert made.plan.batch_sizes == (44, 8, 8)
    [said] = [d.reason for d in made.decisions if "trains badly" in d.reason]
    assert "bounds are [8, 60] (at least 8 samples, since it reports that its model trains badly with" in said


@given(HELD, st.integers(1, 500), st.data())
def test_raised_bounds_hold_whatever_held_before(
    bounds: list[tuple[int, int]], total: int, data: st.DataObject
) -> None:
    leasts = [data.draw(st.integers(-5, 2000)) for _ in bounds]
    raised = bounded_below(total, bounds, leasts)
    assert [high for _, high in raised] == [high for _, high in bounds]
    assert all(low <= new <= high for (low, high), (new, _) in zip(bounds, raised, strict=True))
    if sum(low for low, _ in bounds) <= total:
        assert sum(low for low, _ in raised) <= total


NOISE = 0.01


def learned(*points: tuple[int, float], limit_mib: float | None = 1024) -> MemoryUse:
    """What is remembered after peaks, in MiB, at these batches."""
    memory = MemoryUse()
    for batch, mib in points:
        memory = measured(memory, batch, mib * MEBIBYTE, None if limit_mib is None else limit_mib * MEBIBYTE)
    return memory


@pytest.mark.parametrize(
    ("points", "limit_mib", "most", "growth"),
    [
        ([], 1024, None, None),
        ([(64, 500)], 1024, None, 64 * 972 // 525),  # in proportion to its memory
        ([(64, 500), (64, 510), (64, 490)], 1024, None, 117),
        ([(64, 1020)], 1024, None, 64),  # it has run
        ([(64, 500)], None, None, None),
        ([(64, 500), (96, 600)], None, None, None),
        ([(64, 600), (128, 970)], 1024, 128, None),  # it has run within the limit
        ([(64, 990), (128, 1020)], 1024, 64, None),  # nothing below it was seen to need less
    ],
)
def test_bound_and_growth_rest_on_what_has_run(
    points: list[tuple[int, float]], limit_mib: float | None, most: int | None, growth: int | None
) -> None:
    known = learned(*points, limit_mib=limit_mib)
    assert (known.greatest_batch, known.greatest_growth) == (most, growth)


@pytest.mark.parametrize(
    ("points", "batch", "least", "most"),
    [
        ([(64, 400), (128, 420)], 200, 65, 199),  # a line that promised otherwise is bent
        ([(64, 500), (128, 900)], 200, 129, 150),  # one that predicted it is left alone
        ([(64, 500)], 128, None, None),  # it says nothing of a slope that was not seen
        ([(128, 500)], 100, None, None),  # what had fitted is known no longer
        ([(128, 500), (200, 600)], 100, None, None),
    ],
)
def test_failure_corrects_a_line(
    points: list[tuple[int, float]], batch: int, least: int | None, most: int | None
) -> None:
    bound = failed(learned(*points), batch).greatest_batch
    if least is None or most is None:
        assert bound is None
    else:
        assert least <= bound <= most


FIXED = st.floats(50, 4000)
SLOPE = st.floats(0, 40)
TRAVEL = st.lists(st.tuples(st.integers(1, 2000), st.floats(-NOISE, NOISE)), min_size=1, max_size=30)


@given(FIXED, SLOPE, st.floats(100, 80_000), TRAVEL)
def test_bound_never_takes_more_than_the_limit_on_affine_worlds_with_noise(
    fixed: float, slope: float, limit: float, travel: list[tuple[int, float]]
) -> None:
    def peak(batch: int) -> float:
        return fixed + slope * batch

    memory = MemoryUse()
    for batch, noise in travel:
        if peak(batch) * (1 + NOISE) > limit:
            continue
        memory = measured(memory, batch, peak(batch) * (1 + noise) * MEBIBYTE, limit * MEBIBYTE)
        bound = memory.greatest_batch
        assert bound is None or peak(bound) <= limit


@given(FIXED, SLOPE, TRAVEL, st.floats(100, 40_000), st.floats(1, 4))
def test_bound_rises_with_the_limit_and_falls_with_the_peak(
    fixed: float, slope: float, travel: list[tuple[int, float]], limit: float, factor: float
) -> None:
    points = [(batch, (fixed + slope * batch) * (1 + noise)) for batch, noise in travel]
    memory = learned(*points, limit_mib=limit)
    bound = memory.greatest_batch
    assume(bound is not None)
    more = replace(memory, limit_mib=int(memory.limit_mib * factor)).greatest_batch
    assert more >= bound
    heavier = replace(memory, high_mib=int(memory.high_mib * factor)).greatest_batch
    assert heavier <= bound
    assert bound >= memory.low_batch


NUMBERS = st.integers() | st.integers(-5, 300)
FIGURES = st.none() | st.floats() | st.floats(0, 2**36)


@given(
    st.builds(MemoryUse, **dict.fromkeys(("limit_mib", "low_batch", "low_mib", "high_batch", "high_mib"), NUMBERS)),
    NUMBERS,
    FIGURES,
    FIGURES,
)
def test_nonsense_has_an_answer(memory: MemoryUse, batch: int, peak: float | None, limit: float | None) -> None:
    for known in (memory, measured(memory, batch, peak, limit), failed(memory, batch)):
        bound = known.greatest_batch
        assert bound is None or bound >= known.low_batch >= 1
        growth = known.greatest_growth
        assert growth is None or growth >= known.low_batch >= 1
        assert fitting_batch(known, batch) < max(batch, 1)


LONG = pytest.mark.long
FAST = "job-g0-0"


def memory_world(
    policy: str = "Optimal", *, limit_mib: float = 1024.0, seed: int = 0, **changes: object
) -> MemoryWorld:
    """A fast worker that would take most of 300 samples, of which its memory holds 168."""
    scales = (1.0, 4.0, 4.0)
    job = hetero_job(policy, scales, **{"global_batch": 300, **changes})
    world = MemoryWorld(job, {f"job-g{rank}-0": scale for rank, scale in enumerate(scales)}, noise=0.03, seed=seed)
    world.limit_mib = limit_mib
    world.start()
    return world


def batch_of_fast(world: MemoryWorld) -> int:
    return world.plan.batch_sizes[0]


@pytest.mark.parametrize("policy", ["Proportional", "Optimal"])
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 5), marks=LONG)])
def test_batch_grows_to_what_memory_holds_and_never_beyond(policy: str, seeds: range) -> None:
    for seed in seeds:
        world = memory_world(policy, seed=seed)
        for _ in range(15):
            world.run(1)
            assert world.peak_mib(batch_of_fast(world)) <= world.limit_mib or policy == "Proportional"
            if world.decisions[-1].phase == "Restarting":  # Proportional made its leap when one batch had been seen
                restart_fully(world)
        assert world.memory.budget.restarts <= (policy == "Proportional")
        assert batch_of_fast(world) >= 0.8 * 168


def test_static_shares_end_at_what_memory_holds_and_the_others_share_the_rest_by_their_limits() -> None:
    """By its limit the fast worker would get 218 of 300 samples, of which its memory holds 168."""
    groups = tuple(Group(f"g{rank}", 1, cpu_limit=cores) for rank, cores in enumerate((2.0, 0.5, 0.25)))
    world = memory_world("Static", groups=groups)
    for _ in range(12):
        world.run(1)
        if world.decisions[-1].phase == "Restarting":  # nothing was known of its memory before
            restart_fully(world)
    assert world.memory.budget.restarts == 1
    fast, second, third = world.plan.batch_sizes
    assert 0.8 * 168 <= fast <= 168
    assert (second, third) == pytest.approx((2 / 3 * (300 - fast), 1 / 3 * (300 - fast)), abs=1)


def test_least_batch_of_a_worker_is_what_the_others_memory_leaves_it() -> None:
    """OmniLearn, section III-B2: by the limits it would get 20 of 300 samples, and the others hold 220 of them."""
    groups = (Group("slow", 1, cpu_limit=0.1), Group("fast", 2, cpu_limit=0.7))
    full = RememberedWorker(memory_use=MemoryUse(guessed_batch=110, failed_batch=140))
    job = Job("job", groups, 300, policy="Static")
    bounds = bounds_in_passes(job, ["slow", "fast", "fast"], [RememberedWorker(), full, full])
    seats = [Seat(str(rank), groups[min(rank, 1)], 0, pair) for rank, pair in enumerate(bounds)]
    assert static_shares(job, seats).batches == (80, 110, 110)


def test_bound_is_told_once_and_shown_with_every_decision() -> None:
    world = memory_world()
    world.run(8)
    told = [event for decision in world.decisions for event in decision.events if event.reason == "MemoryBoundFound"]
    (event,) = [event for event in told if event.message.startswith(FAST)]
    assert "samples, which are sure to fit into its 1024 MiB by peaks of" in event.message
    assert batch_of_fast(world) <= dict(world.decisions[-1].batch_limits)[FAST] <= 181


def test_shrunk_limit_moves_samples_away_and_says_why() -> None:
    world = memory_world()
    world.run(8)
    before = batch_of_fast(world)
    world.limit_mib = 0.97 * world.peak_mib(before)
    for worker in world.workers.values():
        worker.memory = None  # what is reported stays
        worker.metrics = replace(worker.metrics, memory_limit_bytes=world.limit_mib * 2**20)
    super(MemoryWorld, world).train(10)
    reasons = [world.tick().reason, world.tick().reason]
    assert batch_of_fast(world) < before
    assert any(f"{FAST} has {before} samples" in reason and "fit into its" in reason for reason in reasons)


def test_worker_that_runs_out_of_memory_in_passes_gets_smaller_passes() -> None:
    world = memory_world("Uniform", limit_mib=480)  # 45 samples, a hundred each
    batches = []
    for _ in range(6):
        world.run(1)
        if world.decisions[-1].phase == "Restarting":
            restart_fully(world)
        batches.append([at_once(member) for member in world.plan.members])
    assert world.memory.budget.restarts == 2
    assert batches[:2] == [[50] * 3, [25] * 3]
    assert world.plan.batch_sizes == (100, 100, 100)
    assert world.decisions[-1].phase == "Running"


def run_out_of_memory(world: World, *names: str) -> None:
    """Let workers, the fast one by default, run out of memory with their batches."""
    for name in names or (FAST,):
        world.workers[name].end(137, message="out of memory (limit 256Mi)")
        world.workers[name].out_of_memory = True
    world.tick()


@pytest.mark.parametrize("policy", ["Uniform", "Proportional", "Optimal"])
def test_worker_that_ran_out_of_memory_never_gets_that_batch_again(policy: str) -> None:
    world = hetero_world(policy)
    world.run(5)
    batch = world.plan.batch_sizes[0]
    run_out_of_memory(world)
    assert f"{FAST} gets at most {batch // 2} samples instead of {batch}" in world.decisions[-1].reason
    world.forgetful = True
    restart_fully(world)
    assert world.plan.global_batch_size == 192
    for _ in range(10):
        assert world.plan.batch_sizes[0] <= batch // 2
        world.run(1)


def full_world(*, mib_per_sample: float, used: float = 0.92, seed: int = 0, **changes: object) -> MemoryWorld:
    """Three unequal workers that use so much of their limits at 64 samples each."""
    scales = (1.0, 2.0, 4.0)
    job = hetero_job("Optimal", scales, **changes)
    world = MemoryWorld(job, {f"job-g{rank}-0": scale for rank, scale in enumerate(scales)}, noise=0.03, seed=seed)
    world.mib_per_sample = mib_per_sample
    world.fixed_mib = used * world.limit_mib - 64 * mib_per_sample
    world.start()
    return world


def excess(world: MemoryWorld) -> float:
    """The step over the oracle's, which knows the times, and how many samples fit."""
    scales = (1.0, 2.0, 4.0)
    fit = int((0.95 * world.limit_mib - world.fixed_mib) / world.mib_per_sample)
    lines = [Line(scale * world.fixed, scale * world.per_sample) for scale in scales]
    return max(world.true_seconds()) / iteration_seconds(lines, waterfill(lines, 192, [(1, fit)] * 3))


@pytest.mark.parametrize(
    ("mib_per_sample", "used", "seed"),
    [
        (0.2, 0.92, 0),
        *(
            pytest.param(mib_per_sample, used, seed, marks=LONG)
            for mib_per_sample in (0.05, 0.5, 1.0)
            for used in (0.88, 0.91)
            for seed in (1, 2)
        ),
    ],
)
def test_full_memory_does_not_lock_equal_batches(mib_per_sample: float, used: float, seed: int) -> None:
    world = full_world(mib_per_sample=mib_per_sample, used=used, seed=seed)
    before = excess(world)
    world.run(60)
    assert world.memory.budget.restarts == 0, "nobody runs out of memory"
    assert excess(world) < 1 + 0.85 * (before - 1), "the noise of peaks hides what little room there is"
    assert mib_per_sample > 0.2 or excess(world) < 1.08
    assert all(member.micro_batch_size == 0 for member in world.plan.members)


def test_the_probe_computes_half_a_batch_at_once_and_changes_nobodys_batch() -> None:
    world = full_world(mib_per_sample=0.2)
    decision = world.run(1)[0]
    assert decision.plan.batch_sizes == (64, 64, 64)
    assert [member.micro_batch_size for member in decision.plan.members] == [32, 0, 0]
    assert "memory holds the batches of job-g0-0 back" in decision.reason
    assert "in two passes" in decision.reason
    after = world.run(1)[0]
    assert [member.micro_batch_size for member in after.plan.members] == [0, 0, 0]
    world.run(4)
    assert world.plan.batch_sizes[0] > 64


def test_nobody_is_probed_in_a_dry_run_or_where_half_a_batch_is_too_little() -> None:
    dry = full_world(mib_per_sample=0.2, dry_run=True)
    dry.run(3)
    assert dry.plan.version == 1
    world = full_world(mib_per_sample=0.2)
    for worker in world.workers.values():
        worker.least_batch = 40
    world.run(3)
    assert all(member.micro_batch_size == 0 for member in world.plan.members)


def test_what_was_timed_in_two_passes_is_no_point_of_the_cost_of_a_batch() -> None:
    world = full_world(mib_per_sample=0.2)
    world.run(1)
    before = [worker.batch_cost.sum_w for worker in world.memory.workers]
    world.run(1)
    after = [worker.batch_cost.sum_w for worker in world.memory.workers]
    assert after[0] == before[0] > 0
    assert after[2] != before[2]


@given(st.integers(100, 100_000), st.integers(1, 500), st.integers(1, 500), st.floats(0.5, 1), st.floats(0.8, 1))
def test_what_is_tried_stays_below_the_limit_even_if_the_lower_peak_was_misjudged(
    limit: int, low: int, span: int, high_part: float, low_part: float
) -> None:
    high_mib = int(0.95 * limit * high_part)
    low_mib = int(high_mib * low_part)
    assume(low_mib > 0)
    known = MemoryUse(limit_mib=limit, low_batch=low, low_mib=low_mib, high_batch=low + span, high_mib=high_mib)
    assume(known.greatest_batch is not None)
    grown = (known.greatest_batch or 0) - (low + span)
    misjudged = 0.95 * low_mib - 2
    assert high_mib + grown * (high_mib - misjudged) / span <= limit + 2


def test_bound_comes_near_the_limit_and_nearer_the_further_the_batches_span() -> None:
    ideal = 0.95 * 1024 / 4 - 300 / 4
    near, far = (learned((8, 332), (batch, 300 + 4 * batch)).greatest_batch for batch in (32, 128))
    assert 32 < near < far
    assert 0.85 * ideal < far <= ideal


def test_why_batches_stay_is_said_with_peak_and_limit() -> None:
    use = measured(MemoryUse(), 64, 980 * MEBIBYTE, 1024 * MEBIBYTE)
    job = hetero_job()
    seats = [
        Seat(f"w{rank}", group, 64, (1, 192), Estimate(seconds, 1e-8, 20.0), None, RememberedWorker(memory_use=use))
        for rank, (group, seconds) in enumerate(zip(job.groups, (0.064, 0.128, 0.256), strict=True))
    ]
    proposal = propose(job, seats, 0)
    assert proposal.batches is None
    assert "memory holds the batches of w0 back (w0 takes 980 of 1024 MiB at 64 samples)" in proposal.reason
    assert "without that the best split would save 57 % of the step" in proposal.reason


def test_what_memory_holds_wins() -> None:
    job = hetero_job("Optimal", SCALES, global_batch=60)
    known = [RememberedWorker(least_batch=8)] * 3
    known[1] = known[1]._replace(memory_use=MemoryUse(failed_batch=6))
    assert bounds_in_passes(job, ["g0", "g1", "g2"], known) == [(8, 60), (5, 5), (8, 60)]


def test_batch_that_no_memory_holds_is_tried_until_the_backoff_limit() -> None:
    world = hetero_world(backoff_limit=1)
    run_out_of_memory(world, *world.workers)
    restart_fully(world)
    assert world.plan.batch_sizes == (64, 64, 64), "half of it everywhere cannot hold the global batch"
    world.workers[FAST].end(137, message="out of memory")
    assert world.tick().phase == "Failed"


def test_single_spike_is_forgotten_slowly() -> None:
    memory = learned((64, 500), (128, 600))
    spiked = measured(memory, 128, 900 * MEBIBYTE)
    bounds = [spiked.greatest_batch]
    for _ in range(30):
        spiked = measured(spiked, 128, 600 * MEBIBYTE)
        bounds.append(spiked.greatest_batch)
    assert bounds == sorted(bounds)
    assert bounds[0] < bounds[-1] <= memory.greatest_batch


def test_first_plan_obeys_it_too() -> None:
    made = needy_world("Static")
    cores = zip(made.job.groups, (2.0, 0.1, 0.05), strict=True)
    made.job = replace(made.job, groups=tuple(replace(group, cpu_limit=cpu) for group, cpu in cores), initial="Static")
    assert batches_seen(made, 1) == [(44, 8, 8)]
