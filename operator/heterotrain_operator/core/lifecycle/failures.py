"""What the end of workers means: which incident it is, and so what is done about it.

Nothing is tried again where the next try is sure to end in the same way, since it costs as much as one that is not: a
missing script, no GPU. A fault that passes strikes one worker, or each in its own way; what all of them meet before the
first step is the job's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from heterotrain.contract import ERROR_MISSING_DEVICE, ERRORS_THAT_PASS, MEMBERS_MAY_END
from heterotrain_operator.core.batching.bounds import after_out_of_memory
from heterotrain_operator.core.facts import Facts, failed, rejected, vanished
from heterotrain_operator.core.lifecycle.ends import (
    LOG_TAIL,
    departures,
    described_departure,
    described_end,
    first_few,
    is_external,
    left_its_loop,
    signal_name,
)
from heterotrain_operator.core.lifecycle.following import entrants, outsiders
from heterotrain_operator.core.lifecycle.responses import (
    Incident,
    Response,
    respond,
    respond_to_lasting,
    rule_of,
)
from heterotrain_operator.core.model import Decision, Job, WorkerSeen
from heterotrain_operator.core.outcomes import LONGEST_MESSAGE
from heterotrain_operator.core.state import Remembered


def after_fatal(job: Job, facts: Facts, memory: Remembered, now: float) -> tuple[Decision, Remembered] | None:
    """A worker reported at its end that no other try may be made: the job has failed, whatever else ended for whatever
    cause, and whatever restarts are left. None if no worker did.
    """
    facts = of_members(facts, memory)
    gone = [worker for worker in facts.departed.values() if failed(worker)]
    ends = [described_departure(worker) for worker in (*facts.failed, *gone) if worker.fatal]
    if not ends:
        return None
    return respond(job, facts, memory, now, incident=Incident.FAILED_FOR_GOOD, message=first_few(ends))


def of_members(facts: Facts, memory: Remembered) -> Facts:
    """The same facts without the ends of workers that are no members, where the active plan's members are there: a
    newcomer's end is a matter of its place alone, and that of a worker which has left is nobody's.
    """
    if not any(facts.members) or facts.plan is None:
        return facts
    # Where members cannot go on without one that ends, they need a newcomer from when they have gone over.
    coming = (outsiders if memory.protocol >= MEMBERS_MAY_END else entrants)(facts, memory)
    names = {worker.name for worker in facts.members if worker is not None} - coming
    return replace(
        facts,
        failed=tuple(worker for worker in facts.failed if worker.name in names),
        lost=tuple(worker for worker in facts.lost if worker.name in names),
        departed={name: worker for name, worker in facts.departed.items() if name not in coming},
    )


def are_replaced(job: Job, facts: Facts) -> bool:
    """Whether all workers that ended are replaced one by one while the others stay: before any is a member of a plan,
    those that their node turned away or somebody deleted.
    """
    return not any(facts.members) and all(_is_replaced(job, worker) for worker in facts.failed)


def after_failures(job: Job, facts: Facts, memory: Remembered, now: float) -> tuple[Decision, Remembered] | None:
    """Workers ended that should not have: say which incident that is, and respond. None if nothing is done about it.

    It is a disruption if any worker was, or is being, taken away, or has vanished: what the others ended of is then a
    consequence, and may show before the cause does. `facts` are those `of_members`.
    """
    counting = {worker.name for worker in facts.members if worker is not None}
    taken = tuple(worker for worker in facts.live if is_external(worker) and (not counting or worker.name in counting))
    failures = (*facts.failed, *taken)
    memory, smaller = after_out_of_memory(job, facts, memory)
    causes = sorted(failures, key=_unlikeliness)
    message = first_few([described_end(worker) for worker in causes])
    if smaller:
        message = f"{message}; {smaller}"
    coming = entrants(facts, memory)
    if gone := [name for name in vanished(facts) if name not in coming]:
        message = f"{departures(facts, gone)}; {message}"
    if gone or is_external(causes[0]):
        return respond_to_lasting(job, facts, memory, now, incident=Incident.WORKER_DISRUPTED, message=message)
    if causes[0].asked_to_stop:
        patience = rule_of(job, Incident.ASKED_TO_STOP).patience_seconds
        reason = f"{message}; waiting {patience:g} s for a sign of who asked"
        waiting = respond(job, facts, memory, now, incident=Incident.ASKED_TO_STOP, message=reason)
        if waiting is not None:
            return waiting
    raised = _script_error_step(failures)
    if raised is not None and any(map(left_its_loop, failures)):
        return respond(job, facts, memory, now, incident=Incident.SCRIPT_FAILED, message=message)
    certain = _never_joined(facts, memory) or _script_failed(job, memory, raised, message)
    certain = certain or _no_other_end(job, facts, memory)
    if certain is not None:
        incident, why = certain
        return respond(job, facts, memory, now, incident=incident, message=why)
    if may_be_all(facts, memory):
        reason = f"{message}; waiting whether the others end alike"
        waiting = respond(job, facts, memory, now, incident=Incident.PERHAPS_ALIKE, message=reason)
        if waiting is not None:
            return waiting
    if raised is not None:
        raised = max(raised, memory.progress.progress_step)
        memory = replace(memory, budget=memory.budget.raised_at(raised))
    return respond(job, facts, memory, now, incident=Incident.WORKER_FAILED, message=message)


def after_departures(job: Job, facts: Facts, memory: Remembered, now: float) -> tuple[Decision, Remembered]:
    """Members of the plan are not there any more."""
    gone = vanished(facts)
    was_seen = all(name in facts.departed for name in gone)
    incident = Incident.WORKER_DISRUPTED if was_seen else Incident.WORKER_VANISHED
    message = departures(facts, gone)
    return respond_to_lasting(job, facts, memory, now, incident=incident, message=message)


def _is_replaced(job: Job, worker: WorkerSeen) -> bool:
    if rejected(worker):
        return rule_of(job, Incident.WORKER_REJECTED).response is Response.REPLACE
    if worker.deleting_since is not None:
        return rule_of(job, Incident.WORKER_DELETED).response is Response.REPLACE
    return False


def _unlikeliness(worker: WorkerSeen) -> tuple[bool, bool, bool, bool]:
    """Sorts ends so that the likeliest cause is first: a signal is likelier than leaving in order, that than an exit,
    and of exits the script's own error, since any other may be a survivor's of a broken collective.
    """
    killed = signal_name(worker.exit_code) is not None and not worker.asked_to_stop
    return not is_external(worker), not killed, not worker.asked_to_stop, not worker.script_error


def _no_other_end(job: Job, facts: Facts, memory: Remembered) -> tuple[Incident, str] | None:
    """Incident and message if workers that have never trained ended as they would at every try."""
    if not never_trained(memory):
        return None
    lacking = without_device(facts.failed)
    if lacking:
        return Incident.DEVICE_MISSING, lacking
    if not (alike(facts.failed, memory) and is_proof(job, facts.failed, memory)):
        return None
    one = facts.failed[0]
    how = f"all {len(facts.failed)} workers ended in the same way"
    if len(facts.failed) == 1:
        how = f"the only worker ended{' in the same way twice' if is_repeated(one, memory) else ''}"
    return Incident.FAILED_ALIKE, f"{how} before the first step: {described_end(one)}"


def _never_joined(facts: Facts, memory: Remembered) -> tuple[Incident, str] | None:
    """Incident and message if a worker ended well in silence and was no member of a plan, as one is that joins."""
    if facts.plan is None and memory.plan_version > 0:
        return None  # who was a member is not known
    joined = {worker.uid for worker in facts.members if worker is not None}
    silent = [
        f"{worker.name} exited with code 0 and never joined"
        for worker in facts.failed
        if worker.exit_code == 0 and not worker.message.strip() and worker.uid not in joined
    ]
    if not silent:
        return None
    return Incident.NEVER_JOINED, f"{first_few(silent)}: the script does not call heterotrain.join()"


def _script_error_step(failures: Sequence[WorkerSeen]) -> int | None:
    """After how many committed steps the script raised or left its loop; None if it did not, or may have because of
    another's end."""
    if any(worker.out_of_memory or signal_name(worker.exit_code) is not None for worker in failures):
        return None
    return max((worker.step for worker in failures if worker.script_error), default=None)


