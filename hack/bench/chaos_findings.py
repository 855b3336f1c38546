"""What is wrong with the end of a job that has been under faults, if anything."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from chaos_job import COMPILED, LOOK_SECONDS, Job

from heterotrain.contract import StepRecord

SAME_WEIGHTS = 1e-10
SHARED_MEMORY = Path("/dev/shm")
MORE_DESCRIPTORS, MORE_THREADS = 4, 2
"""A process may have so many more open at the end than when the job had begun."""
STEPS_OF_END = 100
"""While members change a process has the groups of two generations, so the least that it has open in so many last steps
is what it would keep."""


@dataclass(slots=True)
class Outcome:
    """How a job ended: what is wrong with it in words, the faults as they were done, its longest difference of weights,
    and what its run has counted."""

    wrong: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    difference: float | None = None
    steps: int = 0
    lives: int = 0
    generation: int = 0
    restarts: int = 0
    seconds: float = 0.0
    started_seconds: float = 0.0
    faults_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Expected:
    """The undisturbed run: its weights by name, and the samples of each step."""

    weights: Mapping[str, Any]
    samples: Mapping[int, frozenset[int]]


def weights_in(path: Path) -> dict[str, Any]:
    """The parameters that a worker has saved."""
    import torch  # noqa: PLC0415 - whoever only draws schedules needs no torch

    loaded: dict[str, Any] = torch.load(path, weights_only=True)
    return loaded


def samples_in(paths: Collection[Path]) -> dict[int, frozenset[int]]:
    """Step -> the samples that were trained on in it, by whomever."""
    found: dict[int, set[int]] = {}
    for path in paths:
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # its writer was killed
            step, indices = line.split()
            found.setdefault(int(step), set()).update(map(int, indices.split(",")))
    return {step: frozenset(samples) for step, samples in found.items()}


def steps_in(path: Path) -> list[int]:
    """The steps that a process has recorded as committed; without a last line that it was killed in."""
    lines = path.read_text().splitlines(keepends=True)
    return [StepRecord.from_json(line).step for line in lines if line.endswith("\n")]


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The greatest between two models."""
    if one.keys() != other.keys():
        return float("inf")
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def faults_found(job: Job, outcome: Outcome, expected: Expected, shared: set[str]) -> Iterator[str]:
    """All that is wrong, in words; what the run has counted goes into `outcome`. `shared`: what was in shared memory
    before the job began."""
    yield from _faults_of_end(job, outcome)
    yield from _faults_of_model(job, outcome, expected)
    yield from _left_behind(job, shared)
    yield from _grown(job)


def _faults_of_end(job: Job, outcome: Outcome) -> Iterator[str]:
    if job.command.returncode != 0:
        yield f"exit code {job.command.returncode}"
    with contextlib.suppress(ValueError, LookupError):
        (trial,) = json.loads((job.folder / "summary").read_text())["arms"]
        outcome.restarts = int(trial["restarts"])
    outcome.lives = len(list(job.folder.glob("out/arms/*/workers/*/*.jsonl")))
    plan = job.plan()
    outcome.generation = plan.generation if plan is not None else 0


def _faults_of_model(job: Job, outcome: Outcome, expected: Expected) -> Iterator[str]:
    """The samples of all steps that were committed, and the weights of all that reached the end."""
    saved = sorted(job.notes.glob("*.pt"))
    if not saved:
        yield "nobody saved a model"
    else:
        outcome.difference = max(difference(weights_in(path), expected.weights) for path in saved)
        if not outcome.difference <= SAME_WEIGHTS:
            yield f"weights differ by {outcome.difference:.1e}"
    lives = {path.stem: steps_in(path) for path in job.folder.glob("out/arms/*/workers/*/*.jsonl")}
    steps = set(chain.from_iterable(lives.values()))
    outcome.steps = len(steps)
    for uid, own in lives.items():
        if any(later <= sooner for sooner, later in pairwise(own)):
            yield f"{uid} has committed a step twice, or gone back"
    if lacking := expected.samples.keys() - steps:
        yield f"{len(lacking)} steps that nobody committed, the first is {min(lacking)}"
    seen = samples_in(list(job.notes.glob("*.samples")))
    if wrong := [step for step, samples in expected.samples.items() if seen.get(step) != samples]:
        yield f"{len(wrong)} steps with other samples, the first is {min(wrong)}"


def _left_behind(job: Job, shared: set[str]) -> Iterator[str]:
    mark = str(job.folder)
    deadline = time.monotonic() + 10
    while (pids := processes_that_mention(mark)) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    if pids:
        yield f"processes are left: {pids}"
    if files := files_in(SHARED_MEMORY) - shared:
        yield f"left in {SHARED_MEMORY}: {', '.join(sorted(files))}"
    if files := files_in(job.temporary) - {COMPILED}:
        yield f"temporary files are left: {', '.join(sorted(files))}"
    if parts := [path.name for path in job.folder.rglob("*.partial*")]:
        yield f"partial files are left: {', '.join(sorted(parts))}"
    if sockets := [path.name for path in job.folder.rglob("*") if path.is_socket()]:
        yield f"sockets are left: {', '.join(sorted(sockets))}"


def _grown(job: Job) -> Iterator[str]:
    """Workers that have more open at the end than they had, or others, when they began."""
    ends, starts = [], []
    for path in job.notes.glob("*.open"):
        lines = [[int(word) for word in line.split()] for line in path.read_text().splitlines()]
        if len(lines) > 2 and (job.notes / path.with_suffix(".pt").name).exists():
            starts.append(lines[1])
            ends.append((path.stem, open_at_end(lines)))
    if not starts:
        return
    files, threads = (max(start[place] for start in starts) for place in (1, 2))
    for uid, (at_end, threads_at_end) in ends:
        if at_end > files + MORE_DESCRIPTORS:
            yield f"{uid} has {at_end} descriptors open, at first {files}"
        if threads_at_end > threads + MORE_THREADS:
            yield f"{uid} has {threads_at_end} threads, at first {threads}"


def open_at_end(notes: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Descriptors and threads that a process keeps, of its notes: step, descriptors, threads."""
    last = [note for note in notes if note[0] >= notes[-1][0] - STEPS_OF_END]
    return min(note[1] for note in last), min(note[2] for note in last)


def files_in(folder: Path) -> set[str]:
    """The names of all that is in a folder."""
    return {path.name for path in folder.iterdir()}


def processes_that_mention(text: str) -> list[int]:
    """Live processes with this text in their command line or environment, but for this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            known = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            if text.encode() in known and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found
