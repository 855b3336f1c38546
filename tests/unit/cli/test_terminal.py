"""What is printed fits: on a terminal a row is a line and names of workers stay different; elsewhere nothing is cut."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from heterotrain_operator.api import parse_manifest, to_core
from heterotrain_operator.cli import terminal
from heterotrain_operator.cli.cluster.evidence import Evidence
from heterotrain_operator.cli.cluster.explain import explanation
from heterotrain_operator.cli.cluster.job_state import read_job
from heterotrain_operator.cli.cluster.status import job_view, jobs_table
from heterotrain_operator.cli.local.live import View
from heterotrain_operator.cli.terminal import ProgressLine, fitted, print_report, progress_line
from heterotrain_operator.core.model import Group, Job, Seen
from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.figures.summary import Summary, summarize
from heterotrain_operator.experiments.report import simulated
from heterotrain_operator.experiments.report.trials import report_of
from heterotrain_operator.experiments.report.value import Column, Report
from heterotrain_operator.experiments.simulations.comparison import Comparison, PolicyFigures, Spread
from unit.cli.cluster_jobs import trained
from unit.cli.test_live import Clock
from unit.experiments.histories import FAST, SLOW
from unit.experiments.observed import QUIET, seen
from unit.experiments.test_summary import BOUNDS, adjusted_trial, evaluated_trial, profile_steps, uniform_trial

WIDTHS = (80, 100, 120)
JOB = Job("resnet", (Group("large", 1, cpu_limit=1.0), Group("small", 1, cpu_limit=0.25)), global_batch=96)
LONG = "a-job-with-quite-a-long-name"


def lines(view: RenderableType | Report, width: int, *, piped: bool = False) -> list[str]:
    """What a terminal of that width shows, line by line; or what a pipe gets."""
    console = Console(file=io.StringIO(), width=width, force_terminal=not piped, color_system=None)
    if isinstance(view, Report):
        print_report(console, view)
    else:
        console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def rows(shown: list[str], *, mark: str = "│") -> list[list[str]]:
    """The cells of the rows of all tables, or of their headings."""
    return [[cell.strip() for cell in line.strip(mark).split(mark)] for line in shown if line.startswith(mark)]


def compared(*policies: str) -> Summary:
    """A run under Optimal and others, with workers of long names."""
    names = (f"{LONG}-{FAST}", f"{LONG}-{SLOW}")
    trials = [replace(uniform_trial(), policy=name) for name in policies]
    found = summarize("j", [adjusted_trial(), *trials], (FAST, SLOW), bounds=BOUNDS, profiled=[profile_steps()])
    renamed = tuple(
        replace(trial, worker=tuple(replace(w, name=name) for w, name in zip(trial.worker, names, strict=True)))
        for trial in found.trials
    )
    return replace(found, trials=renamed)


def live(width: int, *, named: str = "digits", workers: int = 2, title: str = "Optimal", height: int = 50) -> list[str]:
    """The live view of a job in a terminal; the last state of it."""
    job = replace(JOB, name=named, groups=(Group("large", workers - 1, cpu_limit=1.0), Group("small", 1)))
    now = seen(100)
    small, large = now.workers
    more = [replace(large, name=f"{named}-large-{index}", index=index, uid=str(index)) for index in range(workers - 1)]
    now = Seen((*more, replace(small, name=f"{named}-small-0")), now.plan)
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with View(console, Clock()) as view:
        view.begin(title, job, Path)
        assert isinstance(console.file, io.StringIO)
        console.file.truncate(console.file.seek(0))
        shown = replace(QUIET, reason="a long reason " * 20, batch_limits=((f"{named}-small-0", 23),))
        view.show(now, shown, None)
        drawn = console.file.getvalue()
    shown = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip("\r") for line in drawn.splitlines()]
    assert all(len(line) <= width for line in shown)
    assert len(shown) <= height
    return shown[next(number for number, line in enumerate(shown) if line.startswith("┏")) :]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("named", ["digits", LONG])
def test_live_table_has_a_line_per_worker_and_the_progress(width: int, named: str) -> None:
    shown = live(width, named=named)
    names = [row[0] for row in rows(shown)]
    assert [name[-8:] for name in names] == ["-large-0", "-small-0"]
    assert all(name.startswith(named[:3]) for name in names)
    assert any("step 100/400" in line and "Optimal" in line for line in shown)
    assert len(shown) == 3 + 2 + 1 + 2, "heading, rows, end of the table, progress and reason"


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (80, {"worker", "batch", "own time", "waiting", "of late", "phase"}),
        (100, {"worker", "CPU limit", "batch", "own time", "waiting", "of late", "samples/s", "phase"}),
        (120, {"worker", "CPU limit", "batch", "fits", "own time", "waiting", "of late", "samples/s", "phase"}),
    ],
)
def test_columns_go_in_a_fixed_order(width: int, headings: set[str]) -> None:
    assert set(rows(live(width), mark="┃")[0]) == headings


def test_progress_stays_in_sight_of_many_workers() -> None:
    shown = live(80, workers=60, height=24)
    assert any("and 45 more workers" in line for line in shown)
    assert any("step 100/400" in line for line in shown)


@pytest.mark.parametrize("width", [30, 60, *WIDTHS])
def test_progress_is_one_line_whose_bar_gives_way(width: int) -> None:
    (line,) = lines(
        progress_line("Profile before the trials, limits declared", ProgressLine(99, 150, 17.0), width), width
    )
    assert line.rstrip().endswith("step 99/150  0:17 left")
    assert len(line) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_end_of_a_comparison_has_a_line_per_row(width: int) -> None:
    policies = ("Uniform", "Static", "Proportional")
    shown = lines(report_of(replace(compared(*policies), speedup=(), profile=None, ceilings=(), warnings=())), width)
    assert all(len(line) <= width for line in shown)
    table = rows(shown)
    assert [row[0] for row in table[:4]] == ["Optimal", *policies]
    assert (len(table) - 4) % 2 == 0, "two workers in each table"
    headings = " ".join(line for line in shown if line.startswith("┃"))
    assert all(headings.count(policy) == 1 for policy in ("Optimal", *policies)), "each trial is shown once"


def test_table_has_what_was_evaluated_last() -> None:
    found = summarize("j", (evaluated_trial(), uniform_trial()), (FAST, SLOW), bounds=BOUNDS)
    shown = lines(report_of(found), 120)
    heading = rows(shown, mark="┃")[0]
    accuracy, f1 = heading.index("accuracy"), heading.index("f1")
    assert [(row[accuracy], row[f1]) for row in rows(shown)[:2]] == [("0.9753", "nan"), ("-", "-")]


def simulations(*policies: str) -> Report:
    spread = Spread(1.234, 1.1, 1.5)
    figures = tuple(
        PolicyFigures(name, 10, {"Running": 9, "Failed": 1}, spread, spread, spread, spread, 3, spread, (3, 4))
        for name in policies
    )
    return simulated.report_of(Comparison("a-scenario-of-some-length", "", "job", 2, 7, 100, 10, figures, ()))


@pytest.mark.parametrize("width", [80, 120])
def test_simulation_has_a_line_per_policy(width: int) -> None:
    shown = lines(simulations("Optimal", "Proportional"), width)
    assert all(len(line) <= width for line in shown if line[:1] in "┏┃│└")
    assert [row[:2] for row in rows(shown)] == [
        ["Optimal", "1.234 (1.100 to 1.500)"],
        ["Proportional", "1.234 (1.100 to 1.500)"],
    ]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_rows_without_room_are_records_where_there_is_no_terminal(width: int) -> None:
    shown = lines(simulations("Optimal", "Proportional"), width, piped=True)
    assert not rows(shown)
    [record] = [line for line in shown if line.startswith("Proportional: ")]
    assert record == (
        "Proportional: step over best 1.234 (1.100 to 1.500), after 20 intervals 1.234 (1.100 to 1.500), "
        "plans per 100 1.2 (1.1 to 1.5), to within 5% 1.2 (1.1 to 1.5) (3 of 10 never), first move 1 (1 to 2), "
        "job 9 running, 1 failed"
    )


def test_what_cannot_be_is_doubted_in_one_sentence_with_advice_and_not_headlined() -> None:
    found = summarize(
        "j", [adjusted_trial(), uniform_trial()], (FAST, SLOW), bounds=BOUNDS, profiled=[profile_steps(4.0)]
    )
    *_, doubt, headline = lines(report_of(found), 200, piped=True)
    assert headline.strip() == "Optimal trained 1.40x as many samples per second as Uniform."
    assert doubt.startswith("Read what is said of the ceiling with care, or run it again while nothing else uses this ")
    optimal = next(row for row in rows(lines(report_of(found), 200)) if row[0] == "Optimal")
    assert optimal[-1] == "-"


def test_table_with_room_is_drawn_where_there_is_no_terminal_and_its_names_are_whole() -> None:
    short = summarize("j", [adjusted_trial(), uniform_trial()], (FAST, SLOW), bounds=BOUNDS)
    shown = lines(report_of(short), 80, piped=True)
    assert [row[0] for row in rows(shown)] == ["Optimal", "Uniform", FAST, SLOW]
    assert all(len(line) <= 80 for line in shown if line[:1] in "┏┃│└")
    narrow = lines(report_of(compared("Uniform")), 80, piped=True)
    assert f"Uniform {LONG}-{SLOW}: batch 32, own time 2.0 s, waiting 0% + 20%" in narrow


@pytest.mark.parametrize(("columns", "width"), [("60", 60), ("200", 80), ("", 80)])
def test_pipe_is_80_columns_wide_or_as_narrow_as_asked_for(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal.messages().width == width


@pytest.mark.parametrize("width", WIDTHS)
def test_status_has_a_line_per_worker_and_keeps_what_they_say(width: int) -> None:
    document = trained().document
    message = 'ImagePullBackOff: Back-off pulling image "registry.example/team/a-trainer-of-ours:2026-01-01-release"'
    document["status"]["workers"][0] |= {"phase": "pending", "message": message, "node": f"{LONG}-pool-node-17"}
    document["status"]["conditions"] = []
    shown = lines(job_view(read_job(document), datetime.now(UTC), width=width), 200)
    start = next(number for number, line in enumerate(shown) if line.startswith("WORKER"))
    table = shown[start + 1 : start + 4]
    assert [row.split()[0] for row in table] == ["digits-g0-0", "digits-g1-0", "digits-g2-0"]
    assert all(len(line.rstrip()) <= width for line in shown[start : start + 4])
    assert f"digits-g0-0: pending: {message}" in [line.rstrip() for line in shown[start + 4 :]]


@pytest.mark.parametrize("width", WIDTHS)
def test_list_of_jobs_has_a_line_per_job(width: int) -> None:
    document = trained().document
    document["metadata"]["name"] = LONG * 2
    jobs = [read_job(document)] * 2
    shown = lines(jobs_table(jobs, datetime.now(UTC), everywhere=True, wide=True, width=width), width)
    assert len(shown) == 3
    assert shown[0].startswith("NAMESPACE")


@pytest.mark.parametrize("width", WIDTHS)
def test_explanation_has_a_line_per_worker(width: int) -> None:
    job = trained(name="a-job-with-a-name-of-some-length")
    core = to_core(parse_manifest({key: job.document[key] for key in ("apiVersion", "kind", "metadata", "spec")}))
    evidence = Evidence(read_job(job.document), core, (), job.world.plan, job.world.memory, (), ())
    shown = lines(explanation(evidence, job.now, width), width)
    start = next(number for number, line in enumerate(shown) if line.startswith("WORKER"))
    assert [line.split()[0][-5:] for line in shown[start + 1 : start + 4]] == ["-g0-0", "-g1-0", "-g2-0"]
    assert shown[start].split()[-1] == "BEST"


def test_names_are_shortened_in_the_middle_and_stay_different() -> None:
    assert wording.shortened("digits-large-0", 14) == "digits-large-0"
    assert wording.shortened("digits-large-0", 10) == "dig…arge-0"
    columns = (Column("worker", str, name=True), Column("more", lambda _: "x" * 40, rank=1))
    names = [f"{LONG}-{kind}-group-of-workers-0" for kind in ("large", "small")]
    shown = lines(fitted(columns, names, 60), 60)
    assert len({row[0] for row in rows(shown)}) == 2
    assert all(len(line) <= 60 for line in shown)
