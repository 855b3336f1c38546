"""The status of a job that the cluster has admitted but that our own checks refuse: what is wrong, by field.

Workers that train already go on; the job is acted on again as soon as it is corrected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from heterotrain_operator.api import Problem
from heterotrain_operator.api.base import MAX_TEXT
from heterotrain_operator.api.status import MAX_CONDITIONS
from heterotrain_operator.clusters.kube.status import conditions
from heterotrain_operator.clusters.kube.status.schema import checked, tolerated
from heterotrain_operator.core.model import Condition

INVALID = "Invalid"
_NEVER_STARTED = frozenset({None, "Created", INVALID})


def invalid_status(
    previous: Mapping[str, Any] | None, generation: int | None, problems: Sequence[Problem], now: float
) -> dict[str, Any]:
    """The status with the condition Invalid, which names every field at fault; `now` in Unix seconds.

    All else stays as it is in `previous`. `generation` is that of the spec that was refused.
    """
    previous = tolerated(previous or {})
    message = "; ".join(str(problem) for problem in problems)
    status = dict(previous)
    if status.get("phase") in _NEVER_STARTED:
        status["phase"] = INVALID
    if generation is not None:
        status["observedGeneration"] = generation
    status["reason"] = message[:MAX_TEXT]
    others = [entry for entry in previous.get("conditions") or () if entry.get("type") != INVALID]
    invalid = Condition(INVALID, True, "ManifestInvalid", message)
    own = conditions.rendered(previous.get("conditions") or (), [invalid], generation, now)
    status["conditions"] = [*own, *others][:MAX_CONDITIONS]
    return checked(status)
