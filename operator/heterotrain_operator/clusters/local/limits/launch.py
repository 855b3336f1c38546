"""Start a worker: enter its limits, have the kernel end it with the runner, then become the user's command.

It uses the standard library only and is run by its path, so that it starts quickly. The runner itself cannot enter a
cgroup between fork and exec, because it has threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
EXIT_CANNOT_RUN = 126
EXIT_NOT_FOUND = 127


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; exit at once if the parent has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(EXIT_CANNOT_RUN)


def main(arguments: Sequence[str]) -> int:
    """`launch.py PARENT [JOIN...] -- COMMAND [ARGUMENT...]`; JOIN are files that take this process' id."""
    split = arguments.index("--")
    parent, joins, command = int(arguments[0]), arguments[1:split], arguments[split + 1 :]
    die_with(parent)
    try:
        for join in joins:
            Path(join).write_text(str(os.getpid()), encoding="ascii")
    except OSError as error:
        sys.stderr.write(f"cannot enter the limits of this worker: {error}\n")
        return EXIT_CANNOT_RUN
    try:
        os.execvp(command[0], list(command))
    except FileNotFoundError:
        sys.stderr.write(f"command not found: {command[0]}\n")
        return EXIT_NOT_FOUND
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]}: {error.strerror}\n")
        return EXIT_CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
