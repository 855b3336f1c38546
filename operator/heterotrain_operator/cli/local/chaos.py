"""`heterotrain chaos`: ask a run on this machine to put a fault on one of its workers, or to take one back.

A random schedule of faults is the same for the same seed, workers and options.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterotrain_operator.cli import BAD_INPUT, FAILED, SUCCEEDED
from heterotrain_operator.experiments import runs
from heterotrain_operator.experiments.control import SOCKET, ControlError, NotRunningError, ask, is_running
from heterotrain_operator.experiments.trials.faults import LASTING, LIST

LEAST_GAP, GREATEST_GAP = 0.5, 1.5
"""Bounds of the time between two faults, as shares of what was asked for: so that faults hit every part of a step."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault for a worker, `at` so many seconds after the schedule began."""

    at: float
    fault: str
    worker: str


def random_faults(seed: int, workers: Sequence[str], faults: Sequence[str], every: float) -> Iterator[PlannedFault]:
    """Faults without an end, one after about `every` seconds each, the first included."""
    draws = random.Random(seed)
    at = 0.0
    while True:
        at += every * (LEAST_GAP + (GREATEST_GAP - LEAST_GAP) * draws.random())
        yield PlannedFault(at, faults[int(draws.random() * len(faults))], workers[int(draws.random() * len(workers))])


LOOK_SECONDS = 0.2
"""How often a schedule of faults looks whether its job has ended."""


class _InputError(Exception):
    """The user asked for what there is not."""


def chaos(asked: argparse.Namespace, here: Path, program: str, pause: Callable[[float], None] = time.sleep) -> int:
    """Do what the user asks, and return the exit code."""
    try:
        _check(asked)
        folder, listed = _run_of(asked.job, here)
        if asked.seed is not None:
            return _randomly(asked, folder, [each["worker"] for each in listed["workers"]], pause)
        if asked.fault is None:
            return _show(listed, as_json=asked.json)
        answer = ask(folder, _question(asked.fault, asked.worker, asked.seconds, asked.neighbours))
    except _InputError as error:
        return _refused(program, str(error), BAD_INPUT)
    except NotRunningError as error:
        return _refused(program, str(error), BAD_INPUT)
    except ControlError as error:
        return _refused(program, str(error), FAILED)
    if "error" in answer:
        return _refused(program, answer["error"], BAD_INPUT if answer.get("kind") == "input" else FAILED)
    _print(json.dumps(answer) if asked.json else f"{answer['message']} (after step {answer['step']})")
    return SUCCEEDED


def _check(asked: argparse.Namespace) -> None:
    """Refuse options that contradict one another."""
    if asked.seed is not None and asked.fault is not None:
        raise _InputError("name a fault, or draw faults at random with --seed, not both")
    if asked.fault is not None and asked.worker is None:
        raise _InputError(f"{asked.fault} which worker? `{asked.job}` alone shows its workers")
    if asked.seconds is not None and asked.fault is not None and asked.fault not in LASTING:
        raise _InputError(f"--for is for {', '.join(LASTING)}; {asked.fault} does not last")


def _run_of(job: str, here: Path) -> tuple[Path, dict[str, Any]]:
    """The folder of the run that is meant, by a job's name or by itself, and its workers.

    Raises _InputError if there is none, or more than one.
    """
    if os.sep in job or job in (".", ".."):
        return Path(job), ask(Path(job), {"do": LIST})
    found = {}
    for folder in runs.entries(here, job):
        if is_running(folder):
            found[folder.resolve()] = folder
    reached = [(folder, listed) for folder in found.values() for listed in [ask(folder, {"do": LIST})]]
    reached = [(folder, listed) for folder, listed in reached if listed.get("job") == job]
    if len(reached) > 1:
        folders = ", ".join(str(folder.relative_to(here)) for folder, _ in reached)
        raise _InputError(f"several runs of job {job!r} go on in this folder; name one by its folder: {folders}")
    if reached:
        return reached[0]
    if (here / job / SOCKET).is_socket():
        return here / job, ask(here / job, {"do": LIST})
    running = [name for name in runs.jobs(here) if any(map(is_running, runs.entries(here, name)))]
    raise _InputError(f"no run of job {job!r} goes on in this folder; running: {', '.join(running) or 'none'}")


def _question(fault: str, worker: str, seconds: float | None, neighbours: int = 1) -> dict[str, Any]:
    question: dict[str, Any] = {"do": fault, "worker": worker, "neighbours": neighbours}
    return question if seconds is None else {**question, "seconds": seconds}


def _show(listed: Mapping[str, Any], *, as_json: bool) -> int:
    """Print the workers and their faults."""
    if as_json:
        _print(json.dumps(listed))
        return SUCCEEDED
    for each in listed["workers"]:
        state = ", ".join(each["faults"]) or "no fault"
        _print(f"{each['worker']}: {state if each['running'] else 'not running'}")
    for group, count in listed.get("added", {}).items():
        _print(f"group {group}: {count} worker{'' if count == 1 else 's'} more than at first")
    return SUCCEEDED


def _randomly(asked: argparse.Namespace, folder: Path, workers: list[str], pause: Callable[[float], None]) -> int:
    """Put faults on workers by a random schedule until it ends or the job does. Returns the exit code."""
    began = time.monotonic()
    for number, planned in enumerate(random_faults(asked.seed, workers, asked.faults, asked.every)):
        if number == asked.count:
            return SUCCEEDED
        while (left := began + planned.at - time.monotonic()) > 0:
            if not (folder / SOCKET).is_socket():
                return SUCCEEDED
            pause(min(left, LOOK_SECONDS))
        seconds = (asked.seconds or asked.every / 2) if planned.fault in LASTING else None
        try:
            answer = ask(folder, _question(planned.fault, planned.worker, seconds, asked.neighbours))
        except NotRunningError:
            return SUCCEEDED
        _print(_planned_words(planned, seconds, answer, as_json=asked.json))
    return SUCCEEDED


def _planned_words(planned: PlannedFault, seconds: float | None, answer: Mapping[str, Any], *, as_json: bool) -> str:
    error = answer.get("error")
    if as_json:
        drawn = {"at": round(planned.at, 3), "do": planned.fault, "worker": planned.worker, "seconds": seconds}
        return json.dumps({**drawn, "step": answer.get("step"), "error": error})
    lasts = "" if seconds is None else f" for {seconds:g} s"
    said = f"not done: {error}" if error else f"after step {answer['step']}"
    return f"{planned.at:8.1f} s  {planned.fault} {planned.worker}{lasts} ({said})"


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _refused(program: str, text: str, code: int) -> int:
    sys.stderr.write(f"{program} chaos: {text}\n")
    return code
