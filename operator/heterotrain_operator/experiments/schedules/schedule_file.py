"""Read a schedule of CPU limits from a file, and check it against a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from heterotrain_operator.api.document import read_document
from heterotrain_operator.api.problems import ManifestError, Problem, render_path
from heterotrain_operator.api.quantity import parse_quantity
from heterotrain_operator.core.model import Job
from heterotrain_operator.experiments.figures.limits import DECLARED, Level, Limits
from heterotrain_operator.experiments.schedules.schedule import Change, Schedule, Unit

OPTION = "--schedule"


MOMENTS: dict[str, Unit] = {"atStep": "step", "atSeconds": "seconds"}


FIELDS = (*MOMENTS, "label", "cpuLimits")


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
    labels = [_label(entry, index, problems) for index, entry in changes]
    if problems:
        raise ManifestError(
            Problem(f"{OPTION}: {found.path}" if found.path else OPTION, found.reason) for found in problems
        )
    return _resolved(unit, [moment or 0.0 for moment in moments], labels, limits, declared)


def _resolved(
    unit: Unit, moments: Sequence[float], labels: Sequence[str], given: Sequence[Limits], declared: Limits
) -> Schedule:
    levels: list[Level] = []
    if not moments or moments[0] > 0:
        levels.append(Level(DECLARED, declared))
    changes = []
    current = dict(declared)
    for at, label, limits in zip(moments, labels, given, strict=True):
        current = {**current, **limits}
        known = next((index for index, level in enumerate(levels) if level.limits == current), None)
        if known is None:
            known = len(levels)
            levels.append(Level(label, current))
        changes.append(Change(at, known, label))
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
    path = f"changes[{index}].cpuLimits"
    given = entry.get("cpuLimits")
    if not isinstance(given, dict) or not given:
        problems.append(Problem(path, "must map worker groups, or single workers, to CPU limits such as 500m"))
        return
    # Groups come first, so that the limit of a single worker replaces that of its group.
    for name in sorted(given, key=lambda name: len(names.get(name, ())), reverse=True):
        at = render_path(("changes", index, "cpuLimits", str(name)))
        if name not in names:
            problems.append(Problem(at, f"is no worker group and no worker; there are {', '.join(names)}"))
            continue
        try:
            cores = float(parse_quantity(given[name]))
        except ValueError as error:
            problems.append(Problem(at, str(error)))
            continue
        if cores <= 0:
            problems.append(Problem(at, f"must be above 0, found {given[name]!r}"))
        for worker in names[name]:
            yield worker, cores


def _label(entry: Mapping[str, Any], index: int, problems: list[Problem]) -> str:
    label = entry.get("label", f"change {index + 1}")
    if not isinstance(label, str) or not label:
        problems.append(Problem(f"changes[{index}].label", f"must be a text, found {label!r}"))
        return ""
    return label
