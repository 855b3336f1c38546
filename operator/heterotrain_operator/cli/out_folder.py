"""The folder of --out, before anything is written to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from heterotrain_operator.api import Problem
from heterotrain_operator.experiments.folder import MARKER


def hindrance_of(folder: Path) -> str:
    """Why a folder cannot be written to or made, empty if it can."""
    there = folder.absolute()
    try:
        while not there.exists():
            there = there.parent
        usable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    except OSError as error:
        return f"{there}: {error.strerror}"
    return "" if usable else str(there)


def out_problems(out: Path, *, fresh: bool) -> Iterator[Problem]:
    """Why a run may not write into a folder; with `fresh` it may replace an earlier one."""
    hindrance = hindrance_of(out)
    if hindrance:
        yield Problem("--out", f"nothing can be written to {out}, because of {hindrance}")
        return
    try:
        if not out.exists() or not any(out.iterdir()):
            return
    except OSError as error:
        yield Problem("--out", f"{out}: {error.strerror}")
        return
    if not (out / MARKER).exists():
        yield Problem("--out", f"{out} is not empty; name a new folder")
    elif not fresh:
        yield Problem("--out", f"{out} holds an earlier run; name another folder, or replace it with --fresh")
