"""What the benchmark of faults reads of a job's end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chaos_findings import open_at_end, samples_in, steps_in
from chaos_job import STEPS_OF_CALM, Job, Setting

from heterotrain.contract import Member, Plan, StepRecord


class Watched(Job):
    """A job of two workers whose processes are left out: its plan, and the steps that all of them have taken."""

    def __init__(self) -> None:
        self.setting = Setting(workers=2)
        self.names = {"a-0": "u0", "a-1": "u1"}
        self.steps = 0
        self._reached, self._leavers = {}, set()

    def plan(self) -> Plan:
        members = (Member(name, uid, "127.0.0.1:1", "a", 24) for name, uid in self.names.items())
        return Plan(1, 1, "step", tuple(members))

    def ask(self) -> dict[str, Any]:
        return {"workers": [{"worker": name, "running": True, "faults": []} for name in self.names]}

    def last_record(self, name: str, uid: str) -> StepRecord:
        return StepRecord(1.0, self.steps, 0, 1, 8, 8, 0.1, 0.0, 0.5, "")

    def is_calm_after(self, steps: int) -> bool:
        self.is_calm()
        self.steps += steps
        return self.is_calm()


def test_samples_of_a_step_are_those_of_all_workers_once(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("4 7,8\n4 7,8\n5 3\n")
    (tmp_path / "killed").write_text("4 9\n5 2,")
    found = samples_in([tmp_path / "one", tmp_path / "killed"])
    assert found == {4: {7, 8, 9}, 5: {3}}


def test_steps_are_read_without_a_torn_last_line(tmp_path: Path) -> None:
    lines = [StepRecord(1.0, step, 0, 1, 8, 8, 0.1, 0.0, 0.5, "").to_json() for step in (3, 4, 5)]
    (tmp_path / "series").write_text("\n".join(lines))
    assert steps_in(tmp_path / "series") == [3, 4]


def test_a_job_is_calm_once_all_have_trained_on() -> None:
    job = Watched()
    assert not job.is_calm_after(STEPS_OF_CALM - 1)
    assert job.is_calm_after(1)


def test_a_job_is_not_calm_while_one_that_was_asked_to_leave_trains_on() -> None:
    """At the job's end the others would have open what they prepare for the one that takes its place."""
    job = Watched()
    job.asked_to_leave("a-1")
    assert not job.is_calm_after(10 * STEPS_OF_CALM)
    job.names = {"a-0": "u0", "a-2": "u2"}
    assert job.is_calm_after(STEPS_OF_CALM)


def test_what_a_process_has_open_while_members_change_is_not_what_it_keeps() -> None:
    calm, changing = [[step, 41, 5] for step in range(0, 460, 10)], [[step, 54, 6] for step in range(460, 500, 10)]
    assert open_at_end([*calm, *changing]) == (41, 5)


def test_what_a_process_has_kept_open_since_long_before_its_end_counts() -> None:
    assert open_at_end([[0, 37, 5], *([step, 43, 7] for step in range(10, 500, 10))]) == (43, 7)
