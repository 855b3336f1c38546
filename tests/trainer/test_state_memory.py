"""A checkpoint takes at most one copy of the state of memory, and gives it back; handing a state over takes none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from trainer.gang import REPOSITORY

STATE = 200_000_000
"""Bytes."""


def measured(script: str, *arguments: str) -> dict[str, float]:
    """What a script of this folder says that it took of memory, in bytes, in a process of its own."""
    run = subprocess.run(
        [sys.executable, str(REPOSITORY / "tests" / "trainer" / "scripts" / script), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "trainer-image")},
        timeout=240,
    )
    found: dict[str, float] = json.loads(run.stdout)
    assert found["state"] == STATE
    return found


def test_a_checkpoint_takes_one_copy_of_the_state_at_most(tmp_path: Path) -> None:
    found = measured("snapshot_memory.py", str(tmp_path))
    assert found["waiting"] < 0.1 * STATE, found
    assert 0.9 * STATE < found["beside"] < 1.1 * STATE, found
    assert found["kept after beside"] < 0.1 * STATE, found
    assert found["inherited"] < 0.1 * STATE, "processes that load data do not keep it"


def test_a_state_is_handed_over_without_a_copy_of_it() -> None:
    found = measured("transfer_memory.py")
    # Two windows at the sender and two at the taker are under way.
    assert found["in place"] < 0.5 * STATE, found
    assert 0.9 * STATE < found["into new"] < 1.5 * STATE, found
