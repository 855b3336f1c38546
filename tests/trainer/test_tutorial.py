"""The tutorial's part on one machine, done as its page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import follow


@pytest.mark.processes
def test_tutorial_leads_from_a_plain_script_to_one_that_outlives_a_worker(tmp_path: Path) -> None:
    printed = follow("tutorial.md", tmp_path, 280)
    assert (tmp_path / "out" / "best.pt").is_file()
    assert "cpu-500m-0 is killed" in printed
    assert "JobSucceeded" in printed.splitlines()[-1]
