"""The GPUs of this machine, and which of them a worker sees.

torch uses the first GPU that it sees, so that workers that see all of them share one while the others idle. Each worker
is therefore shown one GPU alone, by its UUID, which means the same GPU whatever order a library counts in.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from heterotrain_operator.api import HeteroTrainingJob, Problem
from heterotrain_operator.clusters.local.template import ProcessTemplate
from heterotrain_operator.core.model import WorkerKey

ENV_VISIBLE = "CUDA_VISIBLE_DEVICES"

LIST_SECONDS = 60.0
"""How long a driver may take to list its GPUs: the first call after a start of the machine loads it."""

MOST_GPUS = 64

_LINE = re.compile(r"\s*(?:GPU \d+: (?P<name>.+?)|MIG (?P<slice>\S+).*?) \(UUID: (?P<uuid>(?:GPU|MIG)-[\w/-]+)\)\s*")

_ASK_TORCH = """
import json, torch
print(json.dumps([torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]))
"""

PEAK_FLOPS = {
    "H200": 67e12, "H100": 60e12, "A100": 19.5e12, "A10G": 35e12, "A40": 37.4e12, "L40S": 91.6e12, "L4": 30.3e12,
    "V100": 15.7e12, "T4": 8.1e12, "P100": 10.6e12, "A6000": 38.7e12, "A5000": 27.8e12, "A4000": 19.2e12,
    "RTX 5090": 104.8e12, "RTX 5080": 56.3e12, "RTX 4090": 82.6e12, "RTX 4080": 48.7e12, "RTX 4070": 29.1e12,
    "RTX 4060": 15.1e12, "RTX 3090": 35.6e12, "RTX 3080": 29.8e12, "RTX 3070": 20.3e12, "RTX 3060": 12.7e12,
    "RTX 2080": 10.1e12, "GTX 1080": 8.9e12, "GTX 1070": 6.5e12, "GTX 1060": 4.4e12,
}  # fmt: skip
"""Floating-point operations per second in float32, from the makers' data sheets; of variants the plain one. They only
share out the first batches, which measurements replace.
"""

CORE_FLOPS = 5e10
"""The same of one core of a CPU, roughly: two units of eight float32 lanes at 3 GHz, half used."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a slice of one; `visible` is the value of CUDA_VISIBLE_DEVICES that shows it alone."""

    name: str
    visible: str

    @property
    def flops(self) -> float | None:
        """Its peak in float32, by its name; None for a name that is not known, and for a slice."""
        if self.visible.startswith("MIG"):
            return None
        return next((peak for name, peak in PEAK_FLOPS.items() if re.search(rf"\b{name}\b", self.name)), None)


def detect() -> tuple[Gpu, ...]:
    """The GPUs that this process may use, in the order of `nvidia-smi`, or of CUDA_VISIBLE_DEVICES where that is set;
    where there is no `nvidia-smi`, those that torch finds."""
    return _detected(os.environ.get(ENV_VISIBLE), os.environ.get("PATH"))


@lru_cache(maxsize=4)
def _detected(allowed: str | None, path: str | None) -> tuple[Gpu, ...]:
    if allowed is not None and not allowed.strip():
        return ()
    program = shutil.which("nvidia-smi", path=path)
    found = read_list(_said([program, "-L"])) if program else ()
    if allowed is None and found:
        return found
    if found and allowed is not None:
        return tuple(_named(entry.strip(), found) for entry in allowed.split(",")[:MOST_GPUS])
    return _known_to_torch(allowed)


def read_list(text: str) -> tuple[Gpu, ...]:
    """The GPUs that `nvidia-smi -L` lists; of one that is cut into slices only these, since CUDA shows no more."""
    found: list[Gpu] = []
    whole = ""
    for match in filter(None, map(_LINE.fullmatch, text.splitlines()[:1000])):
        if match["name"]:
            whole = match["name"]
            found.append(Gpu(whole, match["uuid"]))
            continue
        if found and found[-1].name == whole and not found[-1].visible.startswith("MIG"):
            found.pop()
        found.append(Gpu(f"{whole} {match['slice']}", match["uuid"]))
    return tuple(found[:MOST_GPUS])


