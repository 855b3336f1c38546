"""The folder that a run leaves."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import Browser

from heterotrain.contract import EvaluationRecord, StepRecord
from heterotrain_operator.core.model import Event
from heterotrain_operator.experiments.figures.history import FaultRecord, TrialHistory
from heterotrain_operator.experiments.figures.series import align
from heterotrain_operator.experiments.figures.summary import summarize
from heterotrain_operator.experiments.provenance import provenance_of
from heterotrain_operator.experiments.report import kept, trace
from heterotrain_operator.experiments.report.page import page
from heterotrain_operator.experiments.report.plots import batches_and_times
from heterotrain_operator.experiments.report.trials import Course
from heterotrain_operator.experiments.report.value import (
    BeforeAfter,
    Line,
    Panel,
    Plot,
    Report,
    Section,
    Span,
    WorkerStep,
)
from heterotrain_operator.experiments.trials.observer import Entry
from heterotrain_operator.experiments.trials.trial import Trial, TrialResult
from unit.experiments.histories import BEGAN, FAST, SLOW, history, joined, record, trial

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
        provenance=provenance_of(["heterotrain", "run", "<my job>.yaml"], datetime(2026, 1, 2, tzinfo=UTC), Path("/")),
    )
    entry = Entry(3.0, 30, 2, (48, 16), "why", (Event("Normal", "BatchRebalanced", "move 16 <samples>"),))
    trials = (
        TrialResult(Trial("Optimal", 1), optimal, (entry,), series_of(optimal)),
        TrialResult(Trial("Uniform", 1), uniform, (), series_of(uniform)),
    )
    path = tmp_path_factory.mktemp("report")
    profiles = (TrialResult(Trial("Profile", 0), profiled, (), {}),)
    course = Course(trials, profiles, (FAST, SLOW), MANIFEST)
    kept.keep(path, summary, course)
    kept.draw(path, summary, course)
    return path


def series_of(trial: TrialHistory) -> dict[str, tuple[StepRecord, ...]]:
    """The records of its steps, by worker."""
    return {name: tuple(step.records[name] for step in trial.steps) for name in (FAST, SLOW)}


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
    assert links.found == []
    assert set(re.findall(r"https?://[^\"]*|@import|url\(", text)) == {"http://www.w3.org/2000/svg"}  # a namespace
    assert text.count("<script") == 1


def test_report_shows_trials_decisions_manifest_and_machine(folder: Path):
    text = (folder / "report.html").read_text("utf-8")
    for words in (
        "Optimal trained",
        "BatchRebalanced: move 16 &lt;samples&gt;",
        "48 / 16",
        "HeteroTrainingJob # &lt;script&gt;&amp;",
        "heterotrain run &#x27;&lt;my job&gt;.yaml&#x27;",
        "2026-01-02 00:00 UTC",
        "by cgroups",
        "Before: batches 32 / 32, a step of 1.5 s, and the worker that waits most for slower ones waits 44% of it. "
        "After: batches 48 / 16, a step of 1.0 s, and the worker that waits most for slower ones waits 2% of it.",
        "At the same step the losses differ by 50.00% in the median of 90 steps, and by 50.0% at most",
        FAST,
    ):
        assert words in text


def test_page_of_a_kept_run_is_the_same_when_it_is_drawn_again(folder: Path):
    summary, course = kept.read_course(folder)
    drawn = (folder / "report.html").read_text("utf-8")
    assert kept.draw(folder, summary, course).read_text("utf-8") == drawn


def test_trace_has_each_step_of_each_worker_and_the_batches_when_they_change(folder: Path):
    events = json.loads((folder / "trace.json").read_text("utf-8"))
    of = {kind: [event for event in events if event["ph"] == kind] for kind in "MXC"}
    assert {event["args"]["name"] for event in of["M"]} == {"Optimal", "Uniform", FAST, SLOW}
    assert len(of["X"]) == 2 * 2 * 2 * 90
    assert [event["args"] for event in of["C"] if event["pid"] == 1] == [{FAST: 32, SLOW: 32}, {FAST: 48, SLOW: 16}]
    computed, waited = [event for event in of["X"] if event["args"]["step"] == 0 and event["pid"] == 1][:2]
    assert (computed["name"], computed["ts"], computed["dur"]) == ("compute", 0, 320_000)
    assert (waited["name"], waited["ts"], waited["dur"]) == ("wait", 320_000, 1_140_000)


def test_trace_of_a_long_run_keeps_its_first_and_newest_steps_and_says_which_it_lacks(tmp_path: Path):
    long = trial("Optimal", joined(history(900, (32, 32), (0.32, 0.96))))
    trace.write(tmp_path / "trace.json", [long, long], most_events=400)
    events = json.loads((tmp_path / "trace.json").read_text("utf-8"))
    assert [each["args"]["labels"] for each in events if each["name"] == "process_labels"] == [
        "steps 25 to 874 are left out"
    ] * 2
    kept = {event["args"]["step"] for event in events if event["ph"] == "X"}
    assert kept == {*range(25), *range(875, 900)}
    assert len(events) < 420


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


UNDRAWN = """[...document.querySelectorAll("figure.chart svg.data, figure.balance svg.bars")].filter((drawing) =>
  ![...drawing.querySelectorAll("path.line, rect")].some((mark) => mark.getBoundingClientRect().width > 0)).length"""
BEYOND = """[...document.querySelectorAll("body *")].filter((each) => !each.closest(".wide, pre")
  && each.getBoundingClientRect().right > innerWidth + 1).map((each) => each.outerHTML.slice(0, 80))"""
OF_LOSS = "document.querySelector('.halves .data')"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_page_is_drawn_without_errors_and_within_its_width(folder: Path, browser: Browser, width: int, theme: str):
    browser.open(folder / "report.html", width=width, theme=theme)
    assert browser.evaluate("[...document.querySelectorAll('figure')].map(each => each.className)") == [
        "balance",
        "chart",
        "chart half",
        "chart half",
        "chart",
        "chart",
        "chart",
    ]
    assert browser.evaluate("document.querySelectorAll('dfn[data-means]').length") > 5
    assert browser.evaluate("document.querySelector('details').open") is False
    assert browser.evaluate(UNDRAWN) == 0
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate(BEYOND) == []
    ground = "getComputedStyle(document.body).backgroundColor"
    dark, light = "rgb(20, 23, 28)", "rgb(255, 255, 255)"
    assert browser.evaluate(ground) == (dark if theme == "dark" else light)
    browser.evaluate("document.getElementById('theme').click()")
    assert browser.evaluate(ground) == (light if theme == "dark" else dark)
    assert browser.complaints == []


def point_at(browser: Browser, drawing: str, share: float) -> tuple[float, float]:
    """Move the mouse to a share of a drawing's width; gives where that is."""
    browser.evaluate(f"{drawing}.scrollIntoView({{ block: 'center' }})")
    box = browser.evaluate(f"(({{ x, y, width }}) => ({{ x, y, width }}))({drawing}.getBoundingClientRect())")
    place = box["x"] + share * box["width"], box["y"] + 20
    browser.mouse("Moved", *place)
    return place