def _script_failed(job: Job, memory: Remembered, step: int | None, message: str) -> tuple[Incident, str] | None:
    """Incident and message if the script's error at that step is one that it would raise again: the steps up to it are
    the same each time, and a fault that passes does so with one restart.
    """
    if step is None:
        return None
    if not job.resumable:
        why = f"the script failed at step {step}, and without spec.checkpoint.path a restart begins at step 0"
    elif step == memory.budget.script_error_step:
        why = f"the script failed at step {step} again, after a restart"
    elif step < memory.budget.script_error_step:
        before = f"no further than before (step {memory.budget.script_error_step})"
        why = f"the script failed at step {step} after a restart, {before}"
    else:
        return None
    return Incident.SCRIPT_FAILED, f"{why}: {message}"


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


def never_trained(memory: Remembered) -> bool:
    """Whether no generation of the job's workers is known to have committed a step."""
    known, begun_at = memory.progress, max(memory.resumed.resumed_step, 0)
    return memory.generation <= 1 and not known.stepped and known.progress_step <= begun_at


def without_device(failures: Sequence[WorkerSeen]) -> str:
    """Which workers lack the device that their group promises, with their last words; empty if none reported that."""
    lacking = [worker for worker in failures if worker.message.startswith(f"{ERROR_MISSING_DEVICE}:")]
    return "; ".join(f"{worker.name}: {worker.message}" for worker in lacking[:1]) + (
        f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
    )


