"""`heterotrain simulate`: what it accepts, says and keeps, and how it ends."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from heterotrain_operator.cli.main import main
from heterotrain_operator.cli.simulate import SimulationView
from heterotrain_operator.experiments.runs import MARKER
from unit.cli.commands import start
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
def test_example_runs(path: Path, capsys: pytest.CaptureFixture[str]):
    few = ["--intervals", "1", "--policy", "Optimal"] if path.stem == "ten-thousand-workers" else FEW
    assert main(["simulate", str(path), *few, "--json"]) == 0
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert document["simulated"] is True
    assert document["scenario"] == path.stem
    assert all(run["ratio"] > 0.5 for run in document["runs"])
    assert path.stem in said.err


def test_each_policy_has_a_row_and_is_said_to_be_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["simulate", str(write_scenario(tmp_path)), "--intervals", "30"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    rows = [line.split(": ")[0] for line in said.err.splitlines() if ": step over best " in line]
    assert rows == ["Optimal", "Uniform"]
    assert "no figure here was measured on a machine" in said.err
    assert "Uniform ended with batches 32 / 32" in said.err


def test_slow_worker_costs_uniform_batches_what_optimal_ones_save(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["simulate", str(write_scenario(tmp_path)), "--intervals", "60", "--json"]) == 0
    optimal, uniform = json.loads(capsys.readouterr().out)["policies"]
    assert optimal["policy"] == "Optimal"
    assert optimal["settled_ratio"]["mean"] < 1.1
    assert uniform["settled_ratio"]["mean"] > 1.4
    assert uniform["steps_to_first_move"] is None
    assert uniform["never_within"] == 1


def test_policies_of_one_seed_meet_the_same_noise_and_seeds_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = str(write_scenario(tmp_path))
    asked = [
        "simulate",
        path,
        *FEW,
        "--policy",
        "Uniform",
        "--policy",
        "Static",
        "--seed",
        "7",
        "--seeds",
        "2",
        "--json",
    ]
    assert main(asked) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(asked) == 0
    assert json.loads(capsys.readouterr().out) == first, "the same seeds give the same figures"
    runs = {(run["policy"], run["seed"]): run["seconds"] for run in first["runs"]}
    assert set(runs) == {("Uniform", 7), ("Static", 7), ("Uniform", 8), ("Static", 8)}
    # Without limits or hardware that differ, Static's batches are equal, too.
    assert runs["Uniform", 7] == runs["Static", 7] != runs["Uniform", 8]


def test_faults_of_file_and_command_line_are_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine", "utf-8")
    path = write_scenario(tmp_path, interval=3, seed="x")
    assert main(["simulate", str(path), "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{path} is refused:")
    for words in ("interval: unknown field; did you mean intervals?", "seed: must be an integer", "is not empty"):
        assert words in said
    assert main(["simulate", str(write_scenario(tmp_path)), "--policy", "Optimum"]) == 2
    assert "--policy: Optimum is not a known policy" in capsys.readouterr().err
    assert main(["simulate", str(write_scenario(tmp_path)), "--fresh"]) == 2
    assert "--fresh: replaces an earlier run in --out" in capsys.readouterr().err
    assert main(["simulate", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--seed", "--seeds", "--intervals"])
@pytest.mark.parametrize("value", ["-1", "many", "1.5", "9" * 30])
def test_number_that_is_none_is_refused(option: str, value: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "x.yaml", f"{option}={value}"])
    assert ended.value.code == 2
    assert f"argument {option}: must be a whole number from" in capsys.readouterr().err


def test_job_that_fails_is_named_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    job = {
        "workerGroups": [{"name": "fast"}, {"name": "slow"}],
        "training": {"globalBatchSize": 64},
        "runPolicy": {"backoffLimit": 0},
    }
    events = [{"atStep": 5, "workers": ["slow"], "death": {"exitCode": 3}}]
    path = write_scenario(tmp_path, job=job, events=events)
    assert main(["simulate", str(path), *FEW, "--policy", "Uniform", "--json"]) == 1
    said = capsys.readouterr()
    assert "Uniform failed: " in said.err
    assert "trial-slow-0" in said.err
    (run,) = json.loads(said.out)["runs"]
    assert run["phase"] == "Failed"
    assert run["steps"] < 40


def test_folder_holds_figures_pictures_scenario_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    events = [{"atStep": 20, "untilStep": 30, "workers": ["slow"], "jump": {"factor": 2}}]
    path, out = write_scenario(tmp_path, events=events, description="Two <unlike> workers."), tmp_path / "out"
    asked = ["simulate", str(path), "--intervals", "40", "--seeds", "2", "--out", str(out)]
    assert main(asked) == 0
    assert f"Report: {out / 'report.html'}" in capsys.readouterr().err
    assert {file.name for file in out.iterdir()} == {
        MARKER,
        "optimal.png",
        "uniform.png",
        "ratios.png",
        "report.html",
        "results.json",
        "scenario.yaml",
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
    assert not re.search(r"https?://|@import|url\(|<script", page)
    assert main(asked) == 2
    assert "holds an earlier run" in capsys.readouterr().err
    assert main([*asked, "--fresh", "--policy", "Static"]) == 0
    assert not (out / "optimal.png").exists()


def test_figures_are_printed_although_the_report_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def full(_: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("heterotrain_operator.cli.simulate.cleared", full)
    asked = ["simulate", str(write_scenario(tmp_path)), *FEW, "--out", str(tmp_path / "out"), "--json"]
    assert main(asked) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["simulated"] is True
    assert "the report cannot be written: [Errno 28] No space left on device" in said.err


def test_scenario_of_a_pipe_is_kept(tmp_path: Path):
    path, out = write_scenario(tmp_path), tmp_path / "out"
    with start(tmp_path, "simulate", "/dev/stdin", *FEW, "--out", str(out), stdin=subprocess.PIPE) as running:
        running.communicate(path.read_text("utf-8"), timeout=120)
        assert running.returncode == 0
    assert (out / "scenario.yaml").read_text("utf-8") == path.read_text("utf-8")


def test_a_run_is_not_replaced_by_its_own_simulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = run_folder(tmp_path, (100, 100, 100))
    (folder / MARKER).touch()
    before = sorted(folder.iterdir())
    assert main(["simulate", str(folder), *FEW, "--out", f"{folder}/../{folder.name}", "--fresh"]) == 2
    assert "--out: is the run that is simulated" in capsys.readouterr().err
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


def test_arrays_and_drawing_are_loaded_only_where_they_are_needed(tmp_path: Path):
    program = (
        "import sys\n"
        "from heterotrain_operator.cli.main import main\n"
        "assert 'numpy' not in sys.modules\n"
        f"assert main(['simulate', {str(write_scenario(tmp_path))!r}, '--intervals', '1']) == 0\n"
        "print([name for name in ('torch', 'kopf', 'kubernetes', 'matplotlib') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_run_is_simulated_from_its_folder_and_printed_as_a_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = run_folder(tmp_path, (100, 100, 100))
    assert main(["simulate", str(folder), *FEW, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert main(["simulate", str(folder), "--print-scenario"]) == 0
    printed = tmp_path / "printed.yaml"
    printed.write_text(capsys.readouterr().out, "utf-8")
    assert main(["simulate", str(printed), *FEW, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == figures
    assert main(["simulate", str(tmp_path / "none"), *FEW]) == 2
    assert "none: cannot be read" in capsys.readouterr().err


SHORT = {"time": {"affine": {"secondsPerSample": 1e-9}}, "scale": 0.001}
LONG = {"time": {"affine": {"secondsPerSample": 1e6}}, "scale": 1000}


@pytest.mark.parametrize(
    ("workers", "code", "steps"), [({"all": SHORT}, 0, 40), ({"all": LONG}, 1, 0), ({"all": {"leastBatch": 64}}, 0, 40)]
)
def test_extreme_scenario_ends(
    workers: dict[str, Any], code: int, steps: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = write_scenario(tmp_path, workers=workers)
    assert main(["simulate", str(path), *FEW, "--policy", "Uniform", "--json"]) == code
    (run,) = json.loads(capsys.readouterr().out)["runs"]
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


def test_straggler_of_the_example_is_named_and_healthy_workers_are_not(tmp_path: Path):
    out = tmp_path / "out"
    path = ROOT / "examples" / "scenarios" / "straggler.yaml"
    assert main(["simulate", str(path), "--policy", "Optimal", "--intervals", "60", "--out", str(out)]) == 0
    (first,) = json.loads((out / "results.json").read_text("utf-8"))["first"].values()
    said = [each["event"]["message"] for each in first["events"] if each["event"]["reason"] == "StragglerDetected"]
    assert said
    assert all(message.startswith("straggler-alike-5 ") for message in said)
