"""Stop all processes of a worker, and let them go on: what a machine that hangs does to it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable


def set_stopped(pids: Callable[[], set[int]], *, stopped: bool) -> None:
    """Send SIGSTOP, or SIGCONT, to all processes, those included that they start meanwhile."""
    number = signal.SIGSTOP if stopped else signal.SIGCONT
    reached: set[int] = set()
    while left := pids() - reached:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        reached |= left
