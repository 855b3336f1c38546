"""Where kubectl, helm and docker are: in PATH, or where `make kind` has put what it built."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


def program(name: str) -> str:
    """The path of a program. Raises AssertionError if there is none."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(os.environ.get("HETEROTRAIN_CACHE") or caches / "heterotrain")
    found = shutil.which(name) or shutil.which(name, path=str(cache / "bin"))
    assert found is not None, f"there is no {name} in PATH, nor has `make kind` built one"
    return found


def run(name: str, *arguments: str | Path, text: str | None = None, seconds: float = 60.0) -> str:
    """Run a program to its end and return what it printed; `text` is its input.

    Raises AssertionError, with what it complained about, if it fails.
    """
    command = [program(name), *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, f"{name} {' '.join(command[1:])}: {done.stderr.strip() or done.stdout.strip()}"
    return done.stdout
