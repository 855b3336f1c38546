"""What is kept of the decisions."""

from __future__ import annotations

from heterotrain_operator.experiments.trials.observer import entry_of
from unit.experiments.observed import MOVED, QUIET


def test_quiet_decision_is_not_kept():
    assert entry_of(1.0, 5, QUIET) is None


def test_decision_is_kept_with_its_reason():
    entry = entry_of(2.5, 40, MOVED)
    assert entry is not None
    assert (entry.seconds, entry.step, entry.version, entry.batches) == (2.5, 40, 3, (80, 16))
    assert entry.events[0].message == "moving 8 samples to large"
