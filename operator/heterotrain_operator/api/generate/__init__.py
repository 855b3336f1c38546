"""What is generated from the models: the CustomResourceDefinition, the chart's copy of it, and its reference page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def write_or_check(render: Callable[[], str], path: Path, description: str) -> int:
    """Write the rendered text to `path` (`--out` names another); with `--check` only compare.

    Returns the exit code: 1 if the compared file differs or is absent.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--out", type=Path, default=path, help=f"default: {path}")
    options = parser.parse_args()
    out: Path = options.out
    text = render()
    if not options.check:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
        return 0
    if out.is_file() and out.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{out}: differs from what the models say; run `make manifests`\n")
    return 1
