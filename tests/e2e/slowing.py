"""A job with a worker that becomes slow by fault, and what comes of it: another one takes its place."""

from __future__ import annotations

from dataclasses import dataclass

from e2e.api import Document
from e2e.jobs import JobOnCluster
from e2e.manifests import ENDLESS, group, job
from e2e.waiting import wait_for

INTERVAL = 10
"""Steps of a control interval."""

FIRST, LIMITED, SLOWED = "first", "limited", "slowed"

DETECTED_SECONDS = 240.0
REPLACED_SECONDS = 180.0

_BUSY = "for each in 1 2 3; do (while :; do :; done) </dev/null >/dev/null 2>&1 & done"
"""Three processes that take three quarters of whatever CPU the container has."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """Who was replaced by whom; `index` is the newcomer's."""

    straggler: str
    newcomer: str
    index: int


def slowed_job(steps: int = ENDLESS) -> Document:
    """Three workers, of which one is about to be slowed, and replaced as soon as that is sure. Only much slower ones
    are worth naming, so that on a noisy machine it does not take long to be sure.
    """
    groups = (group(FIRST, "400m"), group(LIMITED, "300m"), group(SLOWED, "300m"))
    stragglers = {"action": "Replace", "threshold": 0.5, "smoothing": 0.3, "cooldownSeconds": 1}
    return job("digits", *groups, steps=steps, batching={"interval": INTERVAL}, stragglers=stragglers)


def slow_down(struck: JobOnCluster) -> None:
    """Let the worker share its CPU limit with busy processes in its container."""
    struck.execute(struck.pod_name(SLOWED), "sh", "-c", _BUSY)


def wait_for_replacement(struck: JobOnCluster) -> Replaced:
    """Slow the worker down, and wait until another one trains in its place."""
    slow_down(struck)
    straggler = struck.pod_name(SLOWED)
    wait_for(
        lambda: any(straggler in event["message"] for event in struck.events("StragglerDetected")),
        DETECTED_SECONDS,
        f"{straggler} to be named a straggler",
    )
    wait_for(
        lambda: any(f"in place of {straggler}" in event["message"] for event in struck.events("WorkerReplaced")),
        REPLACED_SECONDS,
        f"another worker in place of {straggler}",
    )
    (newcomer,) = [member.name for member in struck.plan.members if member.group == SLOWED]
    return Replaced(straggler, newcomer, int(newcomer.rpartition("-")[2]))
