"""The figures of a run, from records small enough to calculate by hand."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from heterotrain.contract import EvaluationRecord
from heterotrain_operator.experiments.figures.ceiling import (
    AllReduce,
    MeasuredCeiling,
    allreduce_of,
    ceiling_of,
    profile_of,
)
from heterotrain_operator.experiments.figures.history import LimitChange, Target, TrialHistory
from heterotrain_operator.experiments.figures.steps import Step
from heterotrain_operator.experiments.figures.summary import Summary, summarize
from heterotrain_operator.experiments.figures.trial_summary import summarize_trial
from heterotrain_operator.experiments.figures.verdict import Circumstances, verdict_on
from unit.experiments.histories import BEGAN, FAST, SLOW, history, joined, trial

NAMES = (FAST, SLOW)
BOUNDS = {FAST: (1, 64), SLOW: (1, 64)}


def profile_steps(scale: float = 1.0, allreduce: float = 0.5) -> TrialHistory:
    """Four sizes each: the fast worker takes 10 ms a sample, the slow one 30 ms, `scale` times."""
    steps = joined(
        *(
            history(
                5,
                (16 * k, 8 * k),
                (0.16 * k * scale, 0.24 * k * scale),
                first=5 * k,
                began=BEGAN + 100 * k,
                allreduce=allreduce,
            )
            for k in range(1, 5)
        )
    )
    return trial("Profile", steps, 0, "Running")


def adjusted_trial(policy: str = "Optimal", number: int = 1) -> TrialHistory:
    """Ten steps of 2.5 s at (32, 32), then ten of 1 s at (48, 16), balanced; the first after the change is marked."""
    before = history(10, (32, 32), (0.32, 2.0), loss=2.0)
    after = history(10, (48, 16), (0.5, 0.5), first=10, began=BEGAN + 25.0, loss=0.5, marks={10: "first"})
    return trial(policy, joined(before, after), number, adjustments=1)


def uniform_trial(number: int = 1) -> TrialHistory:
    return trial("Uniform", joined(history(20, (32, 32), (0.32, 2.0))), number)


def test_trial_in_numbers():
    found = summarize_trial(adjusted_trial(), NAMES, ())
    assert found.steps == 20
    assert found.samples == 20 * 64
    assert found.seconds == 34.0  # step 10 is at 25 s, step 19 is nine iterations of 1 s later
    assert found.samples_per_second == pytest.approx(19 * 64 / 34.0)
    assert found.final_loss == 0.5
    assert found.adjustments == 1
    assert found.settled_at_step == 10
    assert found.iteration_seconds == 1.0
    assert found.global_batch == 64


def test_worker_in_numbers():
    slow = summarize_trial(adjusted_trial(), NAMES, ()).worker[1]
    assert (slow.name, slow.batch, slow.samples) == (SLOW, 16, 10 * 32 + 10 * 16)
    assert slow.own_seconds == pytest.approx((10 * 2.0 + 9 * 0.5) / 19)  # without the marked step
    assert slow.wait_seconds == pytest.approx(0.5)
    assert (slow.settled_own_seconds, slow.settled_wait_seconds) == (0.5, 0.5)
    assert (slow.peer_share, slow.communication_share) == (0.0, 0.5)
    fast = summarize_trial(uniform_trial(), NAMES, ()).worker[0]
    assert (fast.peer_share, fast.communication_share) == pytest.approx((1.68 / 2.5, 0.5 / 2.5))


UNLIKE = {FAST: 1.0, SLOW: 0.5}


def verdict(
    steps: tuple[Step, ...], policy: str = "Optimal", *, adjustments: int = 0, alone: bool = False, **circumstances: Any
) -> str:
    found = Circumstances(**{"limits": UNLIKE, "machine_cores": 2, "interval": 10, "of_script": True} | circumstances)
    history = replace(trial(policy, steps, adjustments=adjustments), asynchronous=alone)
    return verdict_on(summarize_trial(history, NAMES, ()), steps, found)


SHORT = joined(history(78, (32, 32), (0.002, 0.005), allreduce=0.001))
TALKING = joined(history(78, (32, 32), (0.002, 0.003), allreduce=0.007))
ALIKE = joined(history(78, (32, 32), (0.48, 0.5), allreduce=0.1))
FITTING = joined(history(78, (48, 16), (0.48, 0.5), allreduce=0.1))
LONG = joined(history(78, (32, 32), (0.4, 0.5), allreduce=0.1))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (verdict(SHORT), "stayed at 32 / 32: only 78 steps of 6 ms, too short to measure; try --steps 2600."),
        (verdict(TALKING, alone=True), "70% of an update is pull and push, which batches cannot shorten"),
        (verdict(ALIKE, alone=True, adjustments=1), "Batches moved to 32 / 32; own times are within 4%"),
        (verdict(SHORT, of_script=False), "try spec.training.steps: 2600."),
        (verdict(SHORT[:9]), "only 9 of 9 steps could be measured, too few; try --steps 2600"),
        (verdict(TALKING), "70% of a step is all-reduce, which batches cannot shorten; a larger global batch"),
        (verdict(ALIKE), "the CPU limits do not bind: own times differ by 4% only, so equal batches are right; lower"),
        (verdict(ALIKE, limits={FAST: 0.5, SLOW: 0.5}), "own times differ by 4% only, so equal batches are right."),
        (verdict(FITTING), "48 / 16: own times differ by 4% only, so those of the first plan are right."),
        (verdict(ALIKE, machine_cores=1), "the CPU limits add up to 1.5 cores, and this machine has 1, so that"),
        (verdict(LONG, "Static"), "Static never moves any; --policy Optimal does."),
        (
            verdict(LONG, reason="the best split saves 1 % of the step."),
            "32 / 32: the best split saves 1 % of the step; a longer run may move them (try --steps 160).",
        ),
        (verdict(ALIKE, adjustments=1), "own times are within 4% of one another."),
        (
            verdict(LONG, adjustments=1),
            "own times still differ by 20%, so a longer run may move more (try --steps 160)",
        ),
        (
            verdict(adjusted_trial().steps, adjustments=1),
            "Batches moved from 32 / 32 to 48 / 16; a step took 2.5 s before and 1.0 s after; 50% of a step is",
        ),
    ],
)
def test_a_run_ends_with_why_its_batches_are_as_they_are_and_what_to_try(said: str, words: str):
    assert words in said


def test_final_loss_is_the_mean_of_the_last_ten_steps_and_a_target_is_timed():
    steps = joined(history(5, (32, 32), (1, 1), loss=9.0), history(10, (32, 32), (1, 1), first=5, loss=2.0))
    assert summarize_trial(trial("Uniform", steps), NAMES, ()).final_loss == pytest.approx(2.0)
    found = summarize_trial(adjusted_trial(), NAMES, (), Target(value=0.5, every_steps=5))
    assert found.target_seconds == 29.0  # steps 10 to 14


def test_trial_without_a_step_has_no_figures():
    found = summarize_trial(TrialHistory("Optimal", 1, (), 0, "Failed", "no worker started"), NAMES, ())
    assert (found.steps, found.samples, found.seconds) == (0, 0, 0.0)
    assert (found.samples_per_second, found.final_loss, found.iteration_seconds) == (None, None, None)


def test_ceiling_fraction_after_the_last_adjustment_and_over_all_steps():
    ceiling = MeasuredCeiling(64, {FAST: 48, SLOW: 16}, own_seconds=0.48, iteration_seconds=0.9)
    found = summarize_trial(adjusted_trial(), NAMES, ({64: ceiling},))
    assert found.ceiling_fraction == pytest.approx(0.9)
    assert found.ceiling_fraction_all == pytest.approx(19 * 0.9 / 34.0)
    assert found.fault is None


def test_partial_steps_are_not_held_against_the_ceiling():
    series = history(3, (32, 32), (1.0, 1.0))
    for name in series:
        series[name][1] = type(series[name][1])(
            **{**json.loads(series[name][1].to_json()), "samples": 4, "mark": "partial"}
        )
    ceiling = MeasuredCeiling(64, {FAST: 32, SLOW: 32}, own_seconds=1.0, iteration_seconds=1.5)
    assert summarize_trial(trial("Uniform", joined(series)), NAMES, ({64: ceiling},)).ceiling_fraction_all == 1.0


def test_fraction_above_one_is_a_fault_of_measurement():
    ceiling = MeasuredCeiling(64, {FAST: 48, SLOW: 16}, own_seconds=0.9, iteration_seconds=1.03)
    fault = summarize_trial(adjusted_trial(), NAMES, ({64: ceiling},)).fault
    assert fault is not None
    assert "fault of measurement: Optimal reached 1.030 of the ceiling" in fault


def test_a_phase_above_its_ceiling_is_a_fault_even_if_the_whole_trial_is_not():
    low = MeasuredCeiling(64, {FAST: 32, SLOW: 32}, own_seconds=2.0, iteration_seconds=2.9)
    high = MeasuredCeiling(64, {FAST: 48, SLOW: 16}, own_seconds=0.48, iteration_seconds=0.5)
    change = LimitChange(BEGAN + 24.0, 10, 1, "less", {})
    found = summarize_trial(replace(adjusted_trial(), changes=(change,)), NAMES, ({64: low}, {64: high}), label="more")
    assert found.ceiling_fraction == pytest.approx(0.5)
    assert found.ceiling_fraction_all is not None
    assert found.ceiling_fraction_all <= 1.0
    assert found.fault is not None
    assert "of the ceiling in more, and more than" in found.fault


def test_profile_pools_before_and_after():
    after = profile_steps(scale=1.08)
    profile = profile_of(NAMES, profile_steps().steps, after.steps, adjusted_trial().steps)
    fast = profile.workers[0]
    assert [point.batch for point in fast.points] == [16, 32, 48, 64]
    assert {point.steps for point in fast.points} == {10}
    first = fast.points[0]
    assert first.own_seconds == pytest.approx(0.16 * 1.04)  # median of five at 0.16 and five at 0.1728
    assert (first.before_seconds, first.after_seconds) == (pytest.approx(0.16), pytest.approx(0.1728))
    assert first.spread_seconds == pytest.approx(0.16 * 0.08)
    assert profile.warnings == ()


def of_half_the_samples(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The same steps of a job whose data set has half as many samples as the global batch: none is fuller."""
    return tuple(
        replace(step, records={name: replace(each, samples=each.batch // 2) for name, each in step.records.items()})
        for step in steps
    )


def test_steps_of_a_data_set_smaller_than_the_global_batch_are_profiled_and_held_against_the_ceiling():
    profiled = of_half_the_samples(profile_steps().steps)
    trained = of_half_the_samples(adjusted_trial().steps)
    assert profile_of(NAMES, profiled, (), trained) == profile_of(
        NAMES, profile_steps().steps, (), adjusted_trial().steps
    )
    ceiling = MeasuredCeiling(64, {FAST: 48, SLOW: 16}, own_seconds=0.48, iteration_seconds=0.9)
    found = summarize_trial(replace(adjusted_trial(), steps=trained), NAMES, ({64: ceiling},))
    assert found.ceiling_fraction_all == pytest.approx(18 * 0.9 / 31.5)  # without the marked step


def test_profile_says_when_the_machine_changed_or_it_has_too_few_sizes_or_none():
    profile = profile_of(NAMES, profile_steps().steps, profile_steps(scale=1.3).steps, adjusted_trial().steps)
    assert [warning.split(";")[0] for warning in profile.warnings] == [
        f"{name}: own time changed by +30% from before to after the trials" for name in NAMES
    ]
    few = joined(history(5, (16, 8), (0.16, 0.24)), history(5, (32, 16), (0.32, 0.48), first=5))
    profile = profile_of(NAMES, few, (), adjusted_trial().steps)
    assert profile.warnings[0].startswith(f"{FAST}: profiled at 2 batch sizes, fewer than 4")
    with pytest.raises(ValueError, match=f"no step of {FAST}, {SLOW} was fit"):
        profile_of(NAMES, (), (), adjusted_trial().steps)


@pytest.mark.parametrize(
    ("unfit", "own", "count", "is_balanced"), [(10, (0.5, 0.48), 3, True), (8, (0.5, 0.7), 2, False)]
)
def test_all_reduce_is_taken_from_balanced_steps_or_else_from_the_best_fifth(
    unfit: int, own: tuple[float, float], count: int, is_balanced: bool
):
    poor = history(unfit, (32, 32), (0.1, 1.0), allreduce=9.0)
    steps = joined(poor, history(count, (48, 16), own, first=unfit, allreduce=0.2))
    assert allreduce_of(steps) == AllReduce(pytest.approx(0.2), count, balanced=is_balanced)


@pytest.mark.parametrize(("fast", "batches"), [((1, 64), (48, 16)), ((1, 40), (40, 24))])
def test_ceiling_is_the_oracles_split_within_bounds_and_the_all_reduce(fast: tuple[int, int], batches: tuple[int, int]):
    profile = profile_of(NAMES, profile_steps().steps, (), adjusted_trial().steps)
    ceiling = ceiling_of(profile, 64, {FAST: fast, SLOW: (1, 64)})
    assert tuple(ceiling.batches.values()) == batches  # 10 ms against 30 ms a sample: 3 to 1, both 0.48 s
    assert ceiling.own_seconds == pytest.approx(max(0.01 * batches[0], 0.03 * batches[1]))
    assert ceiling.iteration_seconds == pytest.approx(ceiling.own_seconds + 0.5)


def whole(*trials: TrialHistory, profiled: tuple[TrialHistory, ...] = ()) -> Summary:
    return summarize("job", trials, NAMES, bounds=BOUNDS, profiled=profiled, limits="none")


@pytest.mark.parametrize(("least", "slow"), [(8, 16), (24, 24), (33, 16)])
def test_ceiling_gives_workers_what_they_need_where_the_global_batch_allows_it(least: int, slow: int):
    found = summarize(
        "job",
        (adjusted_trial(), uniform_trial()),
        NAMES,
        bounds=BOUNDS,
        profiled=(profile_steps(), profile_steps()),
        least=dict.fromkeys(NAMES, least),
    )
    [ceiling] = found.ceilings
    assert ceiling.batches == {FAST: 64 - slow, SLOW: slow}


def test_whole_run_against_the_ceiling():
    found = whole(adjusted_trial(), uniform_trial(), profiled=(profile_steps(), profile_steps()))
    assert [trial.ceiling_seconds for trial in found.trials] == [pytest.approx(0.98)] * 2
    assert [trial.ceiling_fraction for trial in found.trials] == [pytest.approx(0.98), pytest.approx(0.98 / 2.5)]
    assert found.warnings == ()
    assert found.phase == "Succeeded"


def test_speedup_is_the_ratio_of_rates_and_of_iterations_and_over_rounds_their_median():
    (found,) = whole(adjusted_trial(), uniform_trial()).speedup
    assert (found.policy, found.over, found.rounds) == ("Optimal", "Uniform", 1)
    assert found.samples_per_second is not None
    assert found.samples_per_second.median == pytest.approx((19 * 64 / 34.0) / (64 / 2.5))
    slower = trial("Uniform", joined(history(20, (32, 32), (0.32, 3.5))), 2)
    (found,) = whole(adjusted_trial(), uniform_trial(), adjusted_trial(number=2), slower).speedup
    assert found.iteration is not None
    spread = (found.iteration.least, found.iteration.median, found.iteration.greatest)
    assert (found.rounds, *spread) == (2, pytest.approx(2.5), pytest.approx(3.25), pytest.approx(4.0))


def test_failed_trial_fails_the_run_and_a_profile_without_figures_gives_a_reason_instead_of_a_ceiling():
    found = whole(adjusted_trial(), TrialHistory("Uniform", 1, (), 0, "Failed", "job-slow-0 exited with 1"))
    assert (found.phase, found.message) == ("Failed", "job-slow-0 exited with 1")
    found = whole(adjusted_trial(), profiled=(trial("Profile", (), 0, "Running"),))
    assert found.profile is None
    assert found.warnings[0].startswith("no ceiling: no step of job-fast-0, job-slow-0 was fit")


def test_json_has_the_promised_fields_and_only_numbers_that_json_knows():
    document = whole(adjusted_trial(), profiled=(profile_steps(), profile_steps())).to_json()
    (found,) = json.loads(json.dumps(document, allow_nan=False))["arms"]
    promised = "policy round steps samples seconds samples_per_second final_loss target_seconds adjustments"
    assert {*promised.split(), "ceiling_fraction", "ceiling_fraction_all", "worker"} <= found.keys()
    assert {"name", "batch", "own_seconds", "wait_seconds"} <= found["worker"][0].keys()
    points = document["profile"]["workers"][0]["points"]
    assert {"batch", "own_seconds", "spread_seconds", "steps"} <= points[0].keys()


def evaluated_trial() -> TrialHistory:
    """The adjusted trial, evaluated twice: the second time nearly every sample is right, and the F1 score is
    unknown."""
    evaluations = (
        EvaluationRecord(BEGAN + 20.0, 8, {"accuracy": 0.5, "f1": 0.25}),
        EvaluationRecord(BEGAN + 40.0, 20, {"accuracy": 0.97531, "f1": float("nan")}),
    )
    return replace(adjusted_trial(), evaluations=evaluations)


def test_evaluations_are_in_the_summary():
    found = summarize("j", (evaluated_trial(), uniform_trial()), NAMES, bounds=BOUNDS)
    evaluated, none = json.loads(json.dumps(found.to_json(), allow_nan=False))["arms"]
    assert none["evaluations"] == []
    began = evaluated_trial().steps[0].seconds - BEGAN
    assert evaluated["evaluations"] == [
        {"step": 8, "seconds": 20.0 - began, "metrics": {"accuracy": 0.5, "f1": 0.25}},
        {"step": 20, "seconds": 40.0 - began, "metrics": {"accuracy": 0.97531, "f1": None}},
    ]
