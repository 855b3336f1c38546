"""The table over simulated clusters: its scenarios, its figures, and the goals beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simulated
import simulated_scenarios
import table
from simulated import Row, Run, goals_of, row_of, run_of
from simulated_scenarios import Case, by_name, cases

from heterotrain_operator.experiments.simulations import SimulationResult

CASE = Case("affine", goal=(1.01, 1.0), first_move=3)


def result(ratios: list[float]) -> SimulationResult:
    """A run whose intervals took so many times as long as the oracle's."""
    scenario = CASE.scenario(3, "Optimal", 0)
    oracle = np.ones(len(ratios) * scenario.job.interval)
    realised = np.repeat(np.array(ratios), scenario.job.interval)
    return SimulationResult(
        scenario=scenario,
        workers=(),
        began=np.cumsum(realised),
        step_seconds=realised,
        oracle_seconds=oracle,
        own_seconds=np.empty((0, 3)),
        plans=(),
        events=(),
        phase="Running",
        reason="",
        rounds=0,
        virtual_seconds=0.0,
    )


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_every_case_is_a_scenario_of_any_number_of_workers(case: Case):
    for workers in (3, 8, 32):
        scenario = case.scenario(workers, "Optimal", 1)
        assert len(scenario.workers()) == workers
        assert scenario.job.global_batch == 32 * workers
        known = {group.cpu_limit is not None for group in scenario.job.groups}
        assert known == {case.limits}, "limits are stated only where they are what it is about"


def test_static_knows_how_fast_workers_are():
    scenario = CASE.scenario(8, "Static", 0)
    assert [group.cpu_limit for group in scenario.job.groups] == [4.0, 4 / 1.5, 2.0, 1.0]
    assert [group.replicas for group in scenario.job.groups] == [2, 2, 2, 2]


def test_names_of_cases_are_unique_and_some_are_quick():
    assert len(by_name()) == len(cases())
    assert [case.name for case in simulated_scenarios.quick()] == sorted(
        simulated_scenarios.QUICK, key=list(by_name()).index
    )


def test_recorded_noise_is_of_three_workers():
    assert [len(one) for one in simulated_scenarios.replayed().series] == [148, 148, 148]


def test_close_counts_from_the_last_stretch_that_was_far():
    run = run_of(result([2.0] * 4 + [1.0] * 46))
    assert run.close_after == 4
    assert not run.off
    assert run.settled == pytest.approx(1.0)
    assert run.ratio == pytest.approx((4 * 2 + 46) / 50)


def test_a_run_that_ends_far_off_is_never_close():
    run = run_of(result([1.0] * 30 + [1.2] * 20))
    assert run.close_after is None
    assert run.off


def row(policy: str = "Optimal", ratio: float = 1.0, **changes: object) -> Row:
    runs = [Run(ratio, ratio, 0.0, 3, False, 2), Run(ratio, ratio, 0.0, 5, False, 3)]
    return replace(row_of(CASE, 8, policy, runs), **changes)


def test_rows_hold_means_and_the_worst_first_move():
    assert (row().close_after, row().first_move, row().seeds) == (4.0, 3, 2)
    assert row_of(CASE, 8, "Optimal", [Run(1, 1, 0, None, True, None)]).first_move is None


def verdicts(*rows: Row) -> dict[str, bool]:
    return {goal.text: goal.reached for goal in goals_of([CASE], rows)}


def test_goals_are_those_of_the_own_policy_beside_uniform():
    assert all(verdicts(row(), row("Uniform", 2.0)).values())
    assert len(verdicts(row(), row("Uniform", 2.0))) == 5
    assert not goals_of([CASE], [row("Uniform")])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"settled": 1.011}, "settled E <= 1.01"),
        ({"plans_per_100": 1.1}, "plans <= 1"),
        ({"first_move": 4}, "first move within 3 steps"),
        ({"first_move": None}, "first move within 3 steps"),
        ({"off": 1}, "nobody stays more than 5 % off"),
        ({"ratio": 2.03, "settled": 1.0}, "E at most 1.01 times that of Uniform"),
    ],
)
def test_each_goal_can_be_missed(changes: dict[str, object], text: str):
    found = verdicts(row(**changes), row("Uniform", 2.0))
    assert [name for name, reached in found.items() if not reached] == [text]


