"""The resource limits of workers on this machine: one file each mechanism, and the best that works is found here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from heterotrain_operator.clusters.local.limits import cgroup_v1, cgroup_v2, duty_cycle
from heterotrain_operator.clusters.local.limits.mechanism import LimitError, Limits, Mechanism, machine_cores

__all__ = ["MECHANISMS", "LimitError", "Limits", "Mechanism", "detect", "machine_cores", "working"]

logger = logging.getLogger(__name__)

MECHANISMS: Mapping[str, Callable[[], Mechanism]] = {
    cgroup_v2.NAME: cgroup_v2.find,
    cgroup_v1.NAME: cgroup_v1.find,
    duty_cycle.NAME: duty_cycle.DutyCycle,
}
"""Best first. Calling one tries it out, and raises LimitError if it does not work here."""


def working() -> Iterator[Mechanism]:
    """The mechanisms that work here, best first; each is tried only when it is asked for."""
    for name, find in MECHANISMS.items():
        try:
            yield find()
        except LimitError as error:
            logger.debug("%s does not work here: %s", name, error)


def detect() -> Mechanism:
    """The best mechanism that works here; the last always does."""
    return next(working())
