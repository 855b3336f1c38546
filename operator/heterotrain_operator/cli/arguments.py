"""What stands on a command line as values: a type of argparse for each kind, and what is said of a wrong one."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from decimal import Decimal
from itertools import chain
from typing import Any

from heterotrain_operator.api.problems import did_you_mean
from heterotrain_operator.api.quantity import parse_quantity
from heterotrain_operator.cli.script_job import WorkerSpec
from heterotrain_operator.experiments.trials.faults import FAULTS

MOST_WORKERS = 1000
"""Workers that one machine can be asked for: each is a process that loads torch."""

WORKERS_EXAMPLE = "3, 1.0,0.5,250m, 3x1.0,2x0.5 or gpu:0,gpu:1,cpu:2.0"


class Parser(argparse.ArgumentParser):
    """Asks about words that are nearly right, also about options that are cut short."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given, allow_abbrev=False)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            asked = did_you_mean(str(value), known) or f" (choose from {', '.join(known)})"
            raise argparse.ArgumentError(action, f"invalid choice: {str(value)[:60]!r}{asked}")


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Whole numbers within bounds."""

    def parsed(text: str) -> int:
        short = text.isascii() and text.isdecimal() and len(text) <= 20
        if not short or int(text) < least or (most is not None and int(text) > most):
            bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"must be a whole number {bounds}, found {text[:40]!r}")
        return int(text)

    return parsed


def seconds(text: str) -> float:
    """A duration."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, found {text[:40]!r}")
    return found


def names(text: str) -> tuple[str, ...]:
    """Policies."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise argparse.ArgumentTypeError("names no policy")
    return found


def faults(text: str) -> tuple[str, ...]:
    """Faults of `chaos`."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in found if name not in FAULTS]
    if unknown or not found:
        asked = did_you_mean(unknown[0], FAULTS) if unknown else ""
        raise argparse.ArgumentTypeError(
            f"there is no fault {', '.join(unknown)!r}; there are {', '.join(FAULTS)}{asked}"
        )
    return found


_TIMES = re.compile(r"(\d{1,6})\s*[x*]\s*(.+)", re.ASCII)
_GPU = re.compile(r"gpu(?::(\d{1,4}))?", re.ASCII)


def workers(text: str) -> tuple[WorkerSpec, ...]:
    """Workers, as in WORKERS_EXAMPLE. A whole number alone is that many workers of one core each."""
    if text.strip().isascii() and text.strip().isdecimal():
        text = f"{text}x1"
    found = tuple(chain.from_iterable(_alike(part.strip()) for part in text.split(",")))
    if len(found) > MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"at most {MOST_WORKERS} workers, found {len(found)}")
    given = [spec.gpu for spec in found if spec.gpu is not None]
    twice = sorted({number for number in given if given.count(number) > 1})
    if twice:
        raise argparse.ArgumentTypeError(f"gpu:{twice[0]} is named twice; a GPU has one worker")
    if any(spec.every_gpu for spec in found) and sum(spec.on_gpu for spec in found) > 1:
        raise argparse.ArgumentTypeError("gpus is a worker on each GPU; no other worker can have one")
    return found


def _alike(part: str) -> list[WorkerSpec]:
    """One entry of the list: a worker, or several alike."""
    times = _TIMES.fullmatch(part)
    count, word = (min(int(times[1]), MOST_WORKERS + 1), times[2].strip()) if times else (1, part)
    if count < 1:
        raise argparse.ArgumentTypeError(f"a number of workers is at least 1, found {times[1] if times else part}")
    if word == "gpus":
        return [WorkerSpec(on_gpu=True, every_gpu=True)] * count
    if gpu := _GPU.fullmatch(word):
        return [WorkerSpec(on_gpu=True, gpu=None if gpu[1] is None else int(gpu[1]))] * count
    return [WorkerSpec(_limit(word.removeprefix("cpu:"), part))] * count


def _limit(word: str, part: str) -> Decimal:
    try:
        limit = parse_quantity(word)
    except ValueError:
        asked = did_you_mean(word, ("gpu", "gpus")) if word.isalpha() else ""
        raise argparse.ArgumentTypeError(
            f"must be CPU limits or GPUs, such as {WORKERS_EXAMPLE}; found {part[:40]!r}{asked}"
        ) from None
    if limit * 1000 < 1 or limit * 1000 % 1:
        raise argparse.ArgumentTypeError(
            f"a CPU limit must be at least 1m, and of whole thousandths of a core; found {part[:40]!r}"
        )
    return limit
