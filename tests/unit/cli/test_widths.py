"""Tables at the widths of real terminals: a row is a line, nothing is folded, and names of workers stay different."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.console import Console, RenderableType

from heterotrain_operator.api import parse_manifest, to_core
from heterotrain_operator.cli.cluster.evidence import Evidence
from heterotrain_operator.cli.cluster.explain import explanation
from heterotrain_operator.cli.cluster.job_state import read_job
from heterotrain_operator.cli.cluster.job_tables import job_view, jobs_table
from heterotrain_operator.cli.fitting import Column, fitted, shortened
from heterotrain_operator.cli.local.live import View
from heterotrain_operator.cli.local.tables import print_summary
from heterotrain_operator.cli.progress_line import Progress, progress_line
from heterotrain_operator.core.model import Group, Job, Seen
from heterotrain_operator.experiments.figures.summary import summarize
from unit.cli.cluster_jobs import trained
from unit.cli.test_live import Clock
from unit.experiments.histories import FAST, SLOW
from unit.experiments.observed import QUIET, seen
from unit.experiments.test_summary import BOUNDS, adjusted_trial, profile_steps, uniform_trial

WIDTHS = (80, 100, 120)
JOB = Job("resnet", (Group("large", 1, cpu_limit=1.0), Group("small", 1, cpu_limit=0.25)), global_batch=96)
LONG = "a-job-with-quite-a-long-name"


def lines(view: RenderableType, width: int) -> list[str]:
    """What a terminal of that width shows, line by line."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue().splitlines()
    assert all(len(line) <= width for line in shown)
    return shown


def live(width: int, *, named: str = "digits", workers: int = 2, title: str = "Optimal", height: int = 50) -> list[str]:
    """The live view of a job in a terminal; the last state of it."""
    job = replace(JOB, name=named, groups=(Group("large", workers - 1, cpu_limit=1.0), Group("small", 1)))
    now = seen(100)
    small, large = now.workers
    more = [replace(large, name=f"{named}-large-{index}", index=index, uid=str(index)) for index in range(workers - 1)]
    now = Seen((*more, replace(small, name=f"{named}-small-0")), now.plan)
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with View(console, Clock()) as view:
        view.begin(title, job)
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
    rows = [line for line in shown if line.startswith("│")]
    assert len(rows) == 2
    names = [row.split()[1] for row in rows]
    assert [name[-8:] for name in names] == ["-large-0", "-small-0"]
    assert all(name.startswith(named[:3]) for name in names)
    assert any("step 100/400" in line and "Optimal" in line for line in shown)
    assert len(shown) == 3 + 2 + 1 + 2, "heading, rows, end of the table, progress and reason"


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (80, {"worker", "CPU limit", "batch", "own time", "waiting", "phase"}),
        (100, {"worker", "CPU limit", "batch", "fits", "own time", "waiting", "samples/s", "phase"}),
        (120, {"worker", "CPU limit", "batch", "fits", "memory", "own time", "waiting", "samples/s", "plan", "phase"}),
    ],
)
def test_columns_go_in_a_fixed_order(width: int, headings: set[str]) -> None:
    heading = live(width)[1]
    assert {cell.strip() for cell in heading.strip("┃").split("┃")} == headings


def test_progress_stays_in_sight_of_many_workers() -> None:
    shown = live(80, workers=60, height=24)
    assert any("and 44 more workers" in line for line in shown)
    assert any("step 100/400" in line for line in shown)


@pytest.mark.parametrize("width", [30, 60, *WIDTHS])
def test_progress_is_one_line_whose_bar_gives_way(width: int) -> None:
    (line,) = lines(progress_line("Profile before the trials, limits declared", Progress(99, 150, 17.0), width), width)
    assert line.rstrip().endswith("step 99/150  0:17 left")


@pytest.mark.parametrize("width", WIDTHS)
def test_end_of_a_comparison_has_a_line_per_row(width: int) -> None:
    names = (f"{LONG}-{FAST}", f"{LONG}-{SLOW}")
    trials = [replace(uniform_trial(), policy=name) for name in ("Uniform", "Static", "Proportional")]
    found = summarize("j", [adjusted_trial(), *trials], (FAST, SLOW), bounds=BOUNDS, profiled=[profile_steps()])
    renamed = tuple(
        replace(trial, worker=tuple(replace(w, name=name) for w, name in zip(trial.worker, names, strict=True)))
        for trial in found.trials
    )
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_summary(console, replace(found, trials=renamed, speedup=(), profile=None, ceilings=(), warnings=()))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue().splitlines()
    assert all(len(line) <= width for line in shown)
    rows = [line.split() for line in shown if line.startswith("│")]
    assert [row[1] for row in rows[:4]] == ["Optimal", "Uniform", "Static", "Proportional"]
    tables = (len(rows) - 4) // 2
    assert len(rows) == 4 + 2 * tables, "two workers in each table"
    headings = " ".join(line for line in shown if line.startswith("┃"))
    for policy in ("Optimal", "Uniform", "Static", "Proportional"):
        assert headings.count(policy) == 1, "each trial is shown once"


@pytest.mark.parametrize("width", WIDTHS)
def test_status_has_a_line_per_worker_and_keeps_what_they_say(width: int) -> None:
    document = trained().document
    message = 'ImagePullBackOff: Back-off pulling image "registry.example/team/a-trainer-of-ours:2026-01-01-release"'
    document["status"]["workers"][0] |= {"phase": "pending", "message": message, "node": f"{LONG}-pool-node-17"}
    document["status"]["conditions"] = []
    shown = lines(job_view(read_job(document), datetime.now(UTC), width=width), 200)
    start = next(number for number, line in enumerate(shown) if line.startswith("WORKER"))
    rows = shown[start + 1 : start + 4]
    assert [row.split()[0] for row in rows] == ["digits-g0-0", "digits-g1-0", "digits-g2-0"]
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


def test_names_are_shortened_in_the_middle_and_stay_different() -> None:
    assert shortened("digits-large-0", 14) == "digits-large-0"
    assert shortened("digits-large-0", 10) == "dig…arge-0"
    columns = (Column("worker", name=True), Column("more", rank=1))
    names = [f"{LONG}-{kind}-group-of-workers-0" for kind in ("large", "small")]
    table = fitted(columns, [{"worker": name, "more": "x" * 40} for name in names], 60)
    shown = [line.split()[1] for line in lines(table, 60) if line.startswith("│")]
    assert len(set(shown)) == 2


@pytest.mark.parametrize("width", WIDTHS)
def test_explanation_has_a_line_per_worker(width: int) -> None:
    job = trained(name="a-job-with-a-name-of-some-length")
    core = to_core(parse_manifest({key: job.document[key] for key in ("apiVersion", "kind", "metadata", "spec")}))
    evidence = Evidence(read_job(job.document), core, (), job.world.plan, job.world.memory, (), ())
    shown = lines(explanation(evidence, job.now), width)
    start = next(number for number, line in enumerate(shown) if line.startswith("WORKER"))
    assert [line.split()[0][-5:] for line in shown[start + 1 : start + 4]] == ["-g0-0", "-g1-0", "-g2-0"]
    assert shown[start].split()[-1] == "BEST"
