"""Whose output a run shows while its workers change: of the leader, whoever that is, or of all, whoever joins."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from heterotrain_operator.cli.local import script_output
from heterotrain_operator.cli.local.live import TerminalObserver, View
from heterotrain_operator.cli.local.script_output import LogTail
from heterotrain_operator.core.model import Seen
from unit.experiments.observed import JOB, PLAN, QUIET, seen

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
        self.observer = TerminalObserver(View(Console(file=self._text, width=200), lambda: 0.0), shown)
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