def test_chart_says_its_values_under_the_pointer_and_zooms_into_what_is_chosen(folder: Path, browser: Browser):
    browser.open(folder / "report.html", width=1200, theme="light")
    under = "document.getElementById('under').textContent"
    point_at(browser, "document.querySelectorAll('figure.chart:not(.half) .data')[1]", 0.36)
    assert browser.evaluate(under).splitlines()[1:3] == [f"{FAST}  48", f"{SLOW}  16"]
    middle = point_at(browser, OF_LOSS, 0.5)
    said = browser.evaluate(under).splitlines()
    assert said[0].startswith("step 44")
    assert said[1:] == ["Optimal  0.5", "Uniform  1"]
    browser.mouse("Pressed", *middle)
    browser.mouse("Released", *point_at(browser, OF_LOSS, 0.75))
    left, _, width, _ = map(float, browser.evaluate(f"{OF_LOSS}.getAttribute('viewBox')").split())
    assert (left, width) == (pytest.approx(500, abs=5), pytest.approx(250, abs=5))
    ticks = "[...document.querySelectorAll('.halves .panel')[0].querySelectorAll('.tick text')].map(t => t.textContent)"
    assert browser.evaluate(ticks) == ["45", "50", "55", "60", "65"]
    assert browser.complaints == []


