"""Nobody holds a state a second time while it is handed over."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from trainer.gang import REPOSITORY


def test_a_state_is_handed_over_without_a_copy_of_it() -> None:
    script = REPOSITORY / "tests" / "trainer" / "scripts" / "transfer_memory.py"
    run = subprocess.run(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "trainer-image")},
        timeout=240,
    )
    found = json.loads(run.stdout)
    state = found["state"]
    assert state == 200_000_000
    # Two windows at the sender and two at the taker are under way.
    assert found["in place"] < 0.5 * state, found
    assert 0.9 * state < found["anew"] < 1.5 * state, found