def alike(failures: Sequence[WorkerSeen], memory: Remembered) -> bool:
    """Whether all of these ended in one way, by themselves, before the first step."""
    return len({_manner(worker) for worker in failures}) == 1 and all(_by_itself(each, memory) for each in failures)


def may_be_all(facts: Facts, memory: Remembered) -> bool:
    """Whether those that ended before there was a plan ended alike, and others may do so yet. Of members the others end
    of the first one's end, in their own way.
    """
    return not any(facts.members) and never_trained(memory) and alike(facts.failed, memory) and bool(facts.live)


def is_proof(job: Job, failures: Sequence[WorkerSeen], memory: Remembered) -> bool:
    """Whether the ends of all workers, alike, say how the next try would end."""
    wanted = sum(group.replicas for group in job.groups)
    if len(failures) < wanted:
        return False
    return wanted > 1 or failures[0].exit_code in WRONG_COMMAND_CODES or is_repeated(failures[0], memory)


def is_repeated(worker: WorkerSeen, memory: Remembered) -> bool:
    """Whether the only worker ended of the same error of its code as before the restart, to which its end then led: it
    is its own witness, for it has no other.
    """
    if not _ERROR_OF_THE_CODE.search(worker.message):
        return False
    return _without_figures(described_end(worker)[:LONGEST_MESSAGE]) == _without_figures(memory.outcome.message)


def _manner(worker: WorkerSeen) -> tuple[int | None, str]:
    words, _, _ = worker.message.partition(LOG_TAIL)
    return worker.exit_code, _without_figures(words.replace(worker.name, ""))


def _without_figures(words: str) -> str:
    return _FIGURE.sub("#", words)


def _by_itself(worker: WorkerSeen, memory: Remembered) -> bool:
    code = worker.exit_code
    plain = code is not None and (0 < code <= GREATEST_PLAIN_CODE or (code == 0 and worker.script_error))
    passes = worker.message.partition(":")[0] in ERRORS_THAT_PASS
    return plain and not worker.out_of_memory and not passes and worker.step <= max(memory.resumed.resumed_step, 0)
