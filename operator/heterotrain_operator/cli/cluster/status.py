"""`heterotrain status`: the jobs of a cluster in a table, or one of them in full."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console

from heterotrain_operator.cli.cluster.job_state import read_job
from heterotrain_operator.cli.cluster.job_tables import job_view, jobs_table, show

if TYPE_CHECKING:
    from heterotrain_operator.clusters.kube.reading import Reader


def list_jobs(reader: Reader, console: Console, output: str | None, now: datetime, *, everywhere: bool) -> int:
    """Print the jobs of a namespace or of all; `output` is wide, json, yaml or None. Returns the exit code."""
    found = reader.jobs(everywhere=everywhere)
    if output in ("json", "yaml"):
        _write({"apiVersion": "v1", "kind": "List", "items": [_without_bookkeeping(job) for job in found]}, output)
    elif found:
        jobs = [read_job(job) for job in found]
        show(console, jobs_table(jobs, now, everywhere=everywhere, wide=output == "wide", width=console.width))
    else:
        sys.stderr.write(
            f"There are no jobs {'' if everywhere else f'in namespace {reader.namespace}'}".rstrip() + ".\n"
        )
    return 0


def show_job(reader: Reader, name: str, console: Console, output: str | None, now: datetime) -> int:
    """Print one job in full; `output` as for `list_jobs`. Returns the exit code."""
    found = reader.job(name)
    if output in ("json", "yaml"):
        _write(_without_bookkeeping(found), output)
    else:
        show(console, job_view(read_job(found), now, wide=output == "wide", width=console.width))
    return 0


def _without_bookkeeping(job: dict[str, Any]) -> dict[str, Any]:
    """The object without the record of who manages which field, which kubectl hides, too."""
    metadata = {key: value for key, value in job["metadata"].items() if key != "managedFields"}
    return {**job, "metadata": metadata}


def _write(document: dict[str, Any], output: str) -> None:
    text = json.dumps(document, indent=4) + "\n" if output == "json" else yaml.safe_dump(document, sort_keys=False)
    sys.stdout.write(text)
