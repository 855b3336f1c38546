"""`heterotrain explain` and `runs`: what a run on this machine has left."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from heterotrain_operator.core.model import Event
from heterotrain_operator.experiments import runs
from heterotrain_operator.experiments.figures.summary import summarize
from heterotrain_operator.experiments.figures.verdict import Circumstances
from heterotrain_operator.experiments.report import kept
from heterotrain_operator.experiments.report.trials import Course
from heterotrain_operator.experiments.trials.observer import Entry
from heterotrain_operator.experiments.trials.trial import Trial, TrialResult
from unit.cli.conftest import Run
from unit.experiments.histories import FAST, SLOW, history, joined, trial

STAYED = "Batches stayed at 32 / 32: own times differ by 4% only, so equal batches are right."


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which job `el` was run twice: into a folder of the user's, and then to no end that is known."""
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out" / "el"
    out.mkdir(parents=True)
    runs.begin(tmp_path, "el", out, datetime(2026, 1, 1, tzinfo=UTC))
    steps = joined(history(78, (32, 32), (0.48, 0.5), allreduce=0.1))
    found = Circumstances({}, machine_cores=2, interval=10)
    bounds = {FAST: (1, 64), SLOW: (1, 64)}
    summary = summarize("el", (trial("Optimal", steps),), (FAST, SLOW), bounds=bounds, circumstances=found)
    entry = Entry(3.0, 30, 2, (48, 16), "why", (Event("Normal", "BatchRebalanced", "move 16 samples"),))
    series = {name: tuple(step.records[name] for step in steps) for name in (FAST, SLOW)}
    result = TrialResult(Trial("Optimal", 1), trial("Optimal", steps), (entry,), series)
    kept.keep(out, summary, Course((result,), (), (FAST, SLOW), "kind: HeteroTrainingJob\n"))
    unknown = runs.begin(tmp_path, "el", None, datetime(2026, 1, 2, tzinfo=UTC))
    for folder in (out, unknown):
        (runs.log_folder(folder, "optimal-1") / "el-cpu-0").mkdir(parents=True)
    assert kept.read(out) == (summary, {"optimal-1": (entry,)})
    return tmp_path


@pytest.mark.usefixtures("here")
def test_a_run_is_explained_by_its_figures_its_decisions_and_its_verdict(heterotrain: Run) -> None:
    said = heterotrain("explain", "out/el")
    assert said.code == 0
    assert "step 30, after 0:03: plan 2, batches 48 / 16: BatchRebalanced: move 16 samples" in said.out
    assert said.out.splitlines()[-1] == STAYED


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["explain", "el"], 1, "has left no figures; `heterotrain logs` has what it printed"),
        (["explain", "out/el", "--trial", "optimal"], 2, "it has optimal-1; did you mean optimal-1?"),
        (["explain", "out/nothing"], 2, "no run of job 'out/nothing' in this folder; there are runs of el"),
        (["runs", "ell"], 2, "no run of job 'ell' in this folder; did you mean el?"),
    ],
)
def test_what_a_run_has_not_left_is_said(arguments: list[str], code: int, words: str, heterotrain: Run) -> None:
    said = heterotrain(*arguments)
    assert (said.code, said.out) == (code, "")
    assert words in said.err


@pytest.mark.usefixtures("here")
def test_figures_of_another_version_are_refused_by_their_field(here: Path, heterotrain: Run) -> None:
    summary = here / "out" / "el" / "summary.json"
    summary.write_text(summary.read_text().replace('"arms"', '"trials_of_tomorrow"'))
    assert "trials: Field required" in heterotrain("explain", "out/el").err


@pytest.mark.usefixtures("here")
def test_runs_are_listed_with_their_ends_and_folders(heterotrain: Run) -> None:
    first, second = heterotrain("runs").out.splitlines()[1:]
    assert first.startswith(("el: began 2026-01-01", "el: began 2025-12-31"))
    assert first.endswith("ended Succeeded, policies Optimal, steps 78, folder out/el")
    assert "ended unknown" in second
    assert second.endswith("folder .heterotrain/runs/el/20260102T000000000000")
