"""When a status is worth a write: at once with what matters to people, now and then with figures alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from heterotrain.contract import PHASE_TRAINING
from heterotrain_operator.clusters.kube.status.worker_status import PAUSE_PHASES, Entry

FIGURES_SECONDS = 30.0
"""Shortest time between two writes that carry nothing but new figures."""

_QUIET = frozenset({"step", "epoch", "evaluation", "imbalancePercent"})
_QUIET_OF_WORKER = frozenset(
    {"ownMilliseconds", "waitingPercent", "cpuThrottledPercent", "cpuWaitPercent", "maxBatchSize"}
)
_FIGURE = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")


def worth_writing(
    previous: Mapping[str, Any] | None, new: Mapping[str, Any], seconds_since_last_write: float | None
) -> bool:
    """Whether a status is to be written: at once if more than figures changed, else every `FIGURES_SECONDS` at most.

    While the job runs, reasons and messages of its conditions count as figures, and so does whether it is balanced:
    they speak of each measurement. `seconds_since_last_write` None: it is not known, as after the operator's restart.
    """
    previous = previous or {}
    if previous == new:
        return False
    if _without_figures(previous) != _without_figures(new):
        return True
    return seconds_since_last_write is None or seconds_since_last_write >= FIGURES_SECONDS


def _without_figures(status: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a status whose change is worth a write at once."""
    running = status.get("phase") == "Running"
    rest = {name: value for name, value in status.items() if name not in _QUIET}
    rest["reason"] = "" if running else _worded(status.get("reason"))
    rest["workers"] = [_worker_without_figures(entry) for entry in _list(status, "workers")]
    rest["conditions"] = [_condition_without_figures(each, running) for each in _list(status, "conditions")]
    return rest


def _condition_without_figures(condition: Mapping[str, Any], running: bool) -> dict[str, Any]:
    if not running:
        return {**condition, "message": _worded(condition.get("message"))}
    rest = {**condition, "reason": "", "message": ""}
    if condition.get("type") == "Balanced" and condition.get("reason") != "NotMeasured":
        # A job at the edge of the tolerance crosses it with every measurement.
        rest |= {"status": "", "lastTransitionTime": ""}
    return rest


def _worker_without_figures(entry: Mapping[str, Any]) -> Entry:
    phase = entry.get("phase")
    return {
        **{name: value for name, value in entry.items() if name not in _QUIET_OF_WORKER},
        "straggler": "straggler" in entry,
        "message": _worded(entry.get("message")),
        "phase": PHASE_TRAINING if phase in PAUSE_PHASES else phase,
    }


def _list(status: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    return status.get(name) or ()


def _worded(text: str | None) -> str:
    """A text without its figures."""
    return _FIGURE.sub("#", text or "")
