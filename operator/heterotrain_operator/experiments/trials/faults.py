"""The faults that users put on the workers of a running trial, and the workers that they add to it: what they ask, what
is done, and what is kept of it.
"""

from __future__ import annotations

import difflib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from heterotrain.foreign import as_text, is_number, is_text, is_whole, shown
from heterotrain_operator.clusters.local import chaos
from heterotrain_operator.clusters.local.chaos import GREATEST_NEIGHBOURS, STARVED_CORES, Chaos, ChaosError, Fault
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.core.model import Event, Job, Seen
from heterotrain_operator.experiments.figures.history import FaultRecord
from heterotrain_operator.experiments.progress import reached_steps

MOST_ADDED = 64
"""Workers that a job may have beyond those of its manifest."""


@dataclass(frozen=True, slots=True)
class Addition:
    """One worker more in a group; `until` by the monotonic clock, None: until it is taken back."""

    group: str
    until: float | None


class Growth:
    """The workers that one job is to have beyond those of its manifest. Which of a group's workers leaves when one is
    taken back is decided as it is whenever `replicas` falls.
    """

    def __init__(self, job: Job, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._job, self._monotonic = job, monotonic
        self._added: list[Addition] = []

    def wanted(self) -> Job:
        """The job with the replicas that are wanted now."""
        more = Counter(each.group for each in self._added)
        if not more:
            return self._job
        groups = (replace(group, replicas=group.replicas + more[group.name]) for group in self._job.groups)
        return replace(self._job, groups=tuple(groups))

    def group_of(self, name: str) -> str | None:
        """The group that is called so, or whose worker is, with or without the job's name before it; None if the job
        has none."""
        groups = {group.name for group in self._job.groups}
        bare = name.removeprefix(f"{self._job.name}-")
        words = (name, bare, *(each.rpartition("-")[0] for each in (name, bare) if each.rpartition("-")[2].isdecimal()))
        return next((each for each in words if each in groups), None)

    def add(self, group: str, seconds: float | None) -> bool:
        """One worker more, for so long (None: until it is taken back). Returns whether there may be more."""
        if len(self._added) >= MOST_ADDED:
            return False
        self._added.append(Addition(group, None if seconds is None else self._monotonic() + seconds))
        return True

    def take_back(self, group: str) -> bool:
        """Want one of the workers less that a group got last. Returns whether there was one."""
        last = next((each for each in reversed(self._added) if each.group == group), None)
        if last is None:
            return False
        self._added.remove(last)
        return True

    def tend(self) -> tuple[str, ...]:
        """Take back what is due. Returns the group of each."""
        now = self._monotonic()
        due = [each for each in self._added if each.until is not None and now >= each.until]
        self._added = [each for each in self._added if each not in due]
        return tuple(each.group for each in due)

    def added(self) -> Counter[str]:
        """How many workers more each group has."""
        return Counter(each.group for each in self._added)


JOIN, RELEASE = "join", "release"

FAULTS = (*chaos.FAULTS, JOIN)
LASTING = (*chaos.LASTING, JOIN)
UNDOES = {**chaos.UNDOES, RELEASE: (JOIN,)}
"""What is done to a job's processes, and `join`, which concerns a group: it wants one worker more."""

EVENT = "Chaos"
LIST = "list"
"""Asks for the workers and their faults."""

LONGEST_SECONDS = 7 * 86_400.0
_LONGEST_NAME = 253  # of an object of Kubernetes

_WORDS = {
    "kill": "is killed",
    "leave": "is asked to leave",
    "stop": "is stopped",
    "partition": "is cut off from the network",
    "starve": f"gets {STARVED_CORES:g} cores",
}
_TAKEN_BACK = {"stop": "goes on", "partition": "is connected again", "slow": "has its limits to itself again"}
_TAKEN_BACK["starve"] = "has its CPU limit again"
_JOINED, _RELEASED = "gets one worker more", "wants one worker less"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user asks to be done to a worker; `seconds` None: until it is taken back."""

    act: str
    worker: str
    seconds: float | None
    neighbours: int


def asked_of(question: Mapping[str, Any]) -> Asked:
    """What a question asks. Raises ValueError with what is wrong with it."""
    act, worker = question.get("do"), question.get("worker")
    seconds, neighbours = question.get("seconds"), question.get("neighbours", 1)
    if not isinstance(act, str) or act not in (*FAULTS, *UNDOES):
        raise ValueError(f"there is no fault {shown(act)}; there are {', '.join((*FAULTS, *UNDOES))}")
    if not is_text(worker, _LONGEST_NAME) or not worker:
        raise ValueError(f"worker must be a worker's name, found {shown(worker)}")
    if seconds is not None and not (is_number(seconds) and 0 < seconds <= LONGEST_SECONDS):
        raise ValueError(f"seconds must be above 0, and at most a week, found {shown(seconds)}")
    if seconds is not None and act not in LASTING:
        raise ValueError(f"{act} does not last; seconds are for {', '.join(LASTING)}")
    if not is_whole(neighbours, 1, GREATEST_NEIGHBOURS):
        raise ValueError(f"neighbours must be a number from 1 to {GREATEST_NEIGHBOURS}, found {shown(neighbours)}")
    return Asked(act, worker, None if seconds is None else float(seconds), neighbours)


class TrialFaults:
    """The faults of one trial; `now` gives Unix seconds. `look` must be called with every observation."""

    def __init__(
        self, job: Job, trial: str, workers: Sequence[str], cluster: LocalCluster, now: Callable[[], float] = time.time
    ) -> None:
        self.records: list[FaultRecord] = []
        self._job, self._trial, self._workers, self._cluster = job.name, trial, tuple(workers), cluster
        self._growth = Growth(job)
        self._now = now
        self._step = 0
        self._events: list[Event] = []
        self._chaos = Chaos(cluster)

    def look(self, seen: Seen) -> tuple[Event, ...]:
        """The events since the last call."""
        self._step = reached_steps(seen) or self._step
        events, self._events = tuple(self._events), []
        return events

    def tend(self) -> None:
        """Take back what is due."""
        for each in self._chaos.tend():
            self._keep(each.worker, _undo_of(each.fault), _TAKEN_BACK[each.fault])
        for group in self._growth.tend():
            self._keep(f"{self._job}-{group}", RELEASE, _RELEASED)

    def wanted(self) -> Job:
        """The job with the workers that are wanted of it by now."""
        return self._growth.wanted()

    def close(self) -> None:
        """Take all faults back."""
        self._chaos.close()

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Do what is asked, and say what was done. `kind` of an `error` is `input` or `failed`."""
        try:
            if question.get("do") == LIST:
                return self._listed()
            asked = asked_of(question)
            if asked.act in (JOIN, RELEASE):
                return self._resized(asked)
            return self._done(asked, self._named(asked.worker))
        except ValueError as error:
            return {"error": str(error), "kind": "input"}
        except ChaosError as error:
            return {"error": str(error), "kind": "failed"}

    def _done(self, asked: Asked, worker: str) -> dict[str, Any]:
        lasts = "" if asked.seconds is None else f" for {asked.seconds:g} s"
        if asked.act in chaos.UNDOES:
            ended = self._chaos.end(worker, chaos.UNDOES[asked.act])
            if not ended:
                raise ChaosError(f"{worker} has no fault that {asked.act} takes back")
            words = ", ".join(_TAKEN_BACK[fault] for fault in ended)
        else:
            fault: Fault = next(each for each in chaos.FAULTS if each == asked.act)
            self._chaos.begin(fault, worker, seconds=asked.seconds, neighbours=asked.neighbours)
            words = _slowed(asked.neighbours) if fault == "slow" else _WORDS[fault]
        return self._answered(asked, worker, words + lasts)

    def _resized(self, asked: Asked) -> dict[str, Any]:
        """One worker more or less in a group, which its name or that of any of its workers says."""
        group = self._growth.group_of(asked.worker)
        if group is None:
            raise ValueError(self._unknown(asked.worker))
        name = f"{self._job}-{group}"
        if asked.act == RELEASE:
            if not self._growth.take_back(group):
                raise ChaosError(f"{name} has no worker that {RELEASE} takes back")
            return self._answered(asked, name, _RELEASED)
        if not self._growth.add(group, asked.seconds):
            raise ChaosError(f"{self._job} has {MOST_ADDED} workers more than at first, which is enough")
        return self._answered(asked, name, _JOINED + ("" if asked.seconds is None else f" for {asked.seconds:g} s"))

    def _answered(self, asked: Asked, worker: str, words: str) -> dict[str, Any]:
        self._keep(worker, asked.act, words, asked.seconds)
        return {
            "job": self._job,
            "trial": self._trial,
            "worker": worker,
            "do": asked.act,
            "seconds": asked.seconds,
            "step": self._step,
            "message": f"{worker} {words}",
        }

    def _keep(self, worker: str, act: str, words: str, seconds: float | None = None) -> None:
        self.records.append(FaultRecord(self._now(), self._step, worker, act, seconds))
        self._events.append(Event("Normal", EVENT, f"{worker} {words}"))

    def _named(self, name: str) -> str:
        """The worker of this name, which may lack the job's name at its beginning. Raises ValueError."""
        for each in (name, f"{self._job}-{name}"):
            if each in self._known():
                if not self._is_there(each):
                    raise ChaosError(f"{each} is not running")
                return each
        raise ValueError(self._unknown(name))

    def _unknown(self, name: str) -> str:
        known = self._known()
        close = difflib.get_close_matches(name, known, n=1)
        close = close or difflib.get_close_matches(f"{self._job}-{name}", known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known)}"
        return f"job {self._job} has no worker {as_text(name, 80)!r}; {hint}"

    def _known(self) -> tuple[str, ...]:
        """The workers of the job, those first that it begins with."""
        return tuple(dict.fromkeys((*self._workers, *self._cluster.names())))

    def _is_there(self, name: str) -> bool:
        try:
            return self._cluster.process(name).exit_code() is None
        except ValueError:
            return False

    def _listed(self) -> dict[str, Any]:
        standing = self._chaos.standing
        return {
            "job": self._job,
            "trial": self._trial,
            "workers": [
                {
                    "worker": name,
                    "running": self._is_there(name),
                    "faults": [each.fault for each in standing if each.worker == name],
                }
                for name in self._known()
            ],
            "added": dict(self._growth.added()),
        }


def _undo_of(fault: Fault) -> str:
    return next(word for word, faults in chaos.UNDOES.items() if fault in faults)


def _slowed(neighbours: int) -> str:
    return f"gets {neighbours} busy {'neighbour' if neighbours == 1 else 'neighbours'}"
