"""Pages of the documentation whose commands tests execute as they stand."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"

_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?[^\n]*\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_LEAVE_NOTHING = "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n"


def files_and_script(page: str) -> tuple[dict[str, str], str]:
    """The blocks of a page that have a title, as files of that name, and its blocks of `sh`, as one script."""
    blocks = _BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))
    files = {title: text for _, title, text in blocks if title}
    return files, "".join(text for language, title, text in blocks if language == "sh" and not title)


def follow(
    page: str,
    folder: Path,
    seconds: float,
    environment: Mapping[str, str] | None = None,
    changed: Callable[[str], str] = str,
) -> str:
    """Do in a folder what a page says, and return what its commands printed. `changed` adapts the script.

    Raises AssertionError, with the output, if a command fails, and subprocess.TimeoutExpired.
    """
    files, script = files_and_script(page)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    given = {**os.environ, **(environment or {})}
    given["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{given['PATH']}"
    with subprocess.Popen(
        ["bash", "-exc", _LEAVE_NOTHING + changed(script)],
        cwd=folder,
        env=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            printed, _ = shell.communicate(timeout=seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM)
    assert shell.returncode == 0, printed
    return printed
