"""Busy processes beside a worker, inside its limits: what a co-tenant takes from it while its limits stay the same.

Run by its path with the standard library only, this file is such a process: it computes without an end.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Neighbours:
    """The neighbours of one worker; `environment` is theirs, with the token of the runner.

    They end with the worker's limits, with the thread that started them, and, by the token, with what the guardian
    removes: however the runner ends.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def set_count(self, count: int, cpu: int | None, launcher: Sequence[str]) -> None:
        """Let there be so many, started by the launcher's words, on that CPU alone if one is given.

        Raises OSError if no process can be had.
        """
        for process in self._processes[count:]:
            process.kill()
            process.wait()
        del self._processes[count:]
        while len(self._processes) < count:
            words = [*launcher, sys.executable, "-I", "-S", __file__]
            self._processes.append(
                subprocess.Popen(
                    words,
                    env=dict(self.environment),  # nothing of the user's is needed
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
        if cpu is not None:
            for process in self._processes:
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(process.pid, {cpu})

    def end(self) -> None:
        """Kill them, and wait for that; harmless where there are none."""
        self.set_count(0, None, ())


def main() -> None:
    """Compute without an end."""
    number = 1
    while True:
        number = number * 48_271 % 2_147_483_647


if __name__ == "__main__":
    main()
