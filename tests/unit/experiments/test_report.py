"""The folder that a run leaves."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from heterotrain.contract import EvaluationRecord
from heterotrain_operator.core.model import Event
from heterotrain_operator.experiments.figures.history import FaultRecord
from heterotrain_operator.experiments.figures.summary import summarize
from heterotrain_operator.experiments.report.files import write_trials
from heterotrain_operator.experiments.report.plots import batches_and_times
from heterotrain_operator.experiments.report.trials import Course
from heterotrain_operator.experiments.trials.observer import Entry
from heterotrain_operator.experiments.trials.trial import Trial, TrialResult
from unit.experiments.histories import BEGAN, FAST, SLOW, history, joined, trial

MANIFEST = "kind: HeteroTrainingJob # <script>&\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    before = history(30, (32, 32), (0.32, 0.96))
    after = history(60, (48, 16), (0.48, 0.5), first=30, began=BEGAN + 60, loss=0.5)
    measured_by_script = (EvaluationRecord(BEGAN + 70, 60, {"<accuracy>": 0.75}),)
    optimal = replace(trial("Optimal", joined(before, after), adjustments=1), evaluations=measured_by_script)
    uniform = trial("Uniform", joined(history(90, (32, 32), (0.32, 0.96))))
    sizes = [history(5, (16 * k, 8 * k), (0.16 * k, 0.24 * k), first=5 * k) for k in range(1, 5)]
    profiled = trial("Profile", joined(*sizes), 0, "Running")
    summary = summarize(
        "job",
        (optimal, uniform),
        (FAST, SLOW),
        bounds={FAST: (1, 64), SLOW: (1, 64)},
        profiled=(profiled,),
        limits="by cgroups",
    )
    entry = Entry(3.0, 30, 2, (48, 16), "why", (Event("Normal", "BatchRebalanced", "move 16 <samples>"),))
    series = {name: [*before[name], *after[name]] for name in (FAST, SLOW)}
    trials = (
        TrialResult(Trial("Optimal", 1), optimal, (entry,), series),
        TrialResult(Trial("Uniform", 1), uniform, (), {}),
    )
    path = tmp_path_factory.mktemp("report")
    profiles = (TrialResult(Trial("Profile", 0), profiled, (), {}),)
    write_trials(path, summary, Course(trials, profiles, (FAST, SLOW), MANIFEST, 4, "0.1.0"))
    return path


class Links(HTMLParser):
    """Collects whatever a page would load or link to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]


def test_report_refers_to_nothing_outside_itself(folder: Path):
    text = (folder / "report.html").read_text("utf-8")
    links = Links()
    links.feed(text)
    assert len(links.found) == 4  # loss, two trials, profile
    assert all(link.startswith("data:image/png;base64,") for link in links.found)
    assert not re.search(r"https?://|@import|url\(|<script", text)


def test_report_shows_trials_decisions_manifest_and_machine(folder: Path):
    text = (folder / "report.html").read_text("utf-8")
    for words in (
        "Optimal trained",
        "BatchRebalanced: move 16 &lt;samples&gt;",
        "48 / 16",
        "HeteroTrainingJob # &lt;script&gt;&amp;",
        "4 CPU cores",
        "by cgroups",
        FAST,
    ):
        assert words in text


def test_pictures_series_decisions_and_figures_are_kept_beside_the_page(folder: Path):
    pictures = list(folder.glob("*.png"))
    assert {path.name for path in pictures} == {"loss.png", "optimal-1.png", "uniform-1.png", "profile.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    lines = [json.loads(line) for line in (folder / "optimal-1-series.jsonl").read_text("utf-8").splitlines()]
    assert len(lines) == 2 * 90
    assert [(line["step"], line["worker"]) for line in lines[:3]] == [(0, FAST), (0, SLOW), (1, FAST)]
    (line,) = (folder / "optimal-1-decisions.jsonl").read_text("utf-8").splitlines()
    assert json.loads(line)["events"][0]["reason"] == "BatchRebalanced"
    optimal = json.loads((folder / "summary.json").read_text("utf-8"))["arms"][0]
    assert optimal["policy"] == "Optimal"
    assert optimal["evaluations"][0]["metrics"] == {"<accuracy>": 0.75}


def test_trial_that_never_trained_can_be_reported(tmp_path: Path):
    failed = trial("Optimal", (), phase="Failed")
    summary = summarize("job", (failed,), (FAST, SLOW), bounds={})
    trials = (TrialResult(Trial("Optimal", 1), failed, (), {}),)
    write_trials(tmp_path, summary, Course(trials, (), (FAST, SLOW), MANIFEST, 4, "0.1.0"))
    assert (tmp_path / "report.html").exists()


def test_faults_are_in_the_summary_and_in_the_pictures():
    plain = trial("Optimal", joined(history(30, (32, 32), (0.32, 0.96))))
    records = (
        FaultRecord(BEGAN - 1, 0, FAST, "slow"),
        FaultRecord(BEGAN + 9, 6, SLOW, "stop", 5.0),
        FaultRecord(BEGAN + 9, 6, FAST, "kill"),
        FaultRecord(BEGAN + 900, 29, "job-slow-7", "leave"),  # of a worker that is not there any more
    )
    faulty = replace(plain, faults=records)
    summary = summarize("job", (faulty,), (FAST, SLOW), bounds={}).to_json()
    assert [fault["act"] for fault in summary["arms"][0]["faults"]] == ["slow", "stop", "kill", "leave"]
    assert summary["arms"][0]["faults"][1]["lasts_seconds"] == 5.0
    names = (FAST, SLOW)
    assert batches_and_times(plain, names, "a.png").panels[0].marks == ()
    marks = batches_and_times(faulty, names, "a.png").panels[0].marks
    assert [(mark.x, mark.text) for mark in marks] == [(0, "slow"), (7, "stop, kill"), (29, "leave")]


def test_report_has_the_evaluations_of_each_trial(folder: Path):
    text = (folder / "report.html").read_text("utf-8")
    assert text.count("<h3>Evaluations</h3>") == 1
    assert "&lt;accuracy&gt;</th>" in text
    assert "<td>60</td><td>1:10</td><td>0.75</td>" in text
