"""What the benchmark of faults reads of a job's end."""

from __future__ import annotations

from pathlib import Path

from chaos_findings import open_at_end, samples_in, steps_in

from heterotrain.contract import StepRecord


def test_samples_and_steps_are_read_without_a_torn_last_line(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("4 7,8\n4 7,8\n5 3\n")
    (tmp_path / "killed").write_text("4 9\n5 2,")
    assert samples_in([tmp_path / "one", tmp_path / "killed"]) == {4: {7, 8, 9}, 5: {3}}
    lines = [StepRecord(1.0, step, 0, 1, 8, 8, 0.1, 0.0, 0.5, "").to_json() for step in (3, 4, 5)]
    (tmp_path / "series").write_text("\n".join(lines))
    assert steps_in(tmp_path / "series") == [3, 4]


def test_what_a_process_has_open_counts_if_it_keeps_it_for_long() -> None:
    """While members change, it has the groups of two generations."""
    calm, changing = [[step, 41, 5] for step in range(0, 460, 10)], [[step, 54, 6] for step in range(460, 500, 10)]
    assert open_at_end([*calm, *changing]) == (41, 5)
    assert open_at_end([[0, 37, 5], *([step, 43, 7] for step in range(10, 500, 10))]) == (43, 7)
