"""What the wall clock does is no time that passed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.loop import Leaps
from unit.core.layouts import plain_fields


class Clocks:
    """A clock that tells the time and one that only runs."""

    def __init__(self) -> None:
        self.wall, self.running = 1e9, 50.0

    def run(self, seconds: float, *, drift: float = 0.0) -> None:
        self.running += seconds
        self.wall += seconds + drift

    def leaps(self) -> Leaps:
        return Leaps(lambda: self.wall, lambda: self.running)


@pytest.mark.parametrize("leapt", [700.0, -700.0])
def test_leap_is_reported_until_it_is_made_up_for(leapt: float) -> None:
    clocks = Clocks()
    leaps = clocks.leaps()
    clocks.run(30, drift=leapt)
    assert leaps.seconds() == pytest.approx(leapt)
    clocks.run(30)
    assert leaps.seconds() == pytest.approx(leapt)
    leaps.made_up(leapt)
    assert leaps.seconds() == pytest.approx(0)


def test_clock_that_is_turned_slowly_does_not_leap() -> None:
    clocks = Clocks()
    leaps = clocks.leaps()
    for _ in range(1000):
        clocks.run(2, drift=0.5)
        assert leaps.seconds() == 0


def test_all_moments_move_and_nothing_else() -> None:
    moments = [name for name, _ in plain_fields(Remembered) if name.endswith("_at")]
    assert {"created_at", "progress_at", "changed_at"} < set(moments)
    others = {"restarts": 3, "slow_step_seconds": 2.0}
    text = json.dumps({"schema": 1, **dict.fromkeys(moments, 100.0), **others})
    memory = replace(
        Remembered.from_json(text),
        workers=(RememberedWorker(silent_since=50.0, tries=1, steady_at=600), RememberedWorker(silent_since=50.0)),
    )
    moved = memory.moved(7)
    stored = json.loads(replace(moved, workers=()).to_json())
    assert stored == {"schema": 1, **dict.fromkeys(moments, 107.0), **others, "workers": []}
    assert moved.workers == (
        RememberedWorker(silent_since=57.0, tries=1, steady_at=607),
        RememberedWorker(silent_since=57.0),
    )
    assert moved.moved(-7) == memory
    assert Remembered.initial().moved(7) == Remembered.initial()
