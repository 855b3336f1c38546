"""The folder of `--out`: what an experiment leaves in it, and what the next one may replace."""

from __future__ import annotations

import shutil
from pathlib import Path

MARKER = ".heterotrain-run"
"""In a folder that an earlier run made; only such a one is ever replaced."""

WRITTEN = (
    "*.png",
    "*.jsonl",
    "summary.json",
    "results.json",
    "manifest.yaml",
    "scenario.yaml",
    "schedule.yaml",
    "report.html",
)
TRIALS = "arms"
"""The folder of the trials' own files, by its former name, which other programs know."""


def cleared(out: Path) -> Path:
    """Make the folder, remove what an earlier run has left in it, and return its absolute path. Raises OSError."""
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).touch()
    shutil.rmtree(out / TRIALS, ignore_errors=True)
    for pattern in WRITTEN:
        for path in out.glob(pattern):
            path.unlink()
    return out.absolute()
