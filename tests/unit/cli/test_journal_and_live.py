"""What the user is told while a job runs."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from heterotrain.contract import Member, Plan
from heterotrain_operator.cli.local.live import View, plain_line, progress
from heterotrain_operator.core.model import Decision, Event, Group, Job, Seen, WorkerMetrics, WorkerSeen
from heterotrain_operator.experiments.progress import Pace, committed_steps, reached_steps
from heterotrain_operator.experiments.trials.journal import entry_of

JOB = Job("digits", (Group("large", 1, cpu_limit=1.0), Group("small", 1, cpu_limit=0.25)), global_batch=96)
PLAN = Plan(
    3, 1, "step", (Member("digits-large-0", "a", "h:1", "large", 80), Member("digits-small-0", "b", "h:2", "small", 16))
)
QUIET = Decision("Running", "within the dead-band")
MOVED = Decision(
    "Running", "moving 8 samples", plan=PLAN, events=(Event("Normal", "BatchRebalanced", "moving 8 samples to large"),)
)


def seen(step: int, total: int = 400) -> Seen:
    """Both workers trained to a step: the large one works 60 of 80 ms, the small one all of them."""
    metrics = WorkerMetrics(
        3, batch_size=80, step=step, total_steps=total, phase="training", steps=10, own_seconds=0.6, wait_seconds=0.2
    )
    large = WorkerSeen("digits-large-0", "a", "large", 0, "Running", cpu_limit=1.0, metrics=metrics)
    small = replace(
        large,
        name="digits-small-0",
        uid="b",
        group="small",
        cpu_limit=0.25,
        metrics=replace(
            metrics,
            batch_size=16,
            own_seconds=0.8,
            wait_seconds=0.0,
            memory_peak_bytes=700 * 2**20,
            memory_limit_bytes=2**30,
        ),
    )
    return Seen((small, large), PLAN)


def test_quiet_decision_is_not_kept():
    assert entry_of(1.0, 5, QUIET) is None


def test_decision_is_kept_with_its_reason():
    entry = entry_of(2.5, 40, MOVED)
    assert entry is not None
    assert (entry.seconds, entry.step, entry.version, entry.batches) == (2.5, 40, 3, (80, 16))
    assert entry.events[0].message == "moving 8 samples to large"


def test_pace_is_measured_over_the_last_seconds():
    pace = Pace()
    assert pace.steps_per_second is None
    for second in range(60):
        pace.note(float(second), second if second < 30 else 30 + (second - 30) * 5)
    assert pace.steps_per_second == pytest.approx(5.0)


def test_pace_begins_anew_after_a_restart():
    pace = Pace()
    pace.note(0.0, 100)
    pace.note(10.0, 200)
    pace.note(20.0, 150)
    assert pace.steps_per_second is None


def test_time_left_follows_from_the_pace():
    pace = Pace()
    pace.note(0.0, 100)
    pace.note(10.0, 200)
    reached = progress(seen(200), pace)
    assert (reached.steps, reached.total, reached.seconds_left) == (200, 400, 20.0)


def test_endless_job_has_no_time_left():
    pace = Pace()
    pace.note(0.0, 100)
    pace.note(10.0, 200)
    assert progress(seen(200), pace, endless=True).seconds_left is None


def test_plain_line_tells_all_that_matters_by_rank():
    pace = Pace()
    pace.note(0.0, 100)
    pace.note(10.0, 200)
    assert plain_line("Optimal", JOB, seen(200), pace, reason="") == (
        "Optimal: step 200/400, 960 samples/s, batches 80 / 16, own time 60 ms / 80 ms, 0:20 left"
    )


def test_plain_line_gives_the_reason_before_the_first_step():
    assert plain_line("Optimal", JOB, Seen(), Pace(), reason="creating 2 workers") == "Optimal: creating 2 workers"


def test_steps_are_none_without_metrics():
    assert committed_steps(Seen()) == 0


def ended(step: int) -> Seen:
    """Both workers have ended, and their metrics with them."""
    now = seen(step)
    workers = tuple(
        replace(worker, metrics=None, phase="Succeeded", exit_code=0, finished=True, step=step)
        for worker in now.workers
    )
    return replace(now, workers=workers)


def test_steps_of_workers_that_ended_are_those_of_their_last_words():
    assert reached_steps(ended(400)) == 400
    assert reached_steps(seen(391)) == 391


def test_last_table_of_a_job_tells_how_it_went():
    text, clock = io.StringIO(), Clock()
    with View(Console(file=text, width=160, force_terminal=True, color_system=None), clock) as view:
        view.begin("Optimal", JOB)
        view.show(seen(391), QUIET, None)
        view.show(ended(400), QUIET, None)
    last = text.getvalue()[text.getvalue().index("step 391/400") :]
    for word in ("step 400/400", "60 ms", "succeeded", " 16 "):
        assert word in last


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_log_gets_events_at_once_and_progress_every_ten_seconds():
    text, clock = io.StringIO(), Clock()
    with View(Console(file=text, width=200), clock) as view:
        view.begin("Optimal", JOB, position="trial 1 of 2")
        for second in range(25):
            clock.seconds = float(second)
            decision = MOVED if second == 3 else QUIET
            view.show(seen(100 + 10 * second), decision, entry_of(clock.seconds, 100 + 10 * second, decision))
    lines = text.getvalue().splitlines()
    assert lines[0] == "Optimal (trial 1 of 2)"
    assert lines[1] == "Optimal, step 130: BatchRebalanced: moving 8 samples to large"
    assert [line.split(",")[0] for line in lines[2:]] == ["Optimal: step 200/400", "Optimal: step 300/400"]


def test_terminal_shows_a_table_of_workers():
    text, clock = io.StringIO(), Clock()
    with View(Console(file=text, width=160, force_terminal=True, color_system=None), clock) as view:
        view.begin("Optimal", JOB)
        view.show(seen(100), replace(QUIET, safe_batches=(("digits-small-0", 23),)), None)
    shown = text.getvalue()
    for word in ("digits-large-0", "CPU limit", "0.25", "60 ms", "25%", "step 100/400", "within the dead-band"):
        assert word in shown
    assert [" 23 " in line for line in shown.splitlines() if "700 of 1024 MiB" in line] == [True]


def test_script_prints_above_the_table_with_its_colours_but_moves_no_cursor():
    text, clock = io.StringIO(), Clock()
    with View(Console(file=text, width=160, force_terminal=True, color_system="standard"), clock) as view:
        view.begin("Optimal", JOB)
        view.show(seen(100), QUIET, None)
        view.script_says("digits-large-0", ["\x1b[31mred\x1b[0m \x1b[2J[bold]loss[/bold]", "next"])
    shown = text.getvalue()
    assert "\x1b[31mred\x1b[0m [bold]loss[/bold]" in shown
    assert "\x1b[2J" not in shown
    above = shown[shown.index("[bold]loss") :]
    assert above.index("next") < above.index("worker"), "the table is drawn again below"
