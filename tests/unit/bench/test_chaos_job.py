"""What the benchmark of faults reads of a job's end."""

from __future__ import annotations

from pathlib import Path

from chaos_job import samples_in, steps_in

from heterotrain.contract import StepRecord


def test_samples_of_a_step_are_those_of_all_workers_once(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("4 7,8\n4 7,8\n5 3\n")
    (tmp_path / "killed").write_text("4 9\n5 2,")
    found = samples_in([tmp_path / "one", tmp_path / "killed"])
    assert found == {4: {7, 8, 9}, 5: {3}}


def test_steps_are_read_without_a_torn_last_line(tmp_path: Path) -> None:
    lines = [StepRecord(1.0, step, 0, 1, 8, 8, 0.1, 0.0, 0.5, "").to_json() for step in (3, 4, 5)]
    (tmp_path / "series").write_text("\n".join(lines))
    assert steps_in(tmp_path / "series") == [3, 4]
