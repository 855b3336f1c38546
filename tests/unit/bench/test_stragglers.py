"""The benchmark of verdicts, in short: no healthy worker is named, and one that is slowed is named soon."""

from __future__ import annotations

import json

import pytest
import stragglers
from stragglers import CASES, Run, Setting, counted, play, prepared, row


def setting(
    case: str,
    *,
    workers: int = 8,
    rule: str = "ExpectedTime",
    noise: str = "independent",
    steps: int = 300,
    seed: int = 0,
) -> Setting:
    return Setting(case, workers, rule, noise, 0.10, steps, seed)


@pytest.mark.parametrize("noise", stragglers.NOISES)
def test_no_healthy_worker_is_named_on_clusters_that_are_unequal_by_design(noise: str) -> None:
    assert not any(play(setting("healthy", noise=noise, seed=seed)).wrong for seed in range(2))


@pytest.mark.parametrize("workers", [3, 8])
def test_slowed_worker_is_named_within_ten_intervals_and_nobody_else(workers: int) -> None:
    for seed in range(2):
        run = play(setting("slowed 2x", workers=workers, steps=500, seed=seed))
        assert run.named_after is not None
        assert (run.wrong, run.named_after <= 10) == (False, True)


@pytest.mark.parametrize("case", [case.name for case in CASES if "binding" in case.name])
def test_resized_worker_is_not_named(case: str) -> None:
    assert not play(setting(case)).wrong


def test_paper_s_rule_names_healthy_workers() -> None:
    assert play(setting("healthy", rule="MedianThroughput")).wrong


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_is_a_scenario_that_its_seed_settles(case: stragglers.Case) -> None:
    for workers in (3, 32):
        scenario, victim = prepared(setting(case.name, workers=workers))
        assert (scenario, victim) == prepared(setting(case.name, workers=workers))
        assert len(scenario.workers()) == workers
        assert victim.name in dict(scenario.workers())


def test_faults_are_late_after_ten_intervals_or_if_they_are_never_named() -> None:
    counts = counted([Run(False, 10.0), Run(True, 10.1), Run(False, None)], fault=True)
    assert (counts.runs, counts.wrong, counts.late, counts.never) == (3, 1, 2, 1)


def test_a_worker_that_becomes_slow_is_left_fewer_samples_and_the_row_says_when() -> None:
    run = play(setting("slowed 2x", steps=500))
    assert run.moved_after is not None
    assert run.moved_after <= 3
    [case] = [case for case in CASES if case.name == "slowed 2x"]
    runs = [run, Run(False, 10.0)]
    assert row(case, counted(runs, fault=True)).endswith(f"{run.moved_after:.1f} / {run.moved_after:.1f} / inf")


def test_rows_are_the_same_however_many_processes_play(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--runs", "2", "--steps", "260", "--only", "healthy", "--rule", "ExpectedTime", "--json"]
    assert [stragglers.main([*options, "--jobs", jobs]) for jobs in ("1", "2")] == [0, 0]
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[:2] == rows[2:]
    assert [row["noise"] for row in rows[:2]] == list(stragglers.NOISES)
