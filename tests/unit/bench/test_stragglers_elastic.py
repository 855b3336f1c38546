"""The benchmark of what is done about stragglers, in short: replacing them saves most, and every goal is held."""

from __future__ import annotations

import json

import pytest
import stragglers_elastic
from stragglers_elastic import ACTIONS, Row, Run, Setting, main, play, prepared, rows_of


def setting(way: str, slowdown: float = 4.0) -> Setting:
    return Setting(way, slowdown, 4, 400, 0.05, 0)


def test_one_of_four_workers_becomes_slow_and_newcomers_are_not() -> None:
    assert [event.workers for event in prepared(setting("none")).events] == [("bench-w-3",)]
    assert prepared(setting("healthy")).events == ()


def test_replacing_takes_less_time_than_balancing_and_that_less_than_nothing() -> None:
    runs = {way: play(setting(way)) for way in ("healthy", "replace", "rebalance", "none")}
    assert list(runs) == sorted(runs, key=lambda way: runs[way].seconds)
    assert {way: run.replaced for way, run in runs.items()} == {"healthy": 0, "replace": 1, "rebalance": 0, "none": 0}
    assert not any(run.restarts for run in runs.values())


def test_row_says_what_is_saved_and_lost() -> None:
    seconds = {"none": 200.0, "rebalance": 150.0, "replace": 110.0, "remove": 150.0, "healthy": 100.0}
    rows = rows_of(4, 2.0, {way: [Run(each, 0, 0, 0)] for way, each in seconds.items()})
    [row] = [row for row in rows if row.way == "replace"]
    assert (row.reduction, row.over) == (pytest.approx(0.45), pytest.approx(0.1))
    assert row.misses == []


@pytest.mark.parametrize(
    ("reduction", "over", "restarts", "missed"),
    [(0.34, 0.1, 0, "paper has -34.1%"), (0.4, 0.13, 0, "over a healthy run"), (0.4, 0.1, 1, "1 restarts")],
)
def test_goal_that_is_missed_is_said(reduction: float, over: float, restarts: int, missed: str) -> None:
    [words] = Row(4, 2.0, "replace", 100.0, reduction, over, 1.0, 0.0, restarts).misses
    assert missed in words


def test_exit_code_and_last_line_say_whether_all_goals_are_reached(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stragglers_elastic, "GOALS", {4.0: 0.999})
    assert main(["--workers", "4", "--steps", "60", "--seeds", "1", "--json"]) == 1
    *rows, last = capsys.readouterr().out.splitlines()
    assert [json.loads(row)["way"] for row in rows] == list(ACTIONS)
    assert all(json.loads(row)["simulated"] for row in rows)
    assert last.startswith("(simulated) missed: 4 workers, 4x: ")
