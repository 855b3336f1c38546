"""Conditions in the manner of Kubernetes: each keeps the moment at which it last became true or false."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from heterotrain_operator.api.base import MAX_TEXT
from heterotrain_operator.api.status import MAX_CONDITIONS
from heterotrain_operator.clusters.kube.moments import timestamp
from heterotrain_operator.core.model import Condition

LONGEST_MESSAGE = 32768


def rendered(
    previous: Iterable[Mapping[str, Any]], wanted: Iterable[Condition], generation: int | None, now: float
) -> list[dict[str, Any]]:
    """The conditions of a status; of several of one type the last. `now` in Unix seconds.

    A condition that is not wanted any more is removed. `generation` is that of the spec that all of them are about.
    """
    before = {condition.get("type"): condition for condition in previous}
    by_type = {condition.type: condition for condition in wanted}
    entries = []
    for condition in by_type.values():
        status = {True: "True", False: "False", None: "Unknown"}[condition.status]
        old = before.get(condition.type, {})
        since = old.get("lastTransitionTime") if old.get("status") == status else None
        entry = {
            "type": condition.type,
            "status": status,
            "reason": condition.reason[:MAX_TEXT],
            "message": condition.message[:LONGEST_MESSAGE],
            "lastTransitionTime": since or timestamp(now),
        }
        if generation is not None:
            entry["observedGeneration"] = generation
        entries.append(entry)
    return entries[:MAX_CONDITIONS]
