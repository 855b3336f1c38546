"""Failures that the next try would repeat, of a job that has not trained yet: a missing script, no GPU.

A fault that passes strikes one worker, or each in its own way; what all of them meet before the first step is the
job's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from heterotrain.contract import ERROR_MISSING_DEVICE, ERRORS_THAT_PASS
from heterotrain_operator.core.facts import Facts
from heterotrain_operator.core.lifecycle.ends import described_end
from heterotrain_operator.core.model import Job, WorkerSeen
from heterotrain_operator.core.outcomes import LONGEST_MESSAGE
from heterotrain_operator.core.state import Memory

WITNESS_SECONDS = 10.0
"""So long the others may take to end as the first one did: images and machines are not equally fast."""

GREATEST_PLAIN_CODE = 128
"""Exit codes above it stand for a signal, which comes from outside of the script."""

WRONG_COMMAND_CODES = frozenset({2, 126, 127, 128})
"""Of a command that cannot be run, or not so: of Python without its script, of shells, of container runtimes. They need
no second worker as a witness.
"""

_ERROR_OF_THE_CODE = re.compile(
    r"^(?:ImportError|ModuleNotFoundError|SyntaxError|IndentationError|TabError|NameError|AttributeError|TypeError)\b",
    re.MULTILINE,
)
"""A line of a worker's last words, or of the end of its log, that says that its code cannot run. Of most other errors,
such as a connection that is refused, nobody knows whether they pass.
"""

_FIGURE = re.compile(r"0x[0-9a-fA-F]+|\d+")


def never_trained(memory: Memory) -> bool:
    """Whether no generation of the job's workers is known to have committed a step."""
    known, begun_at = memory.progress, max(memory.resumed.resumed_step, 0)
    return memory.generation <= 1 and not known.stepped and known.progress_step <= begun_at


def without_device(failures: Sequence[WorkerSeen]) -> str:
    """Which workers lack the device that their group promises, with their last words; empty if none reported that."""
    lacking = [worker for worker in failures if worker.message.startswith(f"{ERROR_MISSING_DEVICE}:")]
    return "; ".join(f"{worker.name}: {worker.message}" for worker in lacking[:1]) + (
        f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
    )


def alike(failures: Sequence[WorkerSeen], memory: Memory) -> bool:
    """Whether all of these ended in one way, by themselves, before the first step."""
    return len({_manner(worker) for worker in failures}) == 1 and all(_by_itself(each, memory) for each in failures)


def may_be_all(facts: Facts, memory: Memory) -> bool:
    """Whether those that ended before there was a plan ended alike, and others may do so yet. Of members the others end
    of the first one's end, in their own way.
    """
    return not any(facts.members) and never_trained(memory) and alike(facts.failed, memory) and bool(facts.live)


def is_proof(job: Job, failures: Sequence[WorkerSeen], memory: Memory) -> bool:
    """Whether the ends of all workers, alike, say how the next try would end."""
    wanted = sum(group.replicas for group in job.groups)
    if len(failures) < wanted:
        return False
    return wanted > 1 or failures[0].exit_code in WRONG_COMMAND_CODES or is_repeated(failures[0], memory)


def is_repeated(worker: WorkerSeen, memory: Memory) -> bool:
    """Whether the only worker ended of the same error of its code as before the restart, to which its end then led: it
    is its own witness, for it has no other.
    """
    if not _ERROR_OF_THE_CODE.search(worker.message):
        return False
    return _without_figures(described_end(worker)[:LONGEST_MESSAGE]) == _without_figures(memory.outcome.message)


def _manner(worker: WorkerSeen) -> tuple[int | None, str]:
    return worker.exit_code, _without_figures(worker.message.replace(worker.name, ""))


def _without_figures(words: str) -> str:
    return _FIGURE.sub("#", words)


def _by_itself(worker: WorkerSeen, memory: Memory) -> bool:
    code = worker.exit_code
    plain = code is not None and 0 < code <= GREATEST_PLAIN_CODE
    passes = worker.message.partition(":")[0] in ERRORS_THAT_PASS
    return plain and not worker.out_of_memory and not passes and worker.step <= max(memory.resumed.resumed_step, 0)
