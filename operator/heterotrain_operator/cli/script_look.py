"""What a training script asks for itself: a first, short look at it, which ends at its `heterotrain.join()`.

The script is started alone, with its arguments, since epochs and batch sizes mostly come from its own options. Where
`join()` names no batch size, the look goes on to `prepare()`, for the DataLoader's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

from heterotrain.contract import ENV_LOOK
from heterotrain.foreign import is_whole, shown
from heterotrain_operator.api import ManifestError, Problem
from heterotrain_operator.clusters.local.limits.mechanism import launcher
from heterotrain_operator.experiments.trials.stop import stop_signals

LOOK_SECONDS = 60.0
"""A script that takes longer to come to its `join()`, or to `prepare()`, is not waited for: defaults hold."""

_POLL_SECONDS = 0.05

OWN_PREFIX = "HETEROTRAIN_"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a script says to `join()`, and the batch size of the DataLoader that it gives to `prepare()`."""

    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    seed: int | None = None
    loader_batch_size: int | None = None


def look_at(script: Path, arguments: Sequence[str], seconds: float = LOOK_SECONDS) -> Asked:
    """What a script asks for; nothing where it comes to no `join()` in time. What goes wrong with it is not said here:
    the workers that run it say that. The script never outlives this process. Raises Interrupted, and
    ManifestError where it asks for what cannot be."""
    with (
        stop_signals() as stop,
        tempfile.TemporaryDirectory(prefix="heterotrain-look-", ignore_cleanup_errors=True) as folder,
    ):
        answer = Path(folder) / "asked.json"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(OWN_PREFIX)}
        process = subprocess.Popen(
            [*launcher(()), sys.executable, str(script), *arguments],
            env=inherited | {ENV_LOOK: str(answer), "TMPDIR": folder},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + seconds
        try:
            while process.poll() is None and time.monotonic() < deadline:
                stop.check()
                time.sleep(_POLL_SECONDS)
        finally:
            with suppress(ProcessLookupError):  # also what it started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return _read(answer, script.name)


def _read(answer: Path, script: str) -> Asked:
    """Raises ManifestError where the script asks for what cannot be: alone it would fail, and in a job say nothing."""
    try:
        found = json.loads(answer.read_text(encoding="utf-8")[:10_000])
    except (OSError, ValueError):
        return Asked()
    if not isinstance(found, dict):
        return Asked()
    values = {each.name: found[each.name] for each in fields(Asked) if found.get(each.name) is not None}
    for name, value in values.items():
        least = 0 if name == "seed" else 1
        if not is_whole(value, low=least):
            said = f"must be a whole number of at least {least}, found {shown(value)}"
            raise ManifestError([Problem(f"{script}: {name} of join()", said)])
    return Asked(**values)