def test_nearness_is_not_asked_where_the_oracle_knows_what_nobody_can():
    case = replace(CASE, may_stay_off="it fills all of the memory")
    texts = [goal.text for goal in goals_of([case], [row(off=2)])]
    assert texts
    assert not [text for text in texts if "5 % off" in text]


def test_only_two_policies_are_compared_where_runs_take_long():
    rows = simulated.rows_of([CASE], simulated.parse(["--workers", "8", "512"]))
    assert {policy for _, workers, policy in rows if workers == 8} > {"Uniform", "Optimal", "Static"}
    assert [policy for _, workers, policy in rows if workers == 512] == ["Uniform", "Optimal"]


def test_a_missed_goal_is_an_exit_code_and_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["--case", "four times slower", "--workers", "3", "--seeds", "1", "--processes", "1"]
    file = tmp_path / "results" / "table.json"
    code = simulated.main([*words, "--policy", "Uniform", "--policy", "Optimal", "--out", str(file)])
    document = json.loads(file.read_text())
    said = capsys.readouterr().out
    assert code == (1 if any(not goal["reached"] for goal in document["goals"]) else 0)
    assert "all of it simulated" in said
    [uniform, optimal] = document["rows"]
    assert uniform["settled"] > 2
    assert optimal["settled"] < 1.05
    page = table.rendered(table.read([file]), "simulated")
    assert "| four times slower |" in page
    assert "Simulated, 1 seeds each" in page


SMALL = ["--case", "equal workers", "--workers", "3", "--seeds", "2", "--processes", "1", "--policy", "Uniform"]


def test_kept_runs_are_not_run_again_and_make_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    runs, words = tmp_path / "parts" / "runs.jsonl", [*SMALL, "--out", str(tmp_path / "table.json")]
    simulated.main(words)
    whole = (tmp_path / "table.json").read_text()
    simulated.main([*SMALL, "--seeds", "1", "--runs", str(runs)])
    first = runs.read_text()
    simulated.main([*words, "--runs", str(runs)])
    assert (tmp_path / "table.json").read_text() == whole
    assert runs.read_text().startswith(first)
    assert len(runs.read_text().splitlines()) == 2
    monkeypatch.setattr(simulated, "ProcessPoolExecutor", NoPool)
    simulated.main([*words, "--runs", str(runs)])
    assert (tmp_path / "table.json").read_text() == whole


class NoPool:
    """Stands for a pool of processes where nothing is left to run."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> NoPool:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, _: object, work: list[object]) -> list[object]:
        assert not work, "all of it was kept"
        return []


def test_an_interrupted_benchmark_keeps_what_it_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    measured = simulated.measure

    def interrupted(*arguments: Any) -> Iterator[Row]:
        yield next(measured(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(simulated, "measure", interrupted)
    runs = tmp_path / "runs.jsonl"
    with pytest.raises(KeyboardInterrupt):
        simulated.main([*SMALL, "--policy", "Optimal", "--runs", str(runs)])
    assert [json.loads(line)["of"][3] for line in runs.read_text().splitlines()] == ["Uniform", "Uniform"]


def test_runs_of_another_version_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    runs = tmp_path / "runs.jsonl"
    simulated.main([*SMALL, "--runs", str(runs)])
    before = runs.read_text()
    monkeypatch.setattr(simulated, "version_of", lambda _: "another")
    assert simulated.main([*SMALL, "--runs", str(runs)]) == 2
    assert f"{runs}: line 1 is a run of version" in capsys.readouterr().err
    assert runs.read_text() == before


def test_a_run_depends_on_its_seed_alone():
    work = ("affine, independent 10 %", 20, 3, "Optimal", 4)
    assert simulated.one(work) == simulated.one(work)
    assert simulated.one(work) != simulated.one((*work[:-1], 5))
