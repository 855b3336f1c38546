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
    file = _File(read_document(path), job, declared)
    unit = file.unit()
    moments = file.moments(unit)
    given = [
        Level(file.label(index, entry), dict(file.limits(index, entry)), dict(file.neighbours(index, entry)))
        for index, entry in file.changes
    ]
    if file.problems:
        raise ManifestError(
            Problem(f"{OPTION}: {found.path}" if found.path else OPTION, found.reason) for found in file.problems
        )
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


class _File:
    """A file as it is read: its changes that are mappings, with their positions, and all that is wrong with it."""

    def __init__(self, document: object, job: Job, declared: Limits) -> None:
        assert isinstance(document, dict)
        workers = iter(declared)
        groups = {group.name: tuple(next(workers) for _ in range(group.replicas)) for group in job.groups}
        # What a file may name: a group means all of its workers, but a worker's own name wins over a group's.
        self._names: dict[str, tuple[str, ...]] = groups | {name: (name,) for name in declared}
        self.problems = [Problem(str(key), "is no field; known is changes") for key in document if key != "changes"]
        self.changes: list[tuple[int, Mapping[str, Any]]] = []
        given = document.get("changes")
        if not isinstance(given, list) or not given:
            self._fault("changes", "must be a list of at least one change")
            return
        for index, entry in enumerate(given):
            if not isinstance(entry, dict):
                self._fault(f"changes[{index}]", f"must be a mapping, found {entry!r}")
                continue
            for key in entry:
                if key not in FIELDS:
                    path = render_path(("changes", index, str(key)))
                    self._fault(path, f"is no field; known are {', '.join(FIELDS)}")
            self.changes.append((index, entry))

    def _fault(self, path: str, reason: str) -> None:
        self.problems.append(Problem(path, reason))

    def unit(self) -> Unit:
        """In what all moments are given: that of the first one."""
        used: dict[str, int] = {}
        single = True
        for index, entry in self.changes:
            moments = [name for name in MOMENTS if name in entry]
            if len(moments) != 1:
                single = False
                self._fault(f"changes[{index}]", f"needs one of {' and '.join(MOMENTS)}")
            for name in moments:
                used.setdefault(name, index)
        if len(used) > 1 and single:
            first, (name, index) = next(iter(used)), list(used.items())[1]
            self._fault(f"changes[{index}].{name}", f"must be {first}, as in the changes before")
        return MOMENTS[next(iter(used))] if used else "step"

    def moments(self, unit: Unit) -> list[float | None]:
        """When each change is due, in ascending order; None where that is not given as it must be."""
        field = next(name for name, known in MOMENTS.items() if known == unit)
        before: float | None = None
        found = []
        for index, entry in self.changes:
            moment = self._moment(index, entry)
            if moment is not None and before is not None and moment <= before:
                reason = f"must be above {before:g}, that of the change before; found {moment:g}"
                self._fault(f"changes[{index}].{field}", reason)
            before = moment if moment is not None else before
            found.append(moment)
        return found

    def _moment(self, index: int, entry: Mapping[str, Any]) -> float | None:
        name = next((name for name in MOMENTS if name in entry), None)
        if name is None:
            return None
        value = entry[name]
        kinds = int if name == "atStep" else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not isfinite(value) or value < 0:
            wanted = "a number of committed steps" if name == "atStep" else "a number of seconds"
            self._fault(f"changes[{index}].{name}", f"must be {wanted} of at least 0, found {value!r}")
            return None
        return float(value)

    def limits(self, index: int, entry: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        """CPU limits by worker, in cores."""
        if not any(field in entry for field in CHANGED):
            self._fault(f"changes[{index}]", f"needs one of {' and '.join(CHANGED)}")
        for workers, path, value in self._named(index, entry, "cpuLimits"):
            try:
                cores = float(parse_quantity(value))
            except ValueError as error:
                self._fault(path, str(error))
                continue
            if cores <= 0:
                self._fault(path, f"must be above 0, found {value!r}")
            yield from ((worker, cores) for worker in workers)

    def neighbours(self, index: int, entry: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
        """Busy neighbours by worker."""
        for workers, path, count in self._named(index, entry, "neighbours"):
            if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= GREATEST_NEIGHBOURS:
                wanted = f"a number of busy processes from 0 to {GREATEST_NEIGHBOURS}"
                self._fault(path, f"must be {wanted}, found {count!r}")
                continue
            yield from ((worker, count) for worker in workers)

    def _named(self, index: int, entry: Mapping[str, Any], field: str) -> Iterator[tuple[tuple[str, ...], str, Any]]:
        """What a field of a change says of workers that there are: their names, path and value."""
        if field not in entry:
            return
        given = entry[field]
        if not isinstance(given, dict) or not given:
            wanted = f"must map worker groups, or single workers, to {CHANGED[field]}"
            self._fault(f"changes[{index}].{field}", wanted)
            return
        # Groups come first, so that what is said of a single worker replaces what is said of its group.
        for name in sorted(given, key=lambda name: len(self._names.get(name, ())), reverse=True):
            path = render_path(("changes", index, field, str(name)))
            if name in self._names:
                yield self._names[name], path, given[name]
            else:
                self._fault(path, f"is no worker group and no worker; there are {', '.join(self._names)}")

    def label(self, index: int, entry: Mapping[str, Any]) -> str:
        """What a change is called."""
        label = entry.get("label", f"change {index + 1}")
        if isinstance(label, str) and label:
            return label
        self._fault(f"changes[{index}].label", f"must be a text, found {label!r}")
        return ""
