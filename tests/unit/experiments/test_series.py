"""The history of a job from its workers' accounts, and figures over its steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterotrain.contract import EvaluationRecord, StepRecord
from heterotrain_operator.experiments.figures.series import (
    align,
    last_evaluations,
    last_records,
    read_evaluations,
    read_series,
)
from heterotrain_operator.experiments.figures.steps import (
    adjustments,
    balanced,
    iteration_seconds,
    seconds_to_metric,
    seconds_to_target,
    since_last_adjustment,
)
from unit.experiments.histories import BEGAN, FAST, SLOW, history, joined, record


def test_last_record_of_a_replayed_step_counts_and_a_restart_voids_what_came_after_it() -> None:
    kept = last_records([record(0, 1.0), record(1, 2.0), record(1, 3.0, mark="replay"), record(2, 4.0)])
    assert [(step, entry.time) for step, entry in kept.items()] == [(0, 1.0), (1, 3.0), (2, 4.0)]
    kept = last_records([*(record(step, step) for step in range(10)), record(5, 50.0), record(6, 60.0)])
    assert sorted(kept) == [0, 1, 2, 3, 4, 5, 6]
    assert kept[5].time == 50.0


BEFORE = [record(step, 10.0 + step, version=2, loss=0.5) for step in range(6)]
AFTER = [record(step, 50.0 + step, version=3, loss=1.0) for step in range(3, 5)]
ALONE = record(1, 12.0, loss=1.25, mark="replay")


@pytest.mark.parametrize(
    ("fast", "slow", "committed"),
    [
        ([record(0, 10.0)], [record(0, 10.4), record(1, 11.0)], [(10.0, 2.0), (11.0, 1.0)]),
        ([record(0, 10.0), ALONE], [record(0, 10.0), record(1, 11.0, loss=0.5)], [(10.0, 2.0), (12.0, 1.25)]),
        ([*BEFORE, *AFTER], BEFORE, [(10.0, 1.0), (11.0, 1.0), (12.0, 1.0), (53.0, 1.0), (54.0, 1.0)]),
        ([record(0, 1.0, loss=0.75)], [record(0, 1.0, batch=0, own=0.0, loss=None)], [(1.0, 0.75)]),
        ([record(0, 1.0, loss=float("nan"))], [record(0, 1.0)], [(1.0, None)]),
    ],
    ids=["the leader says when", "those left did it again", "one never came back", "no samples", "no number"],
)
def test_step_is_that_of_those_who_did_it_last_and_its_loss_the_sum_of_their_shares(
    fast: list[StepRecord], slow: list[StepRecord], committed: list[tuple[float, float | None]]
) -> None:
    assert [(step.seconds, step.loss) for step in align({FAST: fast, SLOW: slow})] == committed


def test_steps_that_workers_take_alone_count_each_under_whatever_plan_and_number() -> None:
    fast = [record(1, 1.0, 30, version=1), record(3, 3.0, 40, version=2)]
    slow = [record(2, 2.0, 30, version=2), record(3, 2.5, 30, version=1), record(4, 4.0, 20)]
    alone = align({FAST: fast, SLOW: slow}, together=False)
    assert [(step.number, *step.records) for step in alone] == [(1, FAST), (2, SLOW), (3, SLOW), (4, FAST), (5, SLOW)]
    assert adjustments(alone) == [3, 4]


def test_records_and_evaluations_are_read_from_one_file_and_torn_lines_are_passed_over(tmp_path: Path) -> None:
    evaluation = EvaluationRecord(BEGAN + 4.0, 4, {"accuracy": 0.5})
    path = tmp_path / "series.jsonl"
    lines = (record(0, 1.0).to_json(), evaluation.to_json(), record(1, 2.0).to_json(), record(2, 3.0).to_json()[:20])
    path.write_text("\n".join([*lines, "[]", "{}", ""]), "utf-8")
    assert [entry.step for entry in read_series(path)] == [0, 1]
    assert read_evaluations(path) == (evaluation,)
    assert read_series(tmp_path / "none.jsonl") == ()


@pytest.mark.parametrize(("own", "is_balanced"), [((1.0, 0.9), True), ((1.0, 0.89), False), ((0.5, 0.5), True)])
def test_steps_within_ten_percent_are_balanced(own: tuple[float, float], is_balanced: bool) -> None:
    assert bool(balanced(joined(history(3, (32, 32), own)))) is is_balanced
    (idle,) = align({FAST: [record(0, 1.0)], SLOW: [record(0, 1.0, batch=0, own=0.0)]})
    assert idle.spread == 0.0, "one without samples unbalances nothing"


def test_iterations_span_neither_marked_steps_nor_gaps() -> None:
    assert iteration_seconds(joined(history(6, (32, 32), (1.0, 1.5), marks={3: "checkpoint"}))) == (2.0, 2.0, 2.0)
    before, after = history(2, (32, 32), (1.0, 1.5)), history(2, (32, 32), (1.0, 1.5), first=7, began=BEGAN + 100)
    assert iteration_seconds(joined(before, after)) == (2.0, 2.0)


def test_steps_since_the_last_adjustment_share_their_batches() -> None:
    first, second = history(5, (32, 32), (1.0, 2.0)), history(3, (40, 24), (1.5, 1.5), first=5, began=BEGAN + 50)
    assert [step.number for step in since_last_adjustment(joined(first, second))] == [5, 6, 7]
    first[SLOW].pop()  # of a worker that was killed
    assert len(since_last_adjustment(joined(first))) == 5


@pytest.mark.parametrize(
    ("target", "window", "seconds"), [(1.0, 3, 4.0), (1.5, 2, 2.0), (0.1, 2, None), (None, 2, None), (5.0, 9, None)]
)
def test_target_is_reached_with_the_mean_over_its_window(
    target: float | None, window: int, seconds: float | None
) -> None:
    losses = [3.0, 2.0, 1.0, 1.0, 0.0]
    steps = align({FAST: [record(index, 10.0 + index, loss=loss) for index, loss in enumerate(losses)]})
    assert seconds_to_target(steps, target, window) == seconds


def test_metric_is_reached_at_the_first_evaluation_that_says_so() -> None:
    evaluations = [
        EvaluationRecord(BEGAN + 4.0, 4, {"accuracy": 0.5}),
        EvaluationRecord(BEGAN + 9.0, 8, {"accuracy": 0.9}),
    ]
    steps = align(history(10, (32, 32), (1, 1)))
    begin = steps[0].seconds - BEGAN
    assert seconds_to_metric(steps, evaluations, "accuracy", lambda value: value >= 0.8) == 9.0 - begin
    assert seconds_to_metric(steps, evaluations, "accuracy", lambda value: value >= 0.95) is None
    assert seconds_to_metric(steps, evaluations, "f1", lambda value: True) is None


def test_evaluations_after_a_step_that_was_gone_back_to_are_void() -> None:
    evaluations = [
        EvaluationRecord(time, step, {"accuracy": accuracy})
        for time, step, accuracy in [(3.0, 20, 0.5), (4.0, 30, 0.6), (7.0, 20, 0.55), (1.0, 10, 0.4)]
    ]
    assert [(each.step, each.metrics["accuracy"]) for each in last_evaluations(evaluations)] == [(10, 0.4), (20, 0.55)]
