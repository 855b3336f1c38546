"""Signals ask an experiment to end, and insist on it."""

from __future__ import annotations

import pytest

from heterotrain_operator.experiments.trials.stop import Insisted, Interrupted, StopSignals


def test_first_signal_asks_and_second_insists():
    stop = StopSignals()
    stop.check()
    stop.handle(15)
    with pytest.raises(Interrupted) as asked:
        stop.check()
    assert asked.value.exit_code == 143
    with pytest.raises(Insisted), stop.insistable():
        stop.handle(15)


def test_signals_that_came_before_count():
    stop = StopSignals()
    stop.handle(2)
    stop.handle(2)
    with pytest.raises(Insisted) as insisted, stop.insistable():
        pytest.fail("was let in")
    assert insisted.value.exit_code == 130
