"""`heterotrain init`: write the manifest of a training script."""

from __future__ import annotations

import sys
from pathlib import Path

from heterotrain_operator.api import ManifestError, Problem, parse_manifest
from heterotrain_operator.cli.script_job import ScriptJob, document_of, is_script, manifest_text


def text_of(script: ScriptJob, image: str) -> str:
    """The manifest of a script, for a cluster as for this machine. Raises ManifestError."""
    document = document_of(script, for_cluster=True, image=image)
    parse_manifest(document)
    return manifest_text(document)


def init(script: ScriptJob, image: str, output: Path | None, *, only_print: bool) -> int:
    """Write the manifest to a file that is not there yet, or print it. Returns the exit code.

    Raises ManifestError.
    """
    if not is_script(script.script):
        raise ManifestError([Problem("", "is no Python script (*.py)")])
    text = text_of(script, image)
    if only_print:
        sys.stdout.write(text)
        return 0
    path = output or Path(f"{script.script.stem}.yaml")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ManifestError([Problem(str(path), "is there already; name another file with -o")]) from None
    except OSError as error:
        raise ManifestError([Problem(str(path), f"cannot be written: {error.strerror}")]) from error
    sys.stdout.write(f"{path} is written; run it here with: heterotrain run {path}\n")
    return 0
