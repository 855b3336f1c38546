"""Each benchmark runs, tiny, and its results have what its table shows."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import bsp_setting
import interference
import page
import predictors
import pytest
import stragglers
import stragglers_elastic

COMMANDS: dict[str, tuple[Sequence[str], str, int]] = {
    "simulated": (["--case", "four times slower", "--workers", "3", "--seeds", "1", "--policy", "Optimal"], "rows", 1),
    "ablation": (["--without", "noise gate", "--case", "jump 2x", "--workers", "3", "--seeds", "1"], "changes", 1),
    "stragglers": (["--only", "healthy", "--seeds", "1", "--steps", "260"], "rows", 4),
    "stragglers_elastic": (["--workers", "4", "--steps", "60", "--seeds", "1"], "rows", 15),
    "omnilearn": (["--place", "fig. 8", "--workload", "alexnet", "--seeds", "1"], "runs", 4),
    "weighting": (["--seeds", "1", "--epochs", "1", "--width", "4"], "outcomes", 12),
}


def shown(document: dict[str, Any]) -> None:
    """A result of its kind can be read and shown."""
    for name, (benchmark, write) in page.TABLES.items():
        if benchmark == document["benchmark"] and name != "policies":
            assert "|" in write([document])


def outcome(command: str, words: Sequence[str], folder: Path) -> tuple[int, dict[str, Any]]:
    """The exit code and the results of a command."""
    out = folder / "out.json"
    code = importlib.import_module(command).main([*words, "--out", str(out)])
    document: dict[str, Any] = json.loads(out.read_text())
    shown(document)
    return code, document


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_many_runs_has_a_row_for_each(command: str, tmp_path: Path) -> None:
    words, rows, number = COMMANDS[command]
    code, document = outcome(command, [*words, "--processes", "1"], tmp_path)
    assert len(document[rows]) == number
    assert code in (0, 1)


def test_a_goal_that_is_missed_is_an_exit_code(tmp_path: Path) -> None:
    words = ["--case", "equal workers", "--workers", "3", "--seeds", "1", "--processes", "1", "--policy", "Optimal"]
    code, document = outcome("simulated", words, tmp_path)
    assert document["rows"][0]["settled"] < 1.05
    assert code == (0 if all(goal["reached"] for goal in document["goals"]) else 1)


def test_decisions_have_a_cost(tmp_path: Path) -> None:
    _, document = outcome("decide", ["--workers", "3", "40", "--repetitions", "2"], tmp_path)
    assert [each["workers"] for each in document["decisions"]] == [3, 40]
    assert all(each["cpu_milliseconds"] > 0 for each in document["decisions"])


@pytest.mark.long
def test_a_step_has_a_time_at_each_batch(tmp_path: Path) -> None:
    _, document = outcome("by_batch", ["--steps", "1"], tmp_path)
    assert all(min(each["seconds"]) > 0 for each in document["curves"])


def test_predictors_are_compared_on_recorded_traces(tmp_path: Path) -> None:
    columns = [[4000 + 10 * (at % 7) for at in range(160)], [900] * 160, [300] * 160]
    path = tmp_path / "recorded.json"
    path.write_text(json.dumps({"batch": 32, "traces": {"steady": [columns, columns]}}))
    [(kind, traces), _] = predictors.recorded_traces(path).items()
    scores = [asdict(each) for each in predictors.scores(kind, traces)]
    assert {each["predictor"] for each in scores} >= {"last value", "EMA(0.2)", "ARIMA(2,2,1)", "ARX", "NARX"}
    assert all(each["error"] < 0.01 for each in scores)
    shown({"benchmark": "predictors", "scores": scores})


@pytest.mark.long
@pytest.mark.processes
def test_interference_is_recorded_in_windows(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert interference.main(["--windows", "3", "--workers", "1", "--out", str(out)]) == 0
    traces = json.loads(out.read_text())["traces"]
    assert [[len(column) for column in worker] for workers in traces.values() for worker in workers] == [[3, 3, 3]] * 4


@pytest.mark.parametrize("command", ["simulated", "ablation", "decide", "exchange", "stragglers", "stragglers_elastic"])
def test_numbers_that_make_no_sense_are_refused(command: str) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(command).main(["--workers", "0"])
    assert ended.value.code == 2


@pytest.mark.long
@pytest.mark.processes
def test_the_library_has_a_cost_in_alternating_blocks(tmp_path: Path) -> None:
    _, document = outcome("overhead", ["--rounds", "3", "--steps", "5", "--width", "4"], tmp_path)
    order = [block["loop"] for block in document["blocks"]]
    assert order == ["plain", "heterotrain", "heterotrain", "plain", "plain", "heterotrain"]


@pytest.mark.long
@pytest.mark.processes
def test_control_and_exchange_have_a_cost_at_every_length_of_steps(tmp_path: Path) -> None:
    _, document = outcome("exchange", ["--workers", "3", "--seconds", "2"], tmp_path)
    assert [(run["workers"], run["step_seconds"]) for run in document["runs"]] == [(3, 1.0), (3, 0.1)]
    assert all(run[who]["cpu_seconds"] > 0 for run in document["runs"] for who in ("leader", "others"))


@pytest.mark.long
@pytest.mark.processes
def test_planned_changes_have_their_idle_times(tmp_path: Path) -> None:
    words = ["--workers", "3", "--repetitions", "1", "--parts", "planned"]
    _, document = outcome("transition", words, tmp_path)
    assert [each["what"] for each in document["transitions"]][:3] == ["swap", "join", "leave"]
    assert not any(each["lost"] for each in document["transitions"])


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("bsp", ["--workload", "emulated", "--level", "8", "--steps", "30", "--rounds", "1"]),
        (
            "gpu",
            ["--model", "linear", "--steps", "30", "--rounds", "1", "--cpu-workers", "1", "--precision", "float32"],
        ),
    ],
)
def test_a_comparison_has_a_file_of_all_policies(
    command: str, words: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bsp_setting, "POLICIES", ("Uniform", "Static"))  # each of them starts all workers once more
    assert importlib.import_module(command).main([*words, "--out", str(tmp_path)]) == 0
    [file] = tmp_path.glob("*.json")
    document = json.loads(file.read_text())
    shown(document)
    assert {"Optimal", "Uniform", "Static"} <= {trial["policy"] for trial in document["arms"]}


@pytest.mark.long
@pytest.mark.parametrize("noise", stragglers.NOISES)
@pytest.mark.parametrize("workers", [3, 8])
def test_slowed_worker_is_named_within_ten_intervals_and_no_healthy_one(workers: int, noise: str) -> None:
    healthy = stragglers.play(stragglers.Setting("healthy", workers, "ExpectedTime", noise, 0.1, 300, 0))
    slowed = stragglers.play(stragglers.Setting("slowed 2x", workers, "ExpectedTime", noise, 0.1, 500, 0))
    assert (healthy.wrong, slowed.wrong) == (False, False)
    assert slowed.named_after is not None
    assert slowed.named_after <= stragglers.NAMED_WITHIN
    assert slowed.moved_after is not None


@pytest.mark.long
@pytest.mark.parametrize("case", [case.name for case in stragglers.CASES if "binding" in case.name])
def test_resized_worker_is_not_named(case: str) -> None:
    assert not stragglers.play(stragglers.Setting(case, 8, "ExpectedTime", "independent", 0.1, 300, 0)).wrong


@pytest.mark.long
def test_replacing_takes_less_time_than_balancing_and_that_less_than_nothing() -> None:
    ways = ("healthy", "replace", "rebalance", "none")
    runs = {way: stragglers_elastic.play(stragglers_elastic.Setting(way, 4.0, 4, 400, 0.05, 0)) for way in ways}
    assert list(runs) == sorted(runs, key=lambda way: runs[way].seconds)
    assert [run.replaced for run in runs.values()] == [0, 1, 0, 0]
    assert not any(run.repeated for run in runs.values())
