"""Evidence against a worker: the sum of what its windows say, each as far as noise cannot explain it."""

from __future__ import annotations

import pytest

from heterotrain_operator.core.model import Stragglers
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.split.allocation import Line
from heterotrain_operator.core.stragglers.evidence import Evidence
from heterotrain_operator.core.stragglers.rule import Interval, Reading
from heterotrain_operator.core.stragglers.watch import RULES
from unit.core.stragglers import HEALTHY

LINE = Line(0.01, 0.003)


def reading(seconds: float, evidence: Evidence, *, batch: int = 32, pinned: bool = False) -> Reading:
    window = Estimate(seconds, (0.05 * seconds) ** 2, 10)
    return Reading("a", "cpu", batch, window, lambda: LINE, pinned, evidence)


def test_evidence_is_the_sum_of_what_windows_say_and_fades_without_more() -> None:
    rule, steady = RULES["ExpectedTime"], [reading(0.1, HEALTHY)] * 3
    [after, *_] = rule.judge(Stragglers(), Interval(10, 100, 20), [reading(0.14, HEALTHY), *steady])
    assert after.evidence > 0
    assert after.since_step == 101
    [faded, *_] = rule.judge(Stragglers(), Interval(10, 110, 21), [reading(0.1, after), *steady])
    assert faded.evidence < after.evidence


def test_evidence_of_a_suspect_teaches_no_new_healthy_time() -> None:
    rule, steady = RULES["ExpectedTime"], [reading(0.1, HEALTHY)] * 3
    evidence = HEALTHY
    for number in range(8):
        [evidence, *_] = rule.judge(Stragglers(), Interval(10, 100, number), [reading(0.2, evidence), *steady])
    assert evidence.named
    assert evidence.healthy_seconds == HEALTHY.healthy_seconds
    assert evidence.spread == HEALTHY.spread


def test_window_of_another_batch_teaches_what_it_says_of_the_batch_that_the_healthy_time_is_of() -> None:
    """Where a little speaks against a worker its healthy time stays that of the batch before. The seconds of a smaller
    batch were averaged into it, and a healthy worker was named under noise that lasts.
    """
    little = HEALTHY._replace(evidence=20, healthy_batch=32, healthy_windows=2)
    as_expected = HEALTHY.healthy_seconds * LINE.at(16) / LINE.at(32)
    steady = [reading(0.1, HEALTHY)] * 3
    [after, *_] = RULES["ExpectedTime"].judge(
        Stragglers(), Interval(10, 100, 20), [reading(as_expected, little, batch=16), *steady]
    )
    assert (after.healthy_batch, after.healthy_windows) == (32, 3)
    assert after.healthy_seconds == pytest.approx(HEALTHY.healthy_seconds, rel=1e-3)


def test_worker_whose_windows_vary_much_is_named_within_six_of_twice_the_time() -> None:
    """Each counted for half of what it showed, and it took eight."""
    rule, noisy = RULES["ExpectedTime"], HEALTHY._replace(spread=100)
    evidence = noisy
    for number in range(6):
        interval = Interval(10, 100 + 10 * number, 20 + number)
        readings = [reading(0.2, evidence), *[reading(0.1, noisy) for _ in range(7)]]
        [evidence, *_] = rule.judge(Stragglers(), interval, readings)
    assert evidence.named


def test_noise_of_a_worker_of_whom_few_windows_are_known_is_at_least_that_of_most() -> None:
    """The first windows of the last one were alike by chance."""
    spreads, windows = (48, 50, 47, 20), (30, 30, 30, 1)
    readings = [
        Reading(
            "g",
            "cpu",
            64,
            Estimate(0.2, 4e-4, 10),
            lambda: Line(0.0, 0.2 / 64),
            False,
            HEALTHY._replace(spread=spread, healthy_windows=known, healthy_seconds=0.2, healthy_batch=64),
        )
        for spread, known in zip(spreads, windows, strict=True)
    ]
    after = RULES["ExpectedTime"].judge(Stragglers(), Interval(10, 100, 5), readings)
    assert after[3].spread > 40
    assert after[2].spread == 47
