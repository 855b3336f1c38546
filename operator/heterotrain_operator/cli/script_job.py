"""The manifest of a job that is only a script and a few words on the command line; `heterotrain init` writes it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from heterotrain_operator.api import API_VERSION, KIND, ManifestError, Problem, parse_manifest
from heterotrain_operator.api.base import MAX_GROUP_NAME
from heterotrain_operator.api.document import NUMBER, NUMBER_TAG, near_miss
from heterotrain_operator.cli.script_look import Asked
from heterotrain_operator.clusters.local import gpus

SUFFIX = ".py"
SAMPLES_EACH = 64
"""Samples of the default global batch for each worker, on average."""
EPOCHS = 1
IMAGE = "heterotrain-trainer:0.1.0"
MOUNTED = Path("/checkpoints")
"""Where a claim is mounted by default."""

_IMAGE_GROUP = 65532
_POD_SECURITY: dict[str, Any] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
_CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker that `--workers` asks for: by its CPU limit in cores, or on a GPU. `gpu` is that GPU's number, None: any
    that is free; `every_gpu` stands for a worker on each GPU that there is.
    """

    cores: Decimal = Decimal(0)
    on_gpu: bool = False
    gpu: int | None = None
    every_gpu: bool = False

    @property
    def group(self) -> str:
        """The name of the group of such workers."""
        if self.on_gpu:
            return "gpu" if self.gpu is None else f"gpu-{self.gpu}"
        return f"cpu-{_milli(self.cores)}m"


WORKERS = (WorkerSpec(Decimal(1)), WorkerSpec(Decimal("0.5")), WorkerSpec(Decimal("0.25")))
"""The workers by default: as unequal as those of the examples."""


@dataclass(frozen=True, slots=True)
class ScriptJob:
    """A script with its arguments, its workers, samples per step, the end (epochs or steps), the seed, and the folder
    where checkpoints are kept (None: they go with the run). `claim` is that of a cluster which is mounted there. Its
    `name` is else made from the script's. Where another field is None, what the script itself says counts (`asked`),
    and then a default of this module.
    """

    script: Path
    workers: tuple[WorkerSpec, ...] | None = None
    global_batch: int | None = None
    epochs: int | None = None
    steps: int | None = None
    arguments: tuple[str, ...] = ()
    seed: int | None = None
    checkpoints: Path | None = None
    claim: str | None = None
    asked: Asked = field(default_factory=Asked)
    name: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to what the script says."""
        return None not in (self.global_batch, self.seed) and (self.epochs or self.steps) is not None


@dataclass(frozen=True, slots=True)
class Terms:
    """What a script's job is to do, and in words who said each of it."""

    training: dict[str, int]
    sources: dict[str, str]


def terms_of(job: ScriptJob, workers: int) -> Terms:
    """What is in force: the command line, else the script, else a default."""
    asked, join = job.asked, f"join() in {job.script.name}"
    loader = f"the DataLoader in {job.script.name}"
    epochs = [("epochs", job.epochs, "--epochs"), ("epochs", asked.epochs, join), ("epochs", EPOCHS, "default")]
    steps = [("steps", job.steps, "--steps"), ("steps", asked.steps, join)]
    ends = [epochs[0], steps[0], steps[1], *epochs[1:]]
    batches = [
        ("globalBatchSize", job.global_batch, "--global-batch"),
        ("globalBatchSize", asked.batch_size, join),
        ("globalBatchSize", asked.loader_batch_size, loader),
        ("globalBatchSize", SAMPLES_EACH * workers, f"default, {SAMPLES_EACH} for each worker"),
    ]
    seeds = [("seed", job.seed, "--seed"), ("seed", asked.seed, join), ("seed", 0, "default")]
    chosen = [next(each for each in choices if each[1] is not None) for choices in (batches, ends, seeds)]
    training = {name: value for name, value, _ in chosen if value is not None}
    return Terms(training, {name: source for name, _, source in chosen})


def placed(job: ScriptJob) -> tuple[WorkerSpec, ...]:
    """The workers, GPUs first, with each GPU of the machine named where all were asked for. Raises ManifestError for
    GPUs that are not there."""
    specs = list(job.workers or WORKERS)
    there = gpus.detect() if any(spec.every_gpu or spec.gpu is not None for spec in specs) else ()
    numbers = [number for spec in specs if spec.every_gpu for number in range(len(there))]
    if any(spec.every_gpu for spec in specs) and not numbers:
        raise ManifestError([Problem("--workers", "gpus: no GPU was found on this machine")])
    specs = [spec for spec in specs if not spec.every_gpu]
    specs += [WorkerSpec(on_gpu=True, gpu=number) for number in numbers]
    gone = next((spec.gpu for spec in specs if spec.gpu is not None and spec.gpu >= len(there)), None)
    if gone is not None:
        raise ManifestError(
            [Problem("--workers", f"there is no gpu:{gone} on this machine; there is {gpus.described(there)}")]
        )
    return tuple(sorted(specs, key=lambda spec: (not spec.on_gpu, spec.gpu is None, spec.gpu or 0, -spec.cores)))


