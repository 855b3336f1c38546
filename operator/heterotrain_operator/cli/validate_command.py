"""`heterotrain validate`: all that is wrong with a manifest, before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path

from heterotrain_operator.api import ManifestError, load_manifest
from heterotrain_operator.clusters.local.template import read_templates


def validate(manifest: Path) -> int:
    """Say what a manifest describes. Returns the exit code. Raises ManifestError."""
    job = load_manifest(manifest)
    groups = len(job.spec.worker_groups)
    sys.stdout.write(
        f"{manifest} is valid: {job.metadata.name}, {job.spec.replicas} "
        f"{'worker' if job.spec.replicas == 1 else 'workers'} in {groups} {'group' if groups == 1 else 'groups'}, "
        f"global batch {job.spec.global_batch_size}, policy {job.spec.batching.policy}\n"
    )
    try:
        read_templates(job)
    except ManifestError as error:
        sys.stdout.write("It cannot run on this machine, though:\n")
        for problem in error.problems:
            sys.stdout.write(f"  {problem}\n")
    return 0