def _named(entry: str, found: Sequence[Gpu]) -> Gpu:
    """An entry of CUDA_VISIBLE_DEVICES: a number, or the beginning of a UUID. A number may count in another order than
    `nvidia-smi`, so the entry itself is passed on."""
    if entry.isdecimal():
        return Gpu(found[int(entry)].name if int(entry) < len(found) else "GPU", entry)
    return next((Gpu(gpu.name, entry) for gpu in found if gpu.visible.startswith(entry)), Gpu("GPU", entry))


def _known_to_torch(allowed: str | None) -> tuple[Gpu, ...]:
    """Asked in a process of its own: this one has to stay free of torch, and of the driver's threads."""
    try:
        names = json.loads(_said([sys.executable, "-c", _ASK_TORCH]) or "[]")
    except ValueError:
        return ()
    entries = [str(number) for number in range(len(names))] if allowed is None else allowed.split(",")
    return tuple(Gpu(str(name), entry.strip()) for name, entry in zip(names[:MOST_GPUS], entries, strict=False))


def _said(command: Sequence[str]) -> str:
    """What a command prints; empty if it fails."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIST_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout[:100_000] if done.returncode == 0 else ""


class GpuAssignment:
    """Which GPU each worker of a job gets: by the fewest workers that have it already, and of equals the one that it
    had before, since what is known of a worker's speed is known of its GPU.

    A template that sets CUDA_VISIBLE_DEVICES chooses for its group; what it names goes to no other.
    """

    def __init__(self, job: HeteroTrainingJob, templates: Mapping[str, ProcessTemplate]) -> None:
        wanting = [group for group in job.spec.pod_groups if group.device == "gpu"]
        chosen = {group.name: visible_to(templates[group.name]) for group in wanting}
        self._groups = {group.name: group for group in wanting if chosen[group.name] is None}
        own = set(chosen.values())
        self._gpus = [gpu for gpu in detect() if gpu.visible not in own] if self._groups else []
        self._before: dict[str, str] = {}

    def choose(self, key: WorkerKey, taken: Collection[str]) -> str | None:
        """What a worker that is to start sees of the GPUs: one; nothing where its group may use the CPU and all are
        taken. None where that is not decided here."""
        group = self._groups.get(key.group)
        if group is None or not self._gpus:
            return None
        used, before = Counter(taken), self._before.get(key.name)
        gpu = min(self._gpus, key=lambda gpu: (used[gpu.visible], gpu.visible != before))
        if used[gpu.visible] and group.on_missing_device == "UseCPU":
            return ""
        self._before[key.name] = gpu.visible
        return gpu.visible


def visible_to(template: ProcessTemplate) -> str | None:
    """What a template shows its workers of the GPUs by itself; None where it says nothing of them."""
    return next((entry.value for entry in template.environment if entry.name == ENV_VISIBLE), None)


def gpu_problems(job: HeteroTrainingJob, templates: Mapping[str, ProcessTemplate]) -> Iterator[Problem]:
    """Why the GPUs of this machine do not do for a job that needs one for each of some workers."""
    wanting = [group for group in job.spec.worker_groups if group.device == "gpu"]
    strict = [group for group in wanting if group.on_missing_device != "UseCPU"]
    strict = [group for group in strict if visible_to(templates[group.name]) is None]
    wanted, there = sum(group.replicas for group in strict), detect() if strict else ()
    pinned = {visible_to(templates[group.name]) for group in wanting}
    free = [gpu for gpu in there if gpu.visible not in pinned]
    if wanted > len(free):
        place = f"spec.workerGroups[{job.spec.worker_groups.index(strict[0])}].device"
        yield Problem(
            place,
            f"{f'{wanted} workers want a GPU each' if wanted > 1 else 'a worker wants a GPU'}, and this machine has "
            f"{described(free)}; ask for fewer, or set onMissingDevice: UseCPU",
        )


def described(gpus: Sequence[Gpu]) -> str:
    """For messages."""
    return ", ".join(f"gpu:{number} {gpu.name}" for number, gpu in enumerate(gpus)) or "none"
