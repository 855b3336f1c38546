"""The manifest of a job that is only a script and a few words on the command line; `heterotrain init` writes it."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from heterotrain_operator.api import API_VERSION, KIND, ManifestError, Problem, parse_manifest
from heterotrain_operator.api.base import MAX_GROUP_NAME

SUFFIX = ".py"
WORKERS = (Decimal(1), Decimal("0.5"), Decimal("0.25"))
"""CPU limits of the workers by default: as unequal as those of the examples."""
SAMPLES_EACH = 64
"""Samples of the default global batch for each worker, on average."""
EPOCHS = 1
IMAGE = "heterotrain-trainer:0.1.0"

_POD_SECURITY = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
_CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@dataclass(frozen=True, slots=True)
class ScriptJob:
    """A script with its arguments, the CPU limit of each worker in cores, samples per step, and the end: epochs or
    steps. Where a field is None, this module chooses a default.
    """

    script: Path
    workers: tuple[Decimal, ...] | None = None
    global_batch: int | None = None
    epochs: int | None = None
    steps: int | None = None
    arguments: tuple[str, ...] = ()


def is_script(path: Path) -> bool:
    """Whether a file is run as it is, not read as a manifest."""
    return path.suffix == SUFFIX


def job_name(script: Path) -> str:
    """A job's name from that of its script: lower-case letters, digits and dashes, first a letter."""
    name = re.sub(r"[^a-z0-9]+", "-", script.stem.lower()).strip("-")[:MAX_GROUP_NAME].strip("-")
    return name if re.match(r"[a-z]", name) else f"job-{name}".strip("-")


def document_of(job: ScriptJob, *, for_cluster: bool = False, image: str = IMAGE) -> dict[str, Any]:
    """The job as a manifest's document, with all that a cluster asks for if it is for one.

    Raises ManifestError if the script is not there.
    """
    if not job.script.is_file():
        raise ManifestError(
            [Problem(str(job.script), "is no file" if job.script.exists() else "there is no such file")]
        )
    workers = job.workers or WORKERS
    end = {"steps": job.steps} if job.steps is not None else {"epochs": job.epochs or EPOCHS}
    groups = [
        {
            "name": f"cpu-{_milli(limit)}m",
            "replicas": len(list(alike)),
            "template": {"spec": _pod_of(job, limit, image if for_cluster else None)},
        }
        for limit, alike in groupby(sorted(workers, reverse=True))
    ]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": job_name(job.script)},
        "spec": {
            "workerGroups": groups,
            "training": {"globalBatchSize": job.global_batch or SAMPLES_EACH * len(workers), **end},
        },
    }


def _pod_of(job: ScriptJob, limit: Decimal, image: str | None) -> dict[str, Any]:
    """The spec of a worker's pod: the script under its CPU limit, and with an image all that a cluster asks for."""
    command = ["python", str(job.script), *job.arguments]
    limits = {"limits": {"cpu": _cores(limit)}}
    if image is None:
        return {"containers": [{"name": "trainer", "command": command, "resources": limits}]}
    container = {
        "name": "trainer",
        "image": image,
        "command": command,
        "securityContext": dict(_CONTAINER_SECURITY),
        "resources": {"requests": {"cpu": _cores(limit)}, **limits},
    }
    return {"securityContext": dict(_POD_SECURITY), "containers": [container]}


def manifest_text(document: dict[str, Any]) -> str:
    """A document as YAML, with a comment that says what is left to decide."""
    return (
        "# Run it here with `heterotrain run`. On a cluster, the image must hold the script at its path in command.\n"
        f"{yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=110)}"
    )


class _Dumper(yaml.SafeDumper):
    """Writes no anchors, which a reader would have to follow."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _milli(limit: Decimal) -> int:
    return int(limit * 1000)


def _cores(limit: Decimal) -> str:
    """As Kubernetes writes it."""
    return f"{_milli(limit)}m" if _milli(limit) % 1000 else str(_milli(limit) // 1000)


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