def is_script(path: Path) -> bool:
    """Whether a file is run as it is, not read as a manifest."""
    return path.suffix == SUFFIX


def job_name(script: Path) -> str:
    """A job's name from that of its script: lower-case letters, digits and dashes, first a letter."""
    name = re.sub(r"[^a-z0-9]+", "-", script.stem.lower()).strip("-")[:MAX_GROUP_NAME].strip("-")
    return name if re.match(r"[a-z]", name) else f"job-{name}".strip("-")


def document_of(job: ScriptJob, *, for_cluster: bool = False, image: str = IMAGE) -> dict[str, Any]:
    """The job as a manifest's document, with all that a cluster asks for if it is for one.

    Raises ManifestError if the script is not there, or a GPU.
    """
    if not job.script.is_file():
        gone = f"there is no such file{near_miss(job.script)}"
        raise ManifestError([Problem(str(job.script), "is no file" if job.script.exists() else gone)])
    workers = placed(job)
    known = gpus.detect() if any(spec.gpu is not None for spec in workers) else ()
    groups = [
        _group_of(job, spec, len(list(alike)), known, image if for_cluster else None)
        for spec, alike in groupby(workers)
    ]
    folder = job.checkpoints or (MOUNTED if job.claim else None)
    claim = {"persistentVolumeClaim": job.claim} if job.claim else {}
    kept = {} if folder is None else {"checkpoint": {"path": str(folder.absolute()), **claim}}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": job.name or job_name(job.script)},
        "spec": {"workerGroups": groups, "training": terms_of(job, len(workers)).training, **kept},
    }


def _group_of(
    job: ScriptJob, spec: WorkerSpec, replicas: int, known: Sequence[gpus.Gpu], image: str | None
) -> dict[str, Any]:
    """Workers that are alike; `known` are the GPUs of this machine where some worker has one of them by its number."""
    group: dict[str, Any] = {"name": spec.group, "replicas": replicas}
    if spec.on_gpu:
        group["device"] = "gpu"
    if known:  # beside GPUs that differ, cores say nothing of how fast a worker is
        flops = float(spec.cores) * gpus.CORE_FLOPS if spec.gpu is None else known[spec.gpu].flops
        group |= {"flops": flops} if flops else {}
    pod = _pod_of(job, spec, image)
    if spec.gpu is not None and image is None:
        pod["containers"][0]["env"] = [{"name": gpus.ENV_VISIBLE, "value": known[spec.gpu].visible}]
    return {**group, "template": {"spec": pod}}


def _pod_of(job: ScriptJob, spec: WorkerSpec, image: str | None) -> dict[str, Any]:
    """The spec of a worker's pod: the script under its CPU limit, and with an image all that a cluster asks for."""
    command = ["python", str(job.script), *job.arguments]
    cpu = {} if spec.on_gpu else {"cpu": _cores(spec.cores)}
    limits = {"resources": {"limits": cpu}} if cpu else {}
    if image is None:
        return {"containers": [{"name": "trainer", "command": command, **limits}]}
    container = {
        "name": "trainer",
        "image": image,
        "command": command,
        "securityContext": dict(_CONTAINER_SECURITY),
        **({"resources": {"requests": cpu, "limits": cpu}} if cpu else {}),
    }
    # The group of the image's user, who may write to the volume then.
    group = {"fsGroup": _IMAGE_GROUP} if job.claim else {}
    return {"securityContext": _POD_SECURITY | group, "containers": [container]}


def manifest_text(document: dict[str, Any]) -> str:
    """A document as YAML, with a comment that says what is left to decide."""
    return (
        "# Run it here with `heterotrain run`. On a cluster, the image must hold the script at its path in command.\n"
        f"{yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=110)}"
    )


class _Dumper(yaml.SafeDumper):
    """Writes no anchors, which a reader would have to follow, and quotes around all text that reads like a number."""

    def ignore_aliases(self, data: object) -> bool:
        return True


_Dumper.add_implicit_resolver(NUMBER_TAG, NUMBER, None)


def _milli(limit: Decimal) -> int:
    return int(limit * 1000)


def _cores(limit: Decimal) -> str:
    """As Kubernetes writes it."""
    return f"{_milli(limit)}m" if _milli(limit) % 1000 else str(_milli(limit) // 1000)


def text_of(script: ScriptJob, image: str) -> str:
    """The manifest of a script, for a cluster as for this machine. Raises ManifestError."""
    document = document_of(script, for_cluster=True, image=image)
    parse_manifest(document)
    sources = terms_of(script, len(placed(script))).sources
    said = ", ".join(f"{name}: {source}" for name, source in sources.items())
    return f"# {said}.\n{manifest_text(document)}"


def init(script: ScriptJob, image: str, output: Path | None, *, only_print: bool, as_json: bool = False) -> int:
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
    if as_json:
        sys.stdout.write(json.dumps({"manifest": str(path)}) + "\n")
    else:
        sys.stdout.write(f"{path} is written; run it here with: heterotrain run {path}\n")
    return 0
