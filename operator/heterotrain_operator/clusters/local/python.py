"""The interpreter under the names that manifests use: here `python` is the one that runs this."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

NAMES = ("python", "python3")
EXECUTABLE_MODE = 0o755


def interpreter_path(spare: Path) -> str:
    """A PATH in which `python` and `python3` are the interpreter that runs this.

    Where its own folder lacks a name, a small script in the folder `spare` stands in: a link would not find
    the packages of a virtual environment.
    """
    own = Path(sys.executable).parent
    folders = [str(own), os.environ.get("PATH", os.defpath)]
    missing = [name for name in NAMES if not (own / name).exists()]
    if missing:
        spare.mkdir(parents=True, exist_ok=True)
        for name in missing:
            script = spare / name
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
            script.chmod(EXECUTABLE_MODE)
        folders.insert(0, str(spare))
    return os.pathsep.join(folders)