def test_series_decisions_and_figures_are_kept_beside_the_page(folder: Path):
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
    assert "<figure" not in kept.draw(tmp_path, summary, Course(trials, (), (FAST, SLOW), MANIFEST)).read_text("utf-8")


def test_pictures_are_of_some_workers_where_there_are_many_and_of_no_loss_where_none_is_known(tmp_path: Path):
    names = tuple(f"job-cpu-{index}" for index in range(40))
    series = {name: tuple(record(step, BEGAN + step, 8, loss=None) for step in range(5)) for name in names}
    wide = trial("Optimal", align(series))
    course = Course((TrialResult(Trial("Optimal", 1), wide, (), series),), (), names, MANIFEST)
    text = kept.draw(tmp_path, summarize("job", (wide,), names, bounds={}), course).read_text("utf-8")
    assert text.count("The first 16 workers; 24 more are not drawn.") == 2
    assert text.count(">job-cpu-15</text>") == 2
    assert ">job-cpu-16</text>" not in text
    assert "Training loss" not in text


def test_page_of_an_asynchronous_job_counts_each_update_and_speaks_of_no_all_reduce(tmp_path: Path):
    records = [
        (name, record(number, BEGAN + number, batch, own=0.5, wait=0.1, version=1 + (number > 20)))
        for number in range(1, 41)
        for name, batch in ((FAST, 32 if number <= 20 else 48), (SLOW, 32 if number <= 20 else 16))
    ]
    series = {name: tuple(each for of, each in records if of == name) for name in (FAST, SLOW)}
    history = replace(trial("Optimal", align(series, together=False), adjustments=1), asynchronous=True)
    summary = summarize("job", (history,), (FAST, SLOW), bounds={})
    course = Course((TrialResult(Trial("Optimal", 1), history, (), series),), (), (FAST, SLOW), MANIFEST)
    kept.keep(tmp_path, summary, course)
    text = kept.draw(tmp_path, summary, course).read_text("utf-8")
    assert "all-reduce" not in text
    assert "Before: batches 32 / 32, and an update every 600 ms from the fastest worker" in text
    assert "After: batches 48 / 16" in text
    assert (summary.trials[0].steps, summary.trials[0].global_batch) == (80, 64)
    assert kept.draw(tmp_path, *kept.read_course(tmp_path)).read_text("utf-8") == text


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
    assert batches_and_times(plain, names).panels[0].marks == ()
    marks = batches_and_times(faulty, names).panels[0].marks
    assert [(mark.x, mark.text) for mark in marks] == [(0, "slow"), (7, "stop, kill"), (29, "leave")]


def test_report_has_the_evaluations_of_each_trial(folder: Path):
    text = (folder / "report.html").read_text("utf-8")
    assert text.count("<h3>Evaluations</h3>") == 1
    assert "&lt;accuracy&gt;</th>" in text
    assert "<td>60</td><td>1:10</td><td>0.75</td>" in text


def test_long_names_of_workers_lack_their_middle_and_are_whole_by_hover(tmp_path: Path, browser: Browser):
    names = [f"{'experiment-with-a-long-name-' * 3}{end}" for end in ("large-0", "small-0")]
    step = WorkerStep(16, 1.0, 0.5, 0.1)
    lines = tuple(Line(name, (0, 1), (1, 2), "red") for name in names)
    drawn = (
        BeforeAfter("steps", "", {"before": dict.fromkeys(names, step)}),
        Plot("", "batches", "step", (Panel("", lines),)),
        Plot("", "steps", "s", (Panel("", rows=tuple(names), spans=(Span(0, 0, 1, "red", ""),)),)),
    )
    (tmp_path / "report.html").write_text(page(Report("long", "run", (), (Section("", drawn),))))
    browser.open(tmp_path / "report.html", width=390, theme="light")
    assert browser.evaluate(BEYOND) == []
    titles = "[...document.querySelectorAll('text.row title')].map(each => each.textContent)"
    assert browser.evaluate(titles) == names * 2
    assert browser.evaluate("[...document.querySelectorAll('.legend span[title]')].map(each => each.title)") == names
