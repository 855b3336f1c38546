"""The history of a job from its workers' accounts."""

from pathlib import Path

import pytest

from heterotrain.contract import EvaluationRecord
from heterotrain_operator.experiments.figures.series import (
    align,
    last_evaluations,
    last_records,
    read_evaluations,
    read_series,
)
from heterotrain_operator.experiments.figures.steps import (
    balanced,
    iteration_seconds,
    seconds_to_metric,
    seconds_to_target,
    since_last_adjustment,
)
from unit.experiments.histories import BEGAN, FAST, SLOW, history, joined, record


def test_last_record_of_a_replayed_step_counts():
    kept = last_records([record(0, 1.0), record(1, 2.0), record(1, 3.0, mark="replay"), record(2, 4.0)])
    assert [(step, entry.time) for step, entry in kept.items()] == [(0, 1.0), (1, 3.0), (2, 4.0)]


def test_restart_voids_the_steps_since_the_checkpoint():
    kept = last_records([*(record(step, step) for step in range(10)), record(5, 50.0), record(6, 60.0)])
    assert sorted(kept) == [0, 1, 2, 3, 4, 5, 6]
    assert kept[5].time == 50.0


def test_step_is_committed_when_the_leader_says_so():
    steps = align({FAST: [record(0, 10.0)], SLOW: [record(0, 10.4), record(1, 11.0)]})
    assert [step.seconds for step in steps] == [10.0, 11.0]


def test_step_that_those_who_are_left_did_again_is_not_that_of_the_one_who_died():
    alone = record(1, 12.0, loss=1.25, mark="replay")
    steps = align({FAST: [record(0, 10.0), alone], SLOW: [record(0, 10.0), record(1, 11.0, loss=0.5)]})
    assert [step.loss for step in steps][1] == 1.25


def test_restart_voids_what_a_worker_did_that_did_not_come_back():
    before = [record(step, 10.0 + step, version=2, loss=0.5) for step in range(6)]
    after = [record(step, 50.0 + step, version=3, loss=1.0) for step in range(3, 5)]
    steps = align({FAST: [*before, *after], SLOW: before})
    assert [(step.number, step.loss) for step in steps] == [(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0)]


def test_torn_lines_are_passed_over(tmp_path: Path):
    path = tmp_path / "series.jsonl"
    path.write_text(record(0, 1.0).to_json() + "\n" + record(1, 2.0).to_json()[:20] + "\n[]\n{}\n", "utf-8")
    assert [entry.step for entry in read_series(path)] == [0]


def test_missing_file_holds_no_records(tmp_path: Path):
    assert read_series(tmp_path / "none.jsonl") == ()


def test_global_loss_is_the_sum_of_the_shares():
    (step,) = align({FAST: [record(0, 1.0, loss=0.75)], SLOW: [record(0, 1.0, loss=0.5)]})
    assert step.loss == 1.25


def test_worker_without_samples_adds_no_loss_and_does_not_unbalance():
    (step,) = align({FAST: [record(0, 1.0, loss=0.75)], SLOW: [record(0, 1.0, batch=0, own=0.0, loss=None)]})
    assert step.loss == 0.75
    assert step.spread == 0.0


def test_loss_that_is_no_number_is_unknown():
    (step,) = align({FAST: [record(0, 1.0, loss=float("nan"))], SLOW: [record(0, 1.0)]})
    assert step.loss is None


@pytest.mark.parametrize(("own", "is_balanced"), [((1.0, 0.9), True), ((1.0, 0.89), False), ((0.5, 0.5), True)])
def test_steps_within_ten_percent_are_balanced(own: tuple[float, float], is_balanced: bool):
    assert bool(balanced(joined(history(3, (32, 32), own)))) is is_balanced


def test_all_reduce_is_the_least_wait():
    (step,) = joined(history(1, (32, 32), (1.0, 3.0), allreduce=0.5))
    assert step.allreduce_seconds == 0.5


def test_marked_steps_bound_no_iteration():
    steps = joined(history(6, (32, 32), (1.0, 1.5), marks={3: "checkpoint"}))
    assert iteration_seconds(steps) == (2.0, 2.0, 2.0)


def test_iterations_do_not_span_a_gap():
    before = history(2, (32, 32), (1.0, 1.5))
    after = history(2, (32, 32), (1.0, 1.5), first=7, began=BEGAN + 100)
    assert iteration_seconds(joined(before, after)) == (2.0, 2.0)


def test_steps_since_the_last_adjustment_share_their_batches():
    first, second = history(5, (32, 32), (1.0, 2.0)), history(3, (40, 24), (1.5, 1.5), first=5, began=BEGAN + 50)
    assert [step.number for step in since_last_adjustment(joined(first, second))] == [5, 6, 7]
    assert len(since_last_adjustment(joined(first))) == 5


def test_last_account_missing_of_a_killed_worker_is_no_adjustment():
    series = history(5, (32, 32), (1.0, 2.0))
    series[SLOW].pop()
    assert len(since_last_adjustment(joined(series))) == 5


def test_target_is_reached_with_the_mean_over_its_window():
    losses = [3.0, 2.0, 1.0, 1.0, 0.0]
    steps = align({FAST: [record(index, 10.0 + index, loss=loss) for index, loss in enumerate(losses)]})
    assert seconds_to_target(steps, 1.0, 3) == 4.0
    assert seconds_to_target(steps, 1.5, 2) == 2.0
    assert seconds_to_target(steps, 0.1, 2) is None
    assert seconds_to_target(steps, None, 2) is None
    assert seconds_to_target(steps, 5.0, 9) is None


def test_metric_is_reached_at_the_first_evaluation_that_says_so(tmp_path: Path):
    evaluations = [
        EvaluationRecord(BEGAN + 4.0, 4, {"accuracy": 0.5}),
        EvaluationRecord(BEGAN + 9.0, 8, {"accuracy": 0.9}),
    ]
    path = tmp_path / "series.jsonl"
    path.write_text(
        "".join(f"{each.to_json()}\n" for each in [record(0, 1.0), evaluations[0], record(1, 2.0), evaluations[1]]),
        "utf-8",
    )
    assert read_evaluations(path) == tuple(evaluations)
    assert [entry.step for entry in read_series(path)] == [0, 1]
    steps = align(history(10, (32, 32), (1, 1)))
    begin = steps[0].seconds - BEGAN
    assert seconds_to_metric(steps, evaluations, "accuracy", lambda value: value >= 0.8) == 9.0 - begin
    assert seconds_to_metric(steps, evaluations, "accuracy", lambda value: value >= 0.95) is None
    assert seconds_to_metric(steps, evaluations, "f1", lambda value: True) is None


def test_evaluations_after_a_step_that_was_gone_back_to_are_void():
    evaluations = [
        EvaluationRecord(time, step, {"accuracy": accuracy})
        for time, step, accuracy in [(3.0, 20, 0.5), (4.0, 30, 0.6), (7.0, 20, 0.55), (1.0, 10, 0.4)]
    ]
    assert [(each.step, each.metrics["accuracy"]) for each in last_evaluations(evaluations)] == [(10, 0.4), (20, 0.55)]
