"""`heterotrain simulate`: what it accepts, says and keeps, and how it ends."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from heterotrain_operator.cli.simulate import SimulationView
from heterotrain_operator.experiments.runs import MARKER
from unit.cli.commands import start
from unit.cli.conftest import Run
from unit.experiments.test_scenarios import run_folder

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples" / "scenarios").glob("*.yaml"))
FEW = ["--intervals", "4"]


def write_scenario(folder: Path, **fields: Any) -> Path:
    """Two workers, of which one is three times slower; `fields` add or replace some."""
    document = {
        "name": "trial",
        "description": "Two unlike workers.",
        "job": {"workerGroups": [{"name": "fast"}, {"name": "slow"}], "training": {"globalBatchSize": 64}},
        "workers": {"all": {"noise": {"independent": {"variation": 0.1}}}, "slow": {"scale": 3}},
        **fields,
    }
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), "utf-8")
    return path


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, heterotrain: Run):
    few = ["--intervals", "1", "--policy", "Optimal"] if path.stem == "ten-thousand-workers" else FEW
    said = heterotrain("simulate", path, *few, "--json")
    assert said.code == 0
    document = json.loads(said.out)
    assert document["simulated"] is True
    assert document["scenario"] == path.stem
    of_updates = path.stem == "asynchronous"  # for which there is no best split
    assert all(run["ratio"] is None if of_updates else run["ratio"] > 0.5 for run in document["runs"])
    assert path.stem in said.err


def test_slow_worker_costs_uniform_batches_what_optimal_ones_save_and_all_is_said_to_be_simulated(
    tmp_path: Path, heterotrain: Run
):
    said = heterotrain("simulate", write_scenario(tmp_path), "--intervals", "60", "--json")
    rows = [line.split(": ")[0] for line in said.err.splitlines() if ": step over best " in line]
    assert rows == ["Optimal", "Uniform"]
    assert "no figure here was measured on a machine" in said.err
    assert "Uniform ended with batches 32 / 32" in said.err
    optimal, uniform = json.loads(said.out)["policies"]
    assert optimal["policy"] == "Optimal"
    assert optimal["settled_ratio"]["mean"] < 1.1
    assert uniform["settled_ratio"]["mean"] > 1.4
    assert uniform["steps_to_first_move"] is None
    assert uniform["never_within"] == 1


def test_policies_of_one_seed_meet_the_same_noise_and_seeds_differ(tmp_path: Path, heterotrain: Run):
    policies = ("--policy", "Uniform", "--policy", "Static")
    asked = ("simulate", write_scenario(tmp_path), *FEW, *policies, "--seed", "7", "--seeds", "2", "--json")
    first = json.loads(heterotrain(*asked).out)
    assert json.loads(heterotrain(*asked).out) == first, "the same seeds give the same figures"
    runs = {(run["policy"], run["seed"]): run["seconds"] for run in first["runs"]}
    assert set(runs) == {("Uniform", 7), ("Static", 7), ("Uniform", 8), ("Static", 8)}
    # Without limits or hardware that differ, Static's batches are equal, too.
    assert runs["Uniform", 7] == runs["Static", 7] != runs["Uniform", 8]


def test_faults_of_file_and_command_line_are_named_at_once(tmp_path: Path, heterotrain: Run):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine", "utf-8")
    path = write_scenario(tmp_path, interval=3, seed="x")
    said = heterotrain("simulate", path, "--out", out)
    assert said.code == 2
    assert said.err.startswith(f"{path} is refused:")
    for words in ("interval: unknown field; did you mean intervals?", "seed: must be an integer", "is not empty"):
        assert words in said.err
    path = write_scenario(tmp_path)
    assert "--policy: Optimum is not a known policy" in heterotrain("simulate", path, "--policy", "Optimum").err
    assert "--fresh: replaces an earlier run in --out" in heterotrain("simulate", path, "--fresh").err
    assert "none.yaml: cannot be read" in heterotrain("simulate", tmp_path / "none.yaml").err


@pytest.mark.parametrize("option", ["--seed", "--seeds", "--intervals"])
@pytest.mark.parametrize("value", ["-1", "many", "1.5", "9" * 30])
def test_number_that_is_none_is_refused(option: str, value: str, heterotrain: Run):
    said = heterotrain("simulate", "x.yaml", f"{option}={value}")
    assert said.code == 2
    assert f"argument {option}: must be a whole number from" in said.err


def test_job_that_fails_is_named_with_its_reason(tmp_path: Path, heterotrain: Run):
    job = {
        "workerGroups": [{"name": "fast"}, {"name": "slow"}],
        "training": {"globalBatchSize": 64},
        "runPolicy": {"backoffLimit": 0},
    }
    events = [{"atStep": 5, "workers": ["slow"], "death": {"exitCode": 3}}]
    path = write_scenario(tmp_path, job=job, events=events)
    said = heterotrain("simulate", path, *FEW, "--policy", "Uniform", "--json")
    assert said.code == 1
    assert "Uniform failed: " in said.err
    assert "trial-slow-0" in said.err
    (run,) = json.loads(said.out)["runs"]
    assert run["phase"] == "Failed"
    assert run["steps"] < 40


def test_folder_holds_figures_pictures_scenario_and_page(tmp_path: Path, heterotrain: Run):
    events = [{"atStep": 20, "untilStep": 30, "workers": ["slow"], "jump": {"factor": 2}}]
    path, out = write_scenario(tmp_path, events=events, description="Two <unlike> workers."), tmp_path / "out"
    asked = ("simulate", path, "--intervals", "40", "--seeds", "2", "--out", out)
    assert f"Report: {out / 'report.html'}" in heterotrain(*asked).err
    assert {file.name for file in out.iterdir()} == {
        MARKER,
        "report.html",
        "results.json",
        "scenario.yaml",
        "trace.json",
    }
    assert (out / "scenario.yaml").read_text("utf-8") == path.read_text("utf-8")
    results = json.loads((out / "results.json").read_text("utf-8"))
    assert len(results["runs"]) == 4
    assert len(results["first"]["Optimal"]["interval_ratios"]) == 40
    assert results["first"]["Uniform"]["plans"][0]["batches"] == [32, 32]
    page = (out / "report.html").read_text("utf-8")
    for words in (
        "trial, simulated",
        "Two &lt;unlike&gt; workers.",
        "BatchRebalanced",
        "Simulated: no figure",
        "jump:",
    ):
        assert words in page
    assert "holds an earlier run" in heterotrain(*asked).err
    assert heterotrain(*asked, "--fresh", "--policy", "Static").code == 0
    assert "Uniform, seed" not in (out / "report.html").read_text("utf-8")


def test_report_of_an_asynchronous_job_compares_nothing_with_a_best_split(tmp_path: Path, heterotrain: Run):
    out = tmp_path / "out"
    said = heterotrain(
        "simulate", ROOT / "examples" / "scenarios" / "asynchronous.yaml", "--intervals", "5", "--out", out
    )
    assert said.code == 0, said.err
    assert json.loads((out / "results.json").read_text("utf-8"))["first"]["Uniform"]["interval_ratios"] == []
    page = (out / "report.html").read_text("utf-8")
    assert "<figure" not in page
    assert "all-reduce" not in page


def test_figures_are_printed_although_the_report_cannot_be_written(
    tmp_path: Path, heterotrain: Run, monkeypatch: pytest.MonkeyPatch
):
    def full(_: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("heterotrain_operator.cli.simulate.cleared", full)
    said = heterotrain("simulate", write_scenario(tmp_path), *FEW, "--out", tmp_path / "out", "--json")
    assert said.code == 1
    assert json.loads(said.out)["simulated"] is True
    assert "the report cannot be written: [Errno 28] No space left on device" in said.err


def test_scenario_of_a_pipe_is_kept(tmp_path: Path):
    path, out = write_scenario(tmp_path), tmp_path / "out"
    with start(tmp_path, "simulate", "/dev/stdin", *FEW, "--out", str(out), stdin=subprocess.PIPE) as running:
        running.communicate(path.read_text("utf-8"), timeout=120)
        assert running.returncode == 0
    assert (out / "scenario.yaml").read_text("utf-8") == path.read_text("utf-8")


def test_a_run_is_not_replaced_by_its_own_simulation(tmp_path: Path, heterotrain: Run):
    folder = run_folder(tmp_path, (100, 100, 100))
    (folder / MARKER).touch()
    before = sorted(folder.iterdir())
    said = heterotrain("simulate", folder, *FEW, "--out", f"{folder}/../{folder.name}", "--fresh")
    assert "--out: is the run that is simulated" in said.err
    assert sorted(folder.iterdir()) == before


def test_reader_that_has_left_ends_it_without_a_traceback(tmp_path: Path):
    path = write_scenario(tmp_path)
    with start(tmp_path, "simulate", str(path), *FEW, "--json") as running:
        assert running.stdout is not None and running.stderr is not None
        running.stdout.close()
        said = running.stderr.read()
        assert running.wait(120) == 141
        assert "Traceback" not in said and "Exception ignored" not in said


def test_ctrl_c_ends_it_in_order_with_what_is_complete(tmp_path: Path):
    path = write_scenario(tmp_path, policies=["Uniform", "Static"])
    with start(tmp_path, "simulate", str(path), "--intervals", "100000", "--seeds", "1000", "--json") as running:
        assert running.stderr is not None
        assert "Two unlike workers" in running.stderr.readline()
        running.send_signal(signal.SIGINT)
        out, said = running.communicate(timeout=120)
        assert running.returncode == 130
        assert re.search(r"stopped by SIGINT: \d+ of 2000 simulations are complete", said)
        assert "Traceback" not in said
        assert out == "" or json.loads(out)["simulated"]


def test_run_is_simulated_from_its_folder_and_printed_as_a_scenario(tmp_path: Path, heterotrain: Run):
    folder = run_folder(tmp_path, (100, 100, 100))
    figures = json.loads(heterotrain("simulate", folder, *FEW, "--json").out)
    printed = tmp_path / "printed.yaml"
    printed.write_text(heterotrain("simulate", folder, "--print-scenario").out, "utf-8")
    assert json.loads(heterotrain("simulate", printed, *FEW, "--json").out) == figures
    assert "none: cannot be read" in heterotrain("simulate", tmp_path / "none", *FEW).err


SHORT = {"time": {"affine": {"secondsPerSample": 1e-9}}, "scale": 0.001}
LONG = {"time": {"affine": {"secondsPerSample": 1e6}}, "scale": 1000}


@pytest.mark.parametrize(
    ("workers", "code", "steps"), [({"all": SHORT}, 0, 40), ({"all": LONG}, 1, 0), ({"all": {"leastBatch": 64}}, 0, 40)]
)
def test_extreme_scenario_ends(workers: dict[str, Any], code: int, steps: int, tmp_path: Path, heterotrain: Run):
    path = write_scenario(tmp_path, workers=workers)
    said = heterotrain("simulate", path, *FEW, "--policy", "Uniform", "--json")
    (run,) = json.loads(said.out)["runs"]
    assert said.code == code
    assert run["steps"] == steps


@pytest.mark.parametrize("width", [40, 80, 120])
def test_progress_on_a_terminal_is_one_line_with_the_time_left(width: int):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    moment = iter(range(100))
    with SimulationView(console, lambda: float(next(moment)), runs=2, steps=100) as view:
        view.begin("Optimal, seed 7")
        view.progress(50)
    assert isinstance(console.file, io.StringIO)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())
    assert any("step 50/200" in line and "left" in line for line in shown.splitlines())
    assert all(len(line.strip("\r")) <= width for line in shown.splitlines())


def test_straggler_of_the_example_is_named_and_healthy_workers_are_not(tmp_path: Path, heterotrain: Run):
    out = tmp_path / "out"
    path = ROOT / "examples" / "scenarios" / "straggler.yaml"
    assert heterotrain("simulate", path, "--policy", "Optimal", "--intervals", "60", "--out", out).code == 0
    (first,) = json.loads((out / "results.json").read_text("utf-8"))["first"].values()
    said = [each["event"]["message"] for each in first["events"] if each["event"]["reason"] == "StragglerDetected"]
    assert said
    assert all(message.startswith("straggler-alike-5 ") for message in said)
