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
    its steps, the processes that took part (`lives`), restarts of all of them, and seconds."""

    wrong: list[str] = field(default_factory=list)
    done: list[dict[str, Any]] = field(default_factory=list)
    difference: float | None = None
    steps: int = 0
    lives: int = 0
    restarts: int = 0
    seconds: float = 0.0


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


def faults_found(
    folder: Path, temporary: Path, exit_code: int, outcome: Outcome, *, expected: Expected, shared: set[str]
) -> Iterator[str]:
    """All that is wrong with a job of this folder, in words; what it counts goes into `outcome`. `temporary`: where its
    processes left their temporary files. `shared`: what was in shared memory before the job began."""
    if exit_code != 0:
        yield f"exit code {exit_code}"
    with contextlib.suppress(ValueError, LookupError):
        (trial,) = json.loads((folder / "summary").read_text())["arms"]
        outcome.restarts = int(trial["restarts"])
    yield from _faults_of_model(folder, outcome, expected)
    yield from _left_behind(folder, temporary, shared)
    yield from _grown(folder / "notes")


def _faults_of_model(folder: Path, outcome: Outcome, expected: Expected) -> Iterator[str]:
    """The samples of all steps that were committed, and the weights of all that reached the end."""
    saved = sorted(folder.glob("notes/*.pt"))
    if not saved:
        yield "nobody saved a model"
    else:
        outcome.difference = max(difference(weights_in(path), expected.weights) for path in saved)
        if not outcome.difference <= SAME_WEIGHTS:
            yield f"weights differ by {outcome.difference:.1e}"
    lives = {path.stem: steps_in(path) for path in folder.glob("out/arms/*/workers/*/*.jsonl")}
    steps = set(chain.from_iterable(lives.values()))
    outcome.lives, outcome.steps = len(lives), len(steps)
    for uid, own in lives.items():
        if any(later <= sooner for sooner, later in pairwise(own)):
            yield f"{uid} has committed a step twice, or gone back"
    if lacking := expected.samples.keys() - steps:
        yield f"{len(lacking)} steps that nobody committed, the first is {min(lacking)}"
    seen = samples_in(list(folder.glob("notes/*.samples")))
    if wrong := [step for step, samples in expected.samples.items() if seen.get(step) != samples]:
        yield f"{len(wrong)} steps with other samples, the first is {min(wrong)}"


def _left_behind(folder: Path, temporary: Path, shared: set[str]) -> Iterator[str]:
    deadline = time.monotonic() + 10
    while (pids := processes_that_mention(str(folder))) and time.monotonic() < deadline:
        time.sleep(0.05)
    if pids:
        yield f"processes are left: {pids}"
    left = {
        SHARED_MEMORY: files_in(SHARED_MEMORY) - shared,
        temporary: files_in(temporary) - {"compiled"},
        folder: {each.name for each in folder.rglob("*") if ".partial" in each.name or each.is_socket()},
    }
    yield from (f"left in {where}: {', '.join(sorted(files))}" for where, files in left.items() if files)


def _grown(notes: Path) -> Iterator[str]:
    """Workers that have more open at the end than they had, or others, when they began."""
    ends, starts = [], []
    for path in notes.glob("*.open"):
        lines = [[int(word) for word in line.split()] for line in path.read_text().splitlines()]
        if len(lines) > 2 and path.with_suffix(".pt").exists():
            starts.append(lines[1])
            ends.append((path.stem, open_at_end(lines)))
    for uid, at_end in ends:
        for place, (what, more) in enumerate((("descriptors", MORE_DESCRIPTORS), ("threads", MORE_THREADS))):
            most = max(start[place + 1] for start in starts)
            if at_end[place] > most + more:
                yield f"{uid} has {at_end[place]} {what} at its end, at first {most}"


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
