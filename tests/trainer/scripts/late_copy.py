"""Runs a script whose checkpoints are copied as late as can be: once the training waits for it.

usage: late_copy.py SCRIPT [ARGUMENT ...]
"""

import runpy
import sys
import threading

from heterotrain.state.snapshot import Snapshots
from heterotrain.state.state_copy import StateCopy

_, *sys.argv = sys.argv
fill, before_change = StateCopy.fill, Snapshots.before_change
waited_for = threading.Event()


def late_fill(copy: StateCopy) -> None:
    assert waited_for.wait(60), "nobody waits for the copy"
    waited_for.clear()
    fill(copy)


def noted_before_change(snapshots: Snapshots) -> None:
    if snapshots.under_way:
        waited_for.set()
    before_change(snapshots)


StateCopy.fill, Snapshots.before_change = late_fill, noted_before_change
runpy.run_path(sys.argv[0], run_name="__main__")
