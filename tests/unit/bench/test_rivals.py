"""Rivals' schemes keep what makes them comparable, and a run of both parts can be shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import page
import pytest
import rival_schemes as schemes
import rivals


@pytest.fixture(scope="module")
def times() -> schemes.Times:
    """Of 200 steps of 12 workers, four of each speed."""
    draws = np.random.default_rng(0).gamma(25, 1 / 25, (200, 12))
    return schemes.Times(draws * np.repeat([0.1, 0.2, 0.4], 4), 0.1)


SCHEMES: dict[str, Callable[[schemes.Times], schemes.Matrix]] = {
    "BSP": schemes.equal_batches,
    "FlexRR": lambda times: schemes.flexrr(times, 1),
    "Hivemind": lambda times: schemes.hivemind(times)[0],
    "stealing": lambda times: schemes.stealing(times, 0.5, 2),
    "backups": lambda times: schemes.redundant(times, 2),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_no_scheme_does_more_work_than_its_workers_can(name: str, times: schemes.Times) -> None:
    assert (SCHEMES[name](times) >= schemes.without_waiting(times) * (1 - 1e-9)).all()


def test_a_step_of_bsp_ends_with_its_slowest_worker_and_stealing_of_nothing_is_bsp(times: schemes.Times) -> None:
    slowest = times.own.max(axis=1)
    assert (schemes.equal_batches(times) == slowest).all()
    for delayed in (False, True):
        assert schemes.stealing(times, 1.0, 1, delayed=delayed) == pytest.approx(slowest)


def test_work_that_is_thrown_away_makes_useful_samples_take_longer(times: schemes.Times) -> None:
    ends = np.sort(times.own, axis=1)[:, -3]
    assert (schemes.redundant(times, 2, more=True) == ends).all()
    assert schemes.redundant(times, 2) == pytest.approx(ends * 12 / 10)
    assert (ends <= schemes.equal_batches(times)).all()


def test_flexrr_helps_only_who_lags_and_never_hurts(times: schemes.Times) -> None:
    seconds = schemes.flexrr(times, 1)
    assert (seconds <= schemes.equal_batches(times)).all()
    assert seconds.mean() < 0.8 * schemes.equal_batches(times).mean()
    equal = schemes.Times(np.full((3, 4), 0.1), 0.1)
    assert schemes.flexrr(equal, 1) == pytest.approx(0.1)


def test_hiveminds_workers_reach_the_target_together_and_finish_what_they_began(times: schemes.Times) -> None:
    seconds, counts = schemes.hivemind(times)
    micro, target = times.of(1 / schemes.MICRO_BATCHES), 12 * schemes.MICRO_BATCHES
    done = counts.sum(axis=1)
    assert (done >= target).all()
    assert (done - target < 12).all(), "each finishes at most one more"
    assert seconds * done / target == pytest.approx((counts * micro).max(axis=1))
    paid = schemes.hivemind(times, 1.0)[0]
    assert paid * done / target == pytest.approx(seconds * done / target + 1.0)


def test_optimals_batches_are_read_off_its_own_times_so_that_stealing_of_nothing_is_optimal() -> None:
    case = rivals.scenarios.Case("white 10%", noise=rivals.SWEPT["white 10%"], intervals=20)
    own = rivals.simulate(case.scenario(4, "Optimal", 1))
    times = rivals.times_of(
        case.scenario(4, "Uniform", 1), rivals.scenarios.AFFINE, rivals.scenarios.SAMPLES_PER_WORKER, 100
    )
    batches = rivals.batches_of(own, times, 100)
    assert batches.sum(axis=1) == pytest.approx(4)
    assert schemes.stealing(times, 1.0, 1, batches) == pytest.approx(own.step_seconds[-100:])


def test_both_parts_run_and_can_be_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, short in (("STEPS", 20), ("SETTLING", 10), ("SWEPT_INTERVALS", 4), ("SWEPT_SETTLING", 2)):
        monkeypatch.setattr(rivals, name, short)
    monkeypatch.setattr(rivals, "SWEPT", {"none": rivals.SWEPT["none"]})
    monkeypatch.setattr(rivals, "WORKLOADS", {"ResNet-32": rivals.WORKLOADS["ResNet-32"]})
    monkeypatch.setattr(rivals, "NOISES", {"shared": rivals.NOISES["shared"]})
    out = tmp_path / "out.json"
    assert rivals.main(["--seeds", "1", "--workers", "4", "--processes", "1", "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    assert [run["setting"] for run in document["runs"]] == ["ResNet-32, shared", "none"]
    for name in ("rivals", "stealing"):
        assert "Optimal" in page.TABLES[name][1]([document])
