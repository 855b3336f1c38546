"""`python -m heterotrain train.py ...`: the script as `python train.py ...` runs it, alone or under a launcher's
variables (`torchrun -m heterotrain train.py`).

The process becomes that of the script, so that nothing between them differs: its signals, and what processes that it
spawns import.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

USAGE = "usage: python -m heterotrain SCRIPT.py [ARGUMENT ...]"


def main() -> None:
    """Become the script; exit with 2 if there is none."""
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_file():
        why = "" if len(sys.argv) < 2 else f"{sys.argv[1]}: there is no such file\n"
        sys.stderr.write(f"{why}{USAGE}\n")
        sys.exit(2)
    options = sys.orig_argv[1 : sys.orig_argv.index("-m")] if "-m" in sys.orig_argv else []
    os.execv(sys.executable, [sys.executable, *options, *sys.argv[1:]])


if __name__ == "__main__":
    main()
