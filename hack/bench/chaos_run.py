"""Run one job under a schedule of faults, and the job without faults with whose end it is compared."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from chaos_faults import disturb
from chaos_findings import SHARED_MEMORY, Expected, Outcome, faults_found, files_in, samples_in, weights_in
from chaos_job import WORKER, Job, Setting, environment, until
from chaos_schedule import PlannedFault, Variant


def undisturbed(folder: Path, setting: Setting) -> Expected:
    """What one process alone comes to."""
    folder.mkdir(parents=True)
    command = [sys.executable, str(WORKER), "--out", str(folder), "--steps", str(setting.steps)]
    subprocess.run(
        [*command, "--batch", str(setting.batch)], check=True, env=environment(folder), timeout=setting.end_seconds
    )
    return Expected(weights_in(folder / "alone.pt"), samples_in([folder / "alone.samples"]))


def run(
    folder: Path, setting: Setting, faults: Sequence[PlannedFault], expected: Expected, variant: Variant
) -> Outcome:
    """Run a job under faults in a folder of its own, and look at its end."""
    outcome, began = Outcome(), time.monotonic()
    shared = files_in(SHARED_MEMORY)
    job = Job(folder, setting, variant)
    try:
        disturb(job, faults, outcome, hurried=variant.hurried)
        outcome.started_seconds = max(outcome.started_seconds - began, 0.0)
        (job.notes / "go").touch()
        if not until(job, job.ended, setting.end_seconds) and not job.ended():
            outcome.wrong.append("it did not end")
    finally:
        job.kill()
    outcome.seconds = time.monotonic() - began
    outcome.wrong += faults_found(job, outcome, expected, shared)
    shutil.rmtree(job.temporary)
    return outcome
