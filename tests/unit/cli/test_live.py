"""What the user sees while a job runs: its state, and what its scripts print."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from heterotrain_operator.cli.local import script_output
from heterotrain_operator.cli.local.live import View, plain_line
from heterotrain_operator.cli.local.script_output import LogTail
from heterotrain_operator.core.model import Group, Seen
from heterotrain_operator.experiments.progress import Pace
from heterotrain_operator.experiments.trials.observer import entry_of
from unit.experiments.observed import JOB, MOVED, PLAN, QUIET, ended, seen


def test_plain_line_has_all_that_matters_by_rank_and_the_time_left_by_the_pace():
    pace = Pace()
    pace.note(0.0, 100)
    pace.note(10.0, 200)
    assert plain_line("Optimal", JOB, seen(200), pace, reason="") == (
        "Optimal: step 200/400, 960 samples/s, batches 80 / 16, own time 60 ms / 80 ms, 0:20 left"
    )
    served = replace(JOB, server=Group("server", 1))
    line = plain_line("Optimal", served, seen(200), pace, reason="")
    assert "10 updates/s" in line and "960 samples/s" not in line
    assert "left" not in plain_line("Profile", JOB, seen(200), pace, reason="", endless=True)
    assert plain_line("Optimal", JOB, Seen(), Pace(), reason="creating 2 workers") == "Optimal: creating 2 workers"


def test_last_table_of_a_job_shows_how_it_went():
    text, clock = io.StringIO(), Clock()
    with View(Console(file=text, width=160, force_terminal=True, color_system=None), clock) as view:
        view.begin("Optimal", JOB, Path)
        view.show(seen(391), QUIET, None)
        view.show(ended(400), QUIET, None)
    last = text.getvalue()[text.getvalue().index("step 391/400") :]
    for word in ("step 400/400", "60 ms", "25%", "succeeded", " 16 ", "700 of 1024 MiB", "within the dead-band"):
        assert word in last


def test_sparklines_show_how_waiting_and_throughput_went() -> None:
    text, clock = io.StringIO(), Clock()
    with View(Console(file=text, width=160, force_terminal=True, color_system=None), clock) as view:
        view.begin("Optimal", JOB, Path)
        for second, waited in enumerate((0.0, 0.3, 1.2, 1.2)):
            clock.seconds = float(second)
            now = seen(100 + 10 * second)
            large, small = (
                replace(worker, metrics=replace(worker.metrics, own_seconds=0.3 * (second + 1), wait_seconds=wait))
                for worker, wait in zip(now.workers[::-1], (waited, 0.0), strict=True)
                if worker.metrics is not None
            )
            view.show(replace(now, workers=(large, small)), QUIET, None)
    last = text.getvalue()[text.getvalue().rindex("step 130/400") - 1_500 :]
    assert "│ ▁▅▆▁" in last, (
        "the large worker waited none, half, three quarters, and none of the time between two looks"
    )
    assert "███ 960 samples/s" in last


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_log_gets_events_at_once_and_progress_every_ten_seconds():
    text, clock = io.StringIO(), Clock()
    with View(Console(file=text, width=200), clock) as view:
        view.begin("Optimal", JOB, Path, position="trial 1 of 2")
        for second in range(25):
            clock.seconds = float(second)
            decision = MOVED if second == 3 else QUIET
            view.show(seen(100 + 10 * second), decision, entry_of(clock.seconds, 100 + 10 * second, decision))
    lines = text.getvalue().splitlines()
    assert lines[0] == "Optimal (trial 1 of 2)"
    assert lines[1] == "Optimal, step 130: BatchRebalanced: moving 8 samples to large"
    assert [line.split(",")[0] for line in lines[2:]] == ["Optimal: step 200/400", "Optimal: step 300/400"]


def test_script_prints_above_the_table_with_its_colours_but_moves_no_cursor():
    text, clock = io.StringIO(), Clock()
    with View(Console(file=text, width=160, force_terminal=True, color_system="standard"), clock) as view:
        view.begin("Optimal", JOB, Path)
        view.show(seen(100), QUIET, None)
        view.script_says("digits-large-0", ["\x1b[31mred\x1b[0m \x1b[2J[bold]loss[/bold]", "next"])
    shown = text.getvalue()
    assert "\x1b[31mred\x1b[0m [bold]loss[/bold]" in shown
    assert "\x1b[2J" not in shown
    above = shown[shown.index("[bold]loss") :]
    assert above.index("next") < above.index("worker"), "the table is drawn again below"


LARGE, SMALL = "digits-large-0", "digits-small-0"
BOTH = seen(10)
WITHOUT_LARGE = replace(
    BOTH,
    workers=tuple(worker for worker in BOTH.workers if worker.name == SMALL),
    plan=replace(PLAN, version=4, members=PLAN.members[1:]),
)


class Run:
    """A run of both workers, of whom each has a log."""

    def __init__(self, folder: Path, shown: str) -> None:
        self._folder, self._text = folder, io.StringIO()
        self.observer = View(Console(file=self._text, width=200), lambda: 0.0, shown)
        self.observer.begin("Optimal", JOB, self.log)

    def log(self, name: str) -> Path:
        return self._folder / name

    def say(self, name: str, text: str) -> None:
        """The worker's script prints something."""
        with self.log(name).open("a") as log:
            log.write(text)

    def lines(self) -> list[str]:
        """What of it has been shown so far."""
        return [line for line in self._text.getvalue().splitlines() if " | " in line]

    def show(self, now: Seen) -> list[str]:
        self.observer.show(now, QUIET, None)
        return self.lines()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_output, "LOOK_EVERY_SECONDS", 0.0)


def test_output_of_the_leader_is_followed_by_that_of_its_successor(tmp_path: Path) -> None:
    run = Run(tmp_path, "leader")
    run.say(LARGE, "one\n")
    run.say(SMALL, "one of another\n")
    assert run.show(BOTH) == [f"{LARGE} | one"]
    run.say(LARGE, "its last words")
    assert run.show(WITHOUT_LARGE)[1:] == [f"{LARGE} | its last words"]
    run.say(SMALL, "two\n")
    assert run.show(WITHOUT_LARGE)[2:] == [f"{SMALL} | two"]


def test_leader_is_the_same_while_there_is_no_plan(tmp_path: Path) -> None:
    run = Run(tmp_path, "leader")
    run.say(SMALL, "one of another\n")
    run.say(LARGE, "one\n")
    assert run.show(replace(BOTH, plan=None)) == [f"{LARGE} | one"]


@pytest.mark.parametrize(("shown", "lines"), [("all", ["one", "two"]), ("leader", []), ("none", [])])
def test_output_of_a_newcomer_is_shown_from_its_beginning_where_all_is(
    tmp_path: Path, shown: str, lines: Sequence[str]
) -> None:
    run = Run(tmp_path, shown)
    run.show(BOTH)
    run.say("digits-small-1", "one\n")
    newcomer = replace(BOTH.workers[0], name="digits-small-1", uid="c", index=1)
    joined = replace(BOTH, workers=(*BOTH.workers, newcomer))
    run.show(joined)
    run.say("digits-small-1", "two\n")
    assert run.show(joined) == [f"digits-small-1 | {line}" for line in lines]


def test_log_is_followed_from_where_it_ends_now(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert LogTail(log, from_now=True).lines() == []
    log.write_text("before\n")
    tail = LogTail(log, from_now=True)
    with log.open("a") as file:
        file.write("since\n")
    assert tail.lines() == ["since"]
