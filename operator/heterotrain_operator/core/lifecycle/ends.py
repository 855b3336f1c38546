"""The ends of workers in words: exit codes, signals, last words, and whose fault an end was."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from heterotrain_operator.core.facts import Facts, ended, listed
from heterotrain_operator.core.model import WorkerSeen

DESCRIBED = 3
"""Workers' ends that a message describes before it only counts them."""

SIGNAL_EXIT_BASE = 128
"""Exit codes above this stand for a signal, by the convention of shells and container runtimes."""


LOG_TAIL = "; the end of its log: "
"""Between last words and the last lines of a log, which are added to them where they may say more."""

_OUT_OF_MEMORY = re.compile(r"\b(?:\w*OutOfMemoryError|MemoryError|CUDA out of memory|can't allocate memory)\b")


def speaks_of_memory(log: str) -> bool:
    """Whether the last lines of a log say that an allocation failed, on a GPU or on the host."""
    return _OUT_OF_MEMORY.search(log) is not None


def described_end(worker: WorkerSeen) -> str:
    """One worker's end in words: its name, exit code or signal, and last words."""
    code = worker.exit_code
    if code is None and worker.node_lost:
        how = "is on a node that does not answer"
    elif code is None:
        how = "failed without an exit code" if ended(worker) else "is taken away"
    elif (name := signal_name(code)) is not None:
        how = f"was killed by {name}"
    elif code == 0 and not worker.finished:
        how = "exited with code 0 before the job's last step"
    else:
        how = f"exited with code {code}"
    if worker.disrupted and ended(worker):
        how += " (disrupted from outside)"
    words = worker.message.strip()
    return f"{worker.name} {how}: {words}" if words else f"{worker.name} {how}"


def described_departure(worker: WorkerSeen) -> str:
    """How a worker left that is not there any more, in words."""
    if ended(worker):
        return described_end(worker)
    return f"{worker.name} was deleted: {worker.message}" if worker.message else f"{worker.name} was deleted"


def departures(facts: Facts, gone: Sequence[str]) -> str:
    """How those that are not there any more left, as far as that was seen."""
    unseen = [name for name in gone if name not in facts.departed]
    seen = [described_departure(facts.departed[name]) for name in gone if name in facts.departed]
    return "; ".join(filter(None, [first_few(seen), f"{listed(unseen)} vanished" if unseen else ""]))


def first_few(descriptions: Sequence[str]) -> str:
    """The first few descriptions, and how many more there are."""
    more = len(descriptions) - DESCRIBED
    return "; ".join(descriptions[:DESCRIBED]) + (f"; and {more} more" if more > 0 else "")


def is_external(worker: WorkerSeen) -> bool:
    """Whether somebody else shows that its end is not its fault, or that it is being taken away."""
    return worker.disrupted or worker.node_lost or worker.deleting_since is not None


def has_left(worker: WorkerSeen) -> bool:
    """Whether it left in order, as the job goes on without it, which is nobody's failure."""
    return worker.left and worker.exit_code == 0 and not worker.fatal


def left_its_loop(worker: WorkerSeen) -> bool:
    """Whether its script left the loop early and ended with exit code 0: on purpose, so that it would do so again."""
    return worker.script_error and worker.exit_code == 0


def signal_name(exit_code: int | None) -> str | None:
    """The signal that an exit code stands for: negative of a child process, 128 and more of a container."""
    if exit_code is None:
        return None
    number = -exit_code if exit_code < 0 else exit_code - SIGNAL_EXIT_BASE
    try:
        return signal.Signals(number).name if number > 0 else None
    except ValueError:
        return None
