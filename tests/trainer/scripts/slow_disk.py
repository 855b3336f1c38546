"""Runs a script on a disk that is slow: each checkpoint that the leader writes takes until the test lets it go on.

usage: slow_disk.py FIFO SCRIPT [ARGUMENT ...]

What is written to the FIFO lets one checkpoint go on for each byte. FREEZES="WORKER STEP" freezes a worker in a step.
"""

import os
import runpy
import signal
import stat
import sys
from typing import Any

from heterotrain.session import Session

fifo, *sys.argv = sys.argv[1:]
sync = os.fsync


def slow_sync(descriptor: int) -> None:
    if stat.S_ISREG(os.fstat(descriptor).st_mode):  # folders are synced, too
        with open(fifo, "rb", buffering=0) as allowed:  # noqa: PTH123
            assert allowed.read(1)
    sync(descriptor)


frozen, _, step = os.environ.get("FREEZES", "").partition(" ")
scale = Session.scale


def freezing_scale(session: Session, *given: Any) -> Any:
    if os.environ["HETEROTRAIN_WORKER"] == frozen and session.step == int(step):
        os.kill(os.getpid(), signal.SIGSTOP)
    return scale(session, *given)


os.fsync, Session.scale = slow_sync, freezing_scale
runpy.run_path(sys.argv[0], run_name="__main__")
