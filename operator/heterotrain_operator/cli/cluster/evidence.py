"""All that an explanation of a job's batches rests on, and how its workers came and went by it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from heterotrain.contract import Plan
from heterotrain.foreign import as_text
from heterotrain_operator.api import ManifestError, parse_stored, to_core
from heterotrain_operator.cli.cluster.job_state import JobState, moment, read_job
from heterotrain_operator.cli.cluster.status import since
from heterotrain_operator.core.model import Job
from heterotrain_operator.core.state import Remembered

if TYPE_CHECKING:
    from heterotrain_operator.clusters.kube.reading import Reader


Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReportedEvent:
    """One event: when it last happened, how often, its reason and its message."""

    moment: datetime | None
    count: int
    kind: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that an explanation rests on. `core` is the job as decisions see it, None if it is invalid (`faults`)."""

    job: JobState
    core: Job | None
    faults: tuple[str, ...]
    plan: Plan | None
    memory: Remembered | None
    problems: tuple[str, ...]
    events: tuple[ReportedEvent, ...]


def evidence_of(reader: Reader, name: str) -> Evidence:
    """Read a job, its plan, its memory and its events. Raises ReadingError in its kinds."""
    document = reader.job(name)
    job = read_job(document)
    stored = reader.plan(name)
    core, faults = _resolved(document)
    return Evidence(
        job=job,
        core=core,
        faults=faults,
        plan=stored.plan,
        memory=stored.memory,
        problems=tuple(filter(None, (stored.plan_problem, stored.memory_problem))),
        events=tuple(_reported(event) for event in reader.events(name, job.uid)),
    )


def _resolved(document: Document) -> tuple[Job | None, tuple[str, ...]]:
    """The job as decisions see it, or what is wrong with it."""
    metadata = document["metadata"]
    known = {key: metadata[key] for key in ("name", "namespace") if key in metadata}
    manifest = {key: document.get(key) for key in ("apiVersion", "kind", "spec")}
    try:
        job, _ = parse_stored({**manifest, "metadata": known})
    except ManifestError as error:
        return None, tuple(str(problem) for problem in error.problems)
    return to_core(job), ()


def _reported(event: Mapping[str, Any]) -> ReportedEvent:
    series = event.get("series") or {}
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return ReportedEvent(
        moment=moment(last or event["metadata"].get("creationTimestamp")),
        count=series.get("count") or event.get("count") or 1,
        kind=as_text(event.get("type") or "", LONGEST_EVENT),
        reason=as_text(event.get("reason") or "", LONGEST_EVENT),
        message=as_text(event.get("message") or "", LONGEST_EVENT),
    )


LONGEST_EVENT = 1024
"""Characters of an event's message: Kubernetes admits no more."""

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


def passages(memory: Remembered | None) -> list[str]:
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
