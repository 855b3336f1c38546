"""Which CPU each worker runs on while policies are compared: one machine stands in for several.

Left alone, the scheduler now and then puts two workers on one CPU while another idles; on machines of their own they
would not disturb each other so.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def place(limits: Mapping[str, float | None], cpus: Sequence[int]) -> dict[str, int]:
    """A CPU for each worker so that the limits on each CPU, in cores, add up to at most one; first fit, largest first.

    Empty if that cannot be: a worker without a limit or with more than one core, or too many for the machine.
    """
    free = dict.fromkeys(cpus, 1.0)
    placed: dict[str, int] = {}
    for name, cores in sorted(limits.items(), key=lambda item: (-(item[1] or 0.0), item[0])):
        fitting = [cpu for cpu in cpus if cores is not None and cores <= free[cpu] + 1e-9]
        if cores is None or not fitting:
            return {}
        placed[name] = fitting[0]
        free[fitting[0]] -= cores
    return placed


def move(pids: Iterable[int], cpu: int) -> None:
    """Let all threads of these processes run on that CPU alone; those that have ended meanwhile are passed over."""
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # The first thread first: those that start meanwhile inherit from it.
            for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda task: int(task.name)):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(task.name), {cpu})
