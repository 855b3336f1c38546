"""Find the best mechanism of resource limits that works on this machine, by trying each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from heterotrain_operator.clusters.local.limits import cgroup_v2, duty_cycle, scope
from heterotrain_operator.clusters.local.limits.cgroup_v1 import mechanism as cgroup_v1
from heterotrain_operator.clusters.local.limits.mechanism import LimitError, Mechanism

logger = logging.getLogger(__name__)

MECHANISMS: Mapping[str, Callable[[], Mechanism]] = {
    cgroup_v2.NAME: cgroup_v2.find,
    cgroup_v1.NAME: cgroup_v1.find,
    scope.NAME: scope.find,
    duty_cycle.NAME: duty_cycle.find,
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
