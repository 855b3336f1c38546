"""How far a job has come, and how fast it trains."""

from __future__ import annotations

import pytest

from heterotrain_operator.core.model import Seen
from heterotrain_operator.experiments.progress import Pace, committed_steps, reached_steps
from unit.experiments.observed import ended, seen


def test_pace_is_measured_over_the_last_seconds():
    pace = Pace()
    assert pace.steps_per_second is None
    for second in range(60):
        pace.note(float(second), second if second < 30 else 30 + (second - 30) * 5)
    assert pace.steps_per_second == pytest.approx(5.0)


def test_pace_begins_again_after_a_restart():
    pace = Pace()
    pace.note(0.0, 100)
    pace.note(10.0, 200)
    pace.note(20.0, 150)
    assert pace.steps_per_second is None


def test_steps_are_none_without_metrics():
    assert committed_steps(Seen()) == 0


def test_steps_of_workers_that_ended_are_those_of_their_last_words():
    assert reached_steps(ended(400)) == 400
    assert reached_steps(seen(391)) == 391
