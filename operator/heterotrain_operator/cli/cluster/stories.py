"""How workers came and went, from what the operator has remembered and reported."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from heterotrain_operator.cli.cluster.evidence import ReportedEvent
from heterotrain_operator.cli.cluster.job_tables import since
from heterotrain_operator.core.state import Memory

STORY = frozenset(
    {
        "StragglerDetected",
        "StragglerRecovered",
        "ReplacingStraggler",
        "ReplacementFailed",
        "ReplacementGivenUp",
        "WorkerLeft",
        "WorkerJoined",
        "WorkerReplaced",
    }
)
"""Reasons of the events that tell of a replacement: why a worker was named, what was tried, and how that ended."""

MOST_STORIES = 3
"""Replacements that are reported, the newest."""

LONGEST_STORY = 12
"""Events of a replacement that are reported, the newest."""

_BEGINS = re.compile(r"creating (\S+) to replace ([^\s:]+)")
_NAMES = re.compile(r"[a-z0-9][a-z0-9.-]*")


def replacements(events: Sequence[ReportedEvent], now: datetime) -> dict[str, list[str]]:
    """What happened to each straggler that was to be replaced, by its name, the newest last."""
    stories: dict[str, list[str]] = {}
    for event in events:
        begins = _BEGINS.search(event.message) if event.reason == "ReplacingStraggler" else None
        if begins is not None:
            stories.pop(begins[2], None)
            stories[begins[2]] = _story(events, {begins[1], begins[2]}, now)
    return dict(list(stories.items())[-MOST_STORIES:])


def passages(memory: Memory | None) -> list[str]:
    """Who joined and who left while others trained, in that order."""
    if memory is None:
        return []
    left = [
        (each.at, f"step {each.step}: {each.name} left: {each.why}" + _taken(each.other))
        for each in memory.passages.departures
    ]
    joined = [(each.at, f"step {each.step}: {each.name} joined: {each.why}") for each in memory.passages.arrivals]
    return [text for _, text in sorted([*left, *joined], key=lambda each: each[0])]


def _taken(other: str) -> str:
    return f" ({other} trains in its place)" if other else ""


def _story(events: Sequence[ReportedEvent], names: set[str], now: datetime) -> list[str]:
    """The events about these workers, in order."""
    about = [event for event in events if event.reason in STORY and names & set(_NAMES.findall(event.message))]
    return [f"{since(event.moment, now)} ago: {event.message}" for event in about[-LONGEST_STORY:]]
