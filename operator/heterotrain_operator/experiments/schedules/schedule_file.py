"""Read a schedule of CPU limits and busy neighbours from a file, and check it against a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from heterotrain_operator.api.document import read_document
from heterotrain_operator.api.problems import ManifestError, Problem, render_path
from heterotrain_operator.api.quantity import parse_quantity
from heterotrain_operator.core.model import Job
from heterotrain_operator.experiments.figures.history import DECLARED, Level, Limits
from heterotrain_operator.experiments.schedules.schedule import Change, Schedule, Unit

OPTION = "--schedule"


MOMENTS: dict[str, Unit] = {"atStep": "step", "atSeconds": "seconds"}


CHANGED = {"cpuLimits": "CPU limits such as 500m", "neighbours": "numbers of busy processes"}
"""What a change may change, by worker or group, and in words to what; one of them is enough."""


FIELDS = (*MOMENTS, "label", *CHANGED)


GREATEST_NEIGHBOURS = 64
"""More busy processes than these beside one worker are a slip of the pen."""


def load_schedule(path: Path, job: Job, declared: Limits) -> Schedule:
    """The schedule in a file, for a job whose workers begin with the `declared` limits.

    Raises ManifestError with all that is wrong with it, each by its path in the file.
    """
    document = read_document(path)
    problems: list[Problem] = []
    changes = _entries(document, problems)
    unit = _unit(changes, problems)
    moments = [_moment(entry, index, problems) for index, entry in changes]
    _ascending(moments, [index for index, _ in changes], unit, problems)
    names = _workers_by_name(job, declared)
    limits = [dict(_limits(entry, index, names, problems)) for index, entry in changes]
    neighbours = [dict(_neighbours(entry, index, names, problems)) for index, entry in changes]
    labels = [_label(entry, index, problems) for index, entry in changes]
    if problems:
        raise ManifestError(
            Problem(f"{OPTION}: {found.path}" if found.path else OPTION, found.reason) for found in problems
        )
    given = [Level(*each) for each in zip(labels, limits, neighbours, strict=True)]
    return _resolved(unit, [moment or 0.0 for moment in moments], given, declared)


def _resolved(unit: Unit, moments: Sequence[float], given: Sequence[Level], declared: Limits) -> Schedule:
    levels: list[Level] = []
    if not moments or moments[0] > 0:
        levels.append(Level(DECLARED, declared))
    changes = []
    limits, neighbours = dict(declared), dict[str, int]()
    for at, change in zip(moments, given, strict=True):
        limits = {**limits, **change.limits}
        neighbours = {name: count for name, count in {**neighbours, **change.neighbours}.items() if count}
        known = next(
            (i for i, each in enumerate(levels) if (each.limits, each.neighbours) == (limits, neighbours)), None
        )
        if known is None:
            known = len(levels)
            levels.append(Level(change.label, limits, neighbours))
        changes.append(Change(at, known, change.label))
    return Schedule(tuple(levels), tuple(changes), unit)


def _entries(document: object, problems: list[Problem]) -> list[tuple[int, Mapping[str, Any]]]:
    """The entries of `changes` that are mappings, with their positions."""
    assert isinstance(document, dict)
    problems += [Problem(str(key), "is no field; known is changes") for key in document if key != "changes"]
    given = document.get("changes")
    if not isinstance(given, list) or not given:
        problems.append(Problem("changes", "must be a list of at least one change"))
        return []
    entries: list[tuple[int, Mapping[str, Any]]] = []
    for index, entry in enumerate(given):
        if not isinstance(entry, dict):
            problems.append(Problem(f"changes[{index}]", f"must be a mapping, found {entry!r}"))
            continue
        for key in entry:
            if key not in FIELDS:
                path = render_path(("changes", index, str(key)))
                problems.append(Problem(path, f"is no field; known are {', '.join(FIELDS)}"))
        entries.append((index, entry))
    return entries


def _unit(changes: Sequence[tuple[int, Mapping[str, Any]]], problems: list[Problem]) -> Unit:
    used: dict[str, int] = {}
    for index, entry in changes:
        moments = [name for name in MOMENTS if name in entry]
        if len(moments) != 1:
            problems.append(Problem(f"changes[{index}]", f"needs one of {' and '.join(MOMENTS)}"))
        for name in moments:
            used.setdefault(name, index)
    if len(used) > 1 and all(sum(name in entry for name in MOMENTS) == 1 for _, entry in changes):
        name, index = list(used.items())[1]
        problems.append(Problem(f"changes[{index}].{name}", f"must be {next(iter(used))}, as in the changes before"))
    return MOMENTS[next(iter(used))] if used else "step"


def _moment(entry: Mapping[str, Any], index: int, problems: list[Problem]) -> float | None:
    name = next((name for name in MOMENTS if name in entry), None)
    if name is None:
        return None
    value = entry[name]
    kinds = int if name == "atStep" else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not isfinite(value) or value < 0:
        wanted = "a number of committed steps" if name == "atStep" else "a number of seconds"
        problems.append(Problem(f"changes[{index}].{name}", f"must be {wanted} of at least 0, found {value!r}"))
        return None
    return float(value)


def _ascending(moments: Sequence[float | None], indices: Sequence[int], unit: Unit, problems: list[Problem]) -> None:
    field = next(name for name, known in MOMENTS.items() if known == unit)
    before: float | None = None
    for moment, index in zip(moments, indices, strict=True):
        if moment is not None and before is not None and moment <= before:
            reason = f"must be above {before:g}, that of the change before; found {moment:g}"
            problems.append(Problem(f"changes[{index}].{field}", reason))
        before = moment if moment is not None else before


def _workers_by_name(job: Job, declared: Limits) -> dict[str, tuple[str, ...]]:
    """What a file may name: a group means all of its workers."""
    workers = iter(declared)
    names = {group.name: tuple(next(workers) for _ in range(group.replicas)) for group in job.groups}
    # A worker's own name wins over a group's that happens to be the same.
    return names | {name: (name,) for name in declared}


def _limits(
    entry: Mapping[str, Any], index: int, names: Mapping[str, tuple[str, ...]], problems: list[Problem]
) -> Iterator[tuple[str, float]]:
    if not any(field in entry for field in CHANGED):
        problems.append(Problem(f"changes[{index}]", f"needs one of {' and '.join(CHANGED)}"))
    for name, at, value in _named(entry, index, "cpuLimits", names, problems):
        try:
            cores = float(parse_quantity(value))
        except ValueError as error:
            problems.append(Problem(at, str(error)))
            continue
        if cores <= 0:
            problems.append(Problem(at, f"must be above 0, found {value!r}"))
        for worker in names[name]:
            yield worker, cores


def _neighbours(
    entry: Mapping[str, Any], index: int, names: Mapping[str, tuple[str, ...]], problems: list[Problem]
) -> Iterator[tuple[str, int]]:
    for name, at, count in _named(entry, index, "neighbours", names, problems):
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= GREATEST_NEIGHBOURS:
            problems.append(
                Problem(at, f"must be a number of busy processes from 0 to {GREATEST_NEIGHBOURS}, found {count!r}")
            )
            continue
        for worker in names[name]:
            yield worker, count


def _named(
    entry: Mapping[str, Any],
    index: int,
    field: str,
    names: Mapping[str, tuple[str, ...]],
    problems: list[Problem],
) -> Iterator[tuple[str, str, Any]]:
    """What a field of a change says of groups and workers that there are: name, path and value."""
    if field not in entry:
        return
    given = entry[field]
    if not isinstance(given, dict) or not given:
        problems.append(
            Problem(f"changes[{index}].{field}", f"must map worker groups, or single workers, to {CHANGED[field]}")
        )
        return
    # Groups come first, so that what is said of a single worker replaces what is said of its group.
    for name in sorted(given, key=lambda name: len(names.get(name, ())), reverse=True):
        at = render_path(("changes", index, field, str(name)))
        if name in names:
            yield name, at, given[name]
        else:
            problems.append(Problem(at, f"is no worker group and no worker; there are {', '.join(names)}"))


def _label(entry: Mapping[str, Any], index: int, problems: list[Problem]) -> str:
    label = entry.get("label", f"change {index + 1}")
    if not isinstance(label, str) or not label:
        problems.append(Problem(f"changes[{index}].label", f"must be a text, found {label!r}"))
        return ""
    return label
