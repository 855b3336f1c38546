"""Where figures come from: when, by which command, on what machine, with which versions and commit."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

GIT_SECONDS = 5.0
LONGEST = 2_000
"""Characters of a command that are kept."""


def provenance_of(words: Sequence[str], now: datetime, here: Path) -> dict[str, str]:
    """What is known of it, in words. `words` are the command line's, `here` is the folder whose commit it is."""
    found = {
        "date": f"{now:%Y-%m-%d %H:%M} UTC",
        "command": shlex.join(words)[:LONGEST],
        "processor": f"{_processor()}, {len(os.sched_getaffinity(0))} cores",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {known}" for name in ("heterotrain", "torch") if (known := _version(name))),
        "commit": _commit(here),
    }
    return {name: value for name, value in found.items() if value}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def _commit(folder: Path) -> str:
    """The commit of the folder, and whether files differ from it; empty if there is none."""
    try:
        head, changed = (
            subprocess.run(
                ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=GIT_SECONDS, check=True
            ).stdout.strip()
            for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{head}{', with changes' if changed else ''}"
