"""The options of `heterotrain chaos`."""

from __future__ import annotations

import argparse
import math

from heterotrain_operator.clusters.local.chaos import GREATEST_NEIGHBOURS, STARVED_CORES
from heterotrain_operator.experiments.trials.faults import FAULTS, LASTING, UNDOES

Commands = argparse._SubParsersAction

EVERY_SECONDS = 30.0


def add_chaos(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add `chaos`."""
    chaos = commands.add_parser(
        "chaos",
        help="put faults on the workers of a job that runs on this machine",
        usage="%(prog)s [options] JOB [FAULT WORKER]\n       %(prog)s [options] JOB --seed N",
        description="Put faults on the workers of a job that `heterotrain run` runs in this folder; without a fault, "
        "show its workers and the faults that they have. Exit code: 0 done, 1 the fault could not be had, 2 bad input, "
        "such as a job that does not run.",
        epilog=f"kill: SIGKILL to all processes of the worker. stop: SIGSTOP to them, until `continue`. slow: a busy "
        f"process shares its CPU limit, starve: it has {STARVED_CORES:g} cores, both until `restore`. partition: "
        "nothing goes between it and the others, until `heal`. leave: SIGTERM, and SIGKILL after the grace period. "
        "join: its group gets one worker more, until `release`.",
    )
    chaos.add_argument("job", metavar="JOB", help="its name, or the folder of its run")
    chaos.add_argument(
        "fault", nargs="?", choices=(*FAULTS, *UNDOES), metavar="FAULT", help=f"one of {', '.join((*FAULTS, *UNDOES))}"
    )
    chaos.add_argument(
        "worker", nargs="?", metavar="WORKER", help="such as large-0; for join and release its group does, too"
    )
    chaos.add_argument(
        "--for",
        type=_seconds,
        dest="seconds",
        metavar="SECONDS",
        help=f"take the fault back after so long ({', '.join(LASTING)})",
    )
    chaos.add_argument(
        "--neighbours", type=_neighbours, default=1, metavar="N", help="with slow: so many busy processes (1)"
    )
    chaos.add_argument("--json", action="store_true", help="print what was done as JSON, an object in each line")
    randomly = chaos.add_argument_group("random faults, the same ones for the same seed")
    randomly.add_argument("--seed", type=_count, metavar="N", help="any whole number; faults come until the job ends")
    randomly.add_argument(
        "--every",
        type=_seconds,
        default=EVERY_SECONDS,
        metavar="SECONDS",
        help=f"from one fault to the next, on average ({EVERY_SECONDS:g}); those that last do so for half of it",
    )
    randomly.add_argument(
        "--faults", type=_faults, default=FAULTS, metavar="A,B", help=f"only these (all: {','.join(FAULTS)})"
    )
    randomly.add_argument("--count", type=_count, metavar="N", help="end after so many faults")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, found {text!r}")
    return seconds


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, found {text!r}")
    return int(text)


def _neighbours(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 3 or not 1 <= int(text) <= GREATEST_NEIGHBOURS:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to {GREATEST_NEIGHBOURS}, found {text!r}")
    return int(text)


def _faults(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in FAULTS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"there is no fault {', '.join(unknown)!r}; there are {', '.join(FAULTS)}")
    return names
