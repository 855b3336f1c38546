"""Schedules of CPU limits: what a file may say, what is due when, and how a trial's parts are measured."""

from pathlib import Path

import pytest

from heterotrain_operator.api import ManifestError
from heterotrain_operator.core.model import Group, Job, Seen, WorkerMetrics, WorkerSeen
from heterotrain_operator.experiments.figures.ceiling import MeasuredCeiling
from heterotrain_operator.experiments.figures.history import DECLARED, LimitChange, TrialHistory
from heterotrain_operator.experiments.figures.trial_summary import summarize_trial
from heterotrain_operator.experiments.schedules.schedule import Schedule, ScheduledLimits
from heterotrain_operator.experiments.schedules.schedule_file import load_schedule
from heterotrain_operator.experiments.trials.trial import limits_of
from unit.experiments.histories import BEGAN, FAST, SLOW, history, joined

JOB = Job("job", (Group("fast", 2, cpu_limit=1.0), Group("slow", 1, cpu_limit=0.5)), 96)
DECLARED_LIMITS = limits_of(JOB)


def load(tmp_path: Path, text: str) -> Schedule:
    path = tmp_path / "schedule.yaml"
    path.write_text(text, "utf-8")
    return load_schedule(path, JOB, DECLARED_LIMITS)


UP_AND_BACK = """
changes:
- {atStep: 10, label: uneven, cpuLimits: {fast: 250m, job-fast-1: "2"}}
- {atStep: 20, cpuLimits: {slow: 1500m}}
- {atStep: 30, label: back, cpuLimits: {fast: 1, slow: 0.5}}
"""


def test_limits_hold_until_they_are_changed_and_a_worker_wins_over_its_group(tmp_path: Path):
    schedule = load(tmp_path, UP_AND_BACK)
    assert [(level.label, tuple(level.limits.values())) for level in schedule.levels] == [
        (DECLARED, (1.0, 1.0, 0.5)),
        ("uneven", (0.25, 2.0, 0.5)),
        ("change 2", (0.25, 2.0, 1.5)),
    ]
    # Limits that were there before are the same level again, so they are profiled once.
    assert [(change.at, change.level) for change in schedule.changes] == [(10, 1), (20, 2), (30, 0)]


def test_a_schedule_that_begins_at_once_never_has_the_declared_limits(tmp_path: Path):
    schedule = load(tmp_path, "changes: [{atSeconds: 0, cpuLimits: {slow: 1}}, {atSeconds: 1.5, cpuLimits: {slow: 2}}]")
    assert [level.limits["job-slow-0"] for level in schedule.levels] == [1.0, 2.0]
    assert schedule.unit == "seconds"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("changes: []", "--schedule: changes: must be a list of at least one change"),
        ("{changes: [5], every: 3}", "--schedule: every: is no field; known is changes"),
        ("changes: [5]", "--schedule: changes[0]: must be a mapping, found 5"),
        ("changes: [{atStep: 1, cpu: {}}]", "--schedule: changes[0].cpu: is no field; known are atStep"),
        ("changes: [{cpuLimits: {slow: 1}}]", "--schedule: changes[0]: needs one of atStep and atSeconds"),
        ("changes: [{atStep: 1.5, cpuLimits: {slow: 1}}]", "changes[0].atStep: must be a number of committed steps"),
        ("changes: [{atSeconds: -1, cpuLimits: {slow: 1}}]", "changes[0].atSeconds: must be a number of seconds"),
        ("changes: [{atStep: 1, label: 3, cpuLimits: {slow: 1}}]", "changes[0].label: must be a text, found 3"),
        ("changes: [{atStep: 1, cpuLimits: {}}]", "changes[0].cpuLimits: must map worker groups"),
        ("changes: [{atStep: 1, label: same}]", "changes[0]: needs one of cpuLimits and neighbours"),
        ("changes: [{atStep: 1, neighbours: {slow: 0.5}}]", "changes[0].neighbours.slow: must be a number of busy"),
        ("changes: [{atStep: 1, neighbours: {slow: 65}}]", "from 0 to 64, found 65"),
        ("changes: [{atStep: 1, cpuLimits: {quick: 1}}]", "changes[0].cpuLimits.quick: is no worker group"),
        ("changes: [{atStep: 1, cpuLimits: {slow: much}}]", "changes[0].cpuLimits.slow: must be a quantity"),
        ("changes: [{atStep: 1, cpuLimits: {slow: 0}}]", "changes[0].cpuLimits.slow: must be above 0, found 0"),
        (
            "changes: [{atStep: 5, cpuLimits: {slow: 1}}, {atStep: 5, cpuLimits: {slow: 2}}]",
            "changes[1].atStep: must be above 5, that of the change before; found 5",
        ),
        (
            "changes: [{atStep: 5, cpuLimits: {slow: 1}}, {atSeconds: 9, cpuLimits: {slow: 2}}]",
            "changes[1].atSeconds: must be atStep, as in the changes before",
        ),
    ],
)
def test_faults_of_a_file_are_named_by_their_paths(tmp_path: Path, text: str, problem: str):
    with pytest.raises(ManifestError) as refused:
        load(tmp_path, text)
    assert problem in str(refused.value)


