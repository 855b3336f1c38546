"""A checkpoint takes at most one copy of the state of memory, and gives it back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from trainer.gang import REPOSITORY


def test_a_checkpoint_takes_one_copy_of_the_state_at_most(tmp_path: Path) -> None:
    script = REPOSITORY / "tests" / "trainer" / "scripts" / "snapshot_memory.py"
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "trainer-image")},
        timeout=240,
    )
    found = json.loads(run.stdout)
    state = found["state"]
    assert state == 200_000_000
    assert found["waiting"] < 0.1 * state, found
    assert 0.9 * state < found["beside"] < 1.1 * state, found
    assert found["kept after beside"] < 0.1 * state, found
    assert found["inherited"] < 0.1 * state, "processes that load data do not keep it"
