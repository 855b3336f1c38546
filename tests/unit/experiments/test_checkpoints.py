"""Checkpoints on this machine."""

from __future__ import annotations

from pathlib import Path

from heterotrain_operator.experiments import checkpoints


def test_checkpoints_are_moved_aside_not_removed(tmp_path: Path):
    for step in (100, 200):
        (tmp_path / f"step-{step:010d}.pt").touch()
    (tmp_path / ".step-0000000300.pt.partial").touch()
    assert checkpoints.newest_step(tmp_path) == 200
    aside = checkpoints.set_aside(tmp_path)
    assert checkpoints.newest_step(tmp_path) is None
    assert list(checkpoints.steps_in(aside)) == [100, 200]