def test_changes_are_due_in_order_and_none_is_taken_back(tmp_path: Path):
    schedule = load(tmp_path, UP_AND_BACK)
    assert [schedule.due(0, step, None) for step in (9, 10, 29, 30)] == [0, 1, 2, 3]
    assert schedule.due(2, 5, None) == 2  # the job was restarted from a checkpoint


class Workers:
    """Remembers what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float | None]] = []

    def set_cpu_limit(self, name: str, cores: float | None) -> None:
        self.asked.append((name, cores))

    def keep_to_cpu(self, name: str, cpu: int) -> None:
        self.asked.append((name, -cpu))

    def set_neighbours(self, name: str, count: int) -> None:
        self.asked.append((f"beside {name}", count))


def seen(step: int, **uids: str) -> Seen:
    names = {"job-fast-0": "fast", "job-fast-1": "fast", "job-slow-0": "slow"}
    metrics = WorkerMetrics(plan_version=1, batch_size=32, steps=step, own_seconds=1.0, step=step)
    workers = (
        WorkerSeen(
            name=name,
            uid=uids.get(name.replace("-", "_"), name),
            group=group,
            index=0,
            phase="Running",
            metrics=metrics,
        )
        for name, group in names.items()
    )
    return Seen(tuple(workers))


def test_only_workers_whose_limit_differs_are_changed(tmp_path: Path):
    workers = Workers()
    limits = ScheduledLimits(load(tmp_path, UP_AND_BACK), workers, [{}] * 3, lambda: BEGAN, DECLARED_LIMITS)
    assert limits.look(seen(9)) == ()
    (event,) = limits.look(seen(11))
    assert event.message == "CPU limits uneven: 0.25 / 2 / 0.5"
    assert workers.asked == [("job-fast-0", 0.25), ("job-fast-1", 2.0)]
    assert limits.missed() == ("change 2", "back")
    (change,) = limits.changes
    assert (change.seconds, change.step, change.label) == (BEGAN, 11, "uneven")


BUSY = """
changes:
- {atStep: 10, label: busy, neighbours: {fast: 1, job-fast-1: 2}}
- {atStep: 20, label: quiet, neighbours: {fast: 0}}
- {atStep: 30, label: less, cpuLimits: {slow: 250m}, neighbours: {slow: 1}}
"""


@pytest.mark.parametrize(
    ("text", "placements", "asked"),
    [
        (UP_AND_BACK, [{}, {"job-fast-0": 3}, {}], [("job-fast-0", 0.25), ("job-fast-0", -3)]),
        (BUSY, [{}] * 3, [("beside job-fast-0", 1)]),
    ],
)
def test_a_worker_that_is_started_again_gets_what_holds_now(
    text: str, placements: list[dict[str, int]], asked: list[tuple[str, float]], tmp_path: Path
) -> None:
    workers = Workers()
    limits = ScheduledLimits(load(tmp_path, text), workers, placements, lambda: BEGAN, DECLARED_LIMITS)
    limits.look(seen(10))
    workers.asked.clear()
    limits.look(seen(2, job_fast_0="another"))
    assert workers.asked == asked
    assert len(limits.changes) == 1


def test_neighbours_come_and_go_at_unchanged_limits(tmp_path: Path):
    schedule = load(tmp_path, BUSY)
    assert [(level.label, level.neighbours) for level in schedule.levels] == [
        (DECLARED, {}),
        ("busy", {"job-fast-0": 1, "job-fast-1": 2}),
        ("less", {"job-slow-0": 1}),
    ]
    assert schedule.levels[1].limits == DECLARED_LIMITS
    assert [change.level for change in schedule.changes] == [1, 0, 2]
    workers = Workers()
    limits = ScheduledLimits(schedule, workers, [{}] * 3, lambda: BEGAN, DECLARED_LIMITS)
    (event,) = limits.look(seen(10))
    assert event.message == "CPU limits busy: 1 / 1 / 0.5; busy neighbours: job-fast-0 1, job-fast-1 2"
    assert workers.asked == [("beside job-fast-0", 1.0), ("beside job-fast-1", 2.0)]
    limits.look(seen(20))
    assert workers.asked[2:] == [("beside job-fast-0", 0), ("beside job-fast-1", 0)]
    limits.look(seen(30))
    assert workers.asked[4:] == [("job-slow-0", 0.25), ("beside job-slow-0", 1)]
    assert [change.neighbours for change in limits.changes] == [level.neighbours for level in schedule.levels[1:2]] + [
        {},
        {"job-slow-0": 1},
    ]


def test_seconds_count_from_the_first_step(tmp_path: Path):
    clock = [100.0]
    schedule = load(tmp_path, "changes: [{atSeconds: 5, cpuLimits: {slow: 1}}]")
    limits = ScheduledLimits(schedule, Workers(), [{}, {}], lambda: clock[0], DECLARED_LIMITS)
    limits.look(seen(0))
    assert limits.seconds_left() is None  # nobody knows how long the start takes
    clock[0] = 110.0
    limits.look(seen(1))
    assert limits.seconds_left() == 5.0
    clock[0] = 114.0
    limits.look(seen(2))
    assert not limits.changes
    clock[0] = 115.0
    limits.look(seen(3))
    assert len(limits.changes) == 1


def test_the_next_look_comes_when_the_step_is_due(tmp_path: Path):
    clock = [100.0]
    limits = ScheduledLimits(load(tmp_path, UP_AND_BACK), Workers(), [{}] * 3, lambda: clock[0], DECLARED_LIMITS)
    limits.look(seen(1))
    assert limits.seconds_left() is None
    clock[0] = 101.0
    limits.look(seen(6))
    assert limits.seconds_left() == pytest.approx(0.8)  # 5 steps per second, 4 to go


def test_every_phase_is_held_against_the_ceiling_of_its_own_limits():
    # 10 steps of 1 s, then limits change: 10 steps of 2.5 s, of which the first began before the change.
    steps = joined(history(10, (32, 32), (0.5, 0.5)), history(10, (32, 32), (0.32, 2.0), first=10, began=BEGAN + 11.5))
    change = LimitChange(BEGAN + 9.5, 10, 1, "slower", {FAST: 1.0, SLOW: 0.25})
    trial = TrialHistory("Uniform", 1, steps, 0, "Succeeded", changes=(change,))
    ceilings = tuple({64: MeasuredCeiling(64, {FAST: 32, SLOW: 32}, 0.5, seconds)} for seconds in (0.9, 1.0))
    found = summarize_trial(trial, (FAST, SLOW), ceilings, label="fast")
    first, second = found.phases
    assert (first.label, first.steps, first.iteration_seconds) == ("fast", 10, 1.0)
    assert (second.label, second.first_step, second.iteration_seconds) == ("slower", 10, 2.5)
    assert (first.ceiling_fraction, first.ceiling_fraction_all) == pytest.approx((0.9, 0.9))
    assert second.ceiling_fraction == pytest.approx(0.4)
    # The iteration in which limits changed is neither's.
    assert found.ceiling_fraction_all == pytest.approx((9 * 0.9 + 9 * 1.0) / (9 * 1.0 + 9 * 2.5))
    assert found.ceiling_fraction == second.ceiling_fraction
