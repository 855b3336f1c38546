"""What a user can make of a run: one sentence on what balancing did, and if it did nothing, why and what to try; pure.

A table of equal batches does not say whether there was nothing to gain, no time to find out, or nothing that batches
can change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from heterotrain_operator.experiments import wording
from heterotrain_operator.experiments.figures.history import Limits
from heterotrain_operator.experiments.figures.steps import Step, iteration_seconds
from heterotrain_operator.experiments.figures.trial_summary import TrialSummary, WorkerSummary

LEAST_STEPS = 20
"""Measured steps under the last batches below which means say little."""

LEAST_INTERVALS, LEAST_SECONDS = 4, 5.0
"""Control intervals, and seconds, that a run needs to show what balancing does: the run is looked at every second or
so, and two plans and their effect are to be seen."""

ADVISED_SECONDS = 15.0

ALIKE = 0.10
"""Own times that differ by no more than this part of the longest are alike."""

UNLIKE_LIMITS = 1.25
"""The greatest limit over the least from which on workers were meant to be unlike."""

MOSTLY = 0.5
"""Share of a step from which on communication decides what it takes."""

STILL_WAITING = 0.15
"""Share of a step that a worker waits for its peers after the batches moved from which on it is explained."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a run was asked for: limits by worker in cores, the cores of this machine, steps of a control interval,
    whether it is a script's job, whose command line says how long it is, whether plans were only thought up, and
    the reason of the last decision while it trained.
    """

    limits: Limits
    machine_cores: int
    interval: int
    of_script: bool = False
    dry_run: bool = False
    reason: str = ""


def verdict_on(trial: TrialSummary, steps: Sequence[Step], found: Circumstances) -> str:
    """The sentence for a trial that ended well, without the policies that it is compared with."""
    if not steps:
        return ""
    workers = [worker for worker in trial.worker if worker.samples]
    if len(workers) < 2:
        more = "--workers 1.0,0.5" if found.of_script else "a second one in spec.workerGroups"
        return f"One worker trained, so there was nothing to balance; with {more} there is."
    if trial.adjustments:
        return _moved(trial, steps, workers, found)
    return f"Batches stayed at {wording.batches(worker.batch for worker in workers)}: {_why(trial, workers, found)}."


def _moved(trial: TrialSummary, steps: Sequence[Step], workers: Sequence[WorkerSummary], found: Circumstances) -> str:
    first = "" if trial.asynchronous else f"from {wording.batches(steps[0].batches.values())} "
    last = wording.batches(worker.batch for worker in workers)
    begun = [] if trial.asynchronous else [step for step in steps if step.batches == steps[0].batches]
    before, after = iteration_seconds(begun), trial.iteration_seconds
    took = f"a step took {wording.seconds(median(before))} before and {wording.seconds(after)} after" if before else ""
    waits = max((worker.peer_share or 0.0 for worker in workers), default=0.0)
    apart, share = _apart(workers), _communication(workers)
    if apart > ALIKE:
        more = f"a longer run may move more ({_longer(trial, found)})"
        advice = f"own times still differ by {wording.percent(apart)}, so {more}"
    elif share >= MOSTLY:
        advice = _talking(share, trial, found)
    elif waits > STILL_WAITING:
        advice = (
            f"own times are within {wording.percent(apart)} of one another, and the {wording.percent(waits)} that "
            "workers still wait is noise of single steps"
        )
    else:
        advice = f"own times are within {wording.percent(apart)} of one another"
    return f"Batches moved {first}to {last}{f'; {took}' if took and after else ''}; {advice}."


def _why(trial: TrialSummary, workers: Sequence[WorkerSummary], found: Circumstances) -> str:
    """Why batches stayed, and what to try."""
    if trial.policy in ("Uniform", "Static"):
        return f"{trial.policy} never moves any; --policy Optimal does"
    if found.dry_run:
        return "with batching.dryRun plans are only thought up"
    step = trial.iteration_seconds
    measured = trial.measured_steps
    if step is None or measured < LEAST_STEPS:
        return f"only {measured} of {trial.steps} steps could be measured, too few; {_longer(trial, found)}"
    limits = [limit for limit in (found.limits.get(worker.name) for worker in workers) if limit is not None]
    if sum(limits) > found.machine_cores:
        return (
            f"the CPU limits add up to {sum(limits):g} cores, and this machine has {found.machine_cores}, so that "
            "workers slow one another; lower them"
        )
    share = _communication(workers)
    if share >= MOSTLY:
        return _talking(share, trial, found)
    apart = _apart(workers)
    if apart <= ALIKE:
        batches = [worker.batch for worker in workers]
        equal = max(batches) - min(batches) <= 1
        which = "equal batches are right" if equal else "those of the first plan are right"
        alike = f"own times differ by {wording.percent(apart)} only, so {which}"
        if equal and limits and len(limits) == len(workers) and max(limits) >= UNLIKE_LIMITS * min(limits):
            return (
                f"the CPU limits do not bind: {alike}; lower limits, a larger model or a larger global batch would "
                "show what unequal machines do"
            )
        return alike
    if measured < LEAST_INTERVALS * found.interval or trial.seconds < LEAST_SECONDS:
        return f"only {trial.steps} steps of {wording.seconds(step)}, too short to measure; {_longer(trial, found)}"
    reason = found.reason.rstrip(".") or "no other split was sure to be faster"
    return f"{reason}; a longer run may move them ({_longer(trial, found)})"


def _apart(workers: Sequence[WorkerSummary]) -> float:
    """By what part of the longest mean own time the shortest falls short of it."""
    own = [worker.settled_own_seconds or 0.0 for worker in workers]
    return 1 - min(own) / max(own) if max(own) > 0 else 0.0


def _communication(workers: Sequence[WorkerSummary]) -> float:
    """The least share of its time that a worker spends on the all-reduce alone: the slowest worker's."""
    return min((worker.communication_share or 0.0 for worker in workers), default=0.0)


def _talking(share: float, trial: TrialSummary, found: Circumstances) -> str:
    larger = 4 * trial.global_batch
    option = f"--global-batch {larger}" if found.of_script else f"spec.training.globalBatchSize: {larger}"
    what = f"{wording.percent(share)} of a step is all-reduce, which batches cannot shorten"
    if trial.asynchronous:
        what = f"{wording.percent(share)} of an update is pull and push, which batches cannot shorten"
    return f"{what}; a larger global batch ({option}) or fewer workers would help"


def _longer(trial: TrialSummary, found: Circumstances) -> str:
    """What makes the run long enough."""
    step = trial.iteration_seconds or (trial.seconds / trial.steps if trial.steps else 0.0)
    wanted = max(2 * trial.steps, 10 * found.interval, ADVISED_SECONDS / step if step else 0.0)
    digits = 10 ** max(math.floor(math.log10(wanted)) - 1, 0)
    steps = math.ceil(wanted / digits) * digits
    return f"try --steps {steps}" if found.of_script else f"try spec.training.steps: {steps}"
