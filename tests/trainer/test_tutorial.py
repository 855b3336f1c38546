"""The tutorial's part on one machine, done as its page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import follow


def shorter(script: str) -> str:
    """With fewer epochs where they only take time, and looks that come sooner."""
    for asked, instead in {
        "--epochs 2\n": "--epochs 1\n",
        "--workers 1.0,0.5,0.25\n": "--workers 1.0,0.5,0.25 -- --epochs 2\n",
        "epoch 5:": "epoch 1:",
        "sleep 5": "sleep 1",
    }.items():
        assert asked in script, f"the page says {asked!r} no more"
        script = script.replace(asked, instead)
    return script


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_tutorial_leads_from_a_plain_script_to_one_that_outlives_a_worker(tmp_path: Path) -> None:
    printed = follow("tutorial.md", tmp_path, 580, changed=shorter)
    assert (tmp_path / "out" / "best.pt").is_file()
    course = printed.rpartition("+ heterotrain explain out/faults")[2]
    assert "train-cpu-500m-0 is killed" in course
    assert "train-cpu-500m-1 join" in course
