"""Record the rounds of the loop while a trial runs."""

from __future__ import annotations

import time
from dataclasses import replace

from heterotrain_operator.core.model import Decision, Seen
from heterotrain_operator.experiments.progress import reached_steps
from heterotrain_operator.experiments.schedules.scheduled import ScheduledLimits
from heterotrain_operator.experiments.trials.faults import TrialFaults
from heterotrain_operator.experiments.trials.journal import Entry, entry_of
from heterotrain_operator.experiments.trials.observer import Observer


class Rounds:
    """Keeps what was decided and which workers failed, in the order in which they failed, and passes it on."""

    def __init__(self, observer: Observer, limits: ScheduledLimits, faults: TrialFaults) -> None:
        self.entries: list[Entry] = []
        self.failures: list[str] = []
        self._observer = observer
        self._limits = limits
        self._faults = faults
        self._steps = 0
        self._began = time.monotonic()

    def note(self, seen: Seen, decision: Decision) -> None:
        """One round of the loop."""
        # A worker that has just ended may not have reported yet how far it came.
        self._steps = reached_steps(seen) or self._steps
        faults = self._faults.look(seen)  # first, for what was decided may be their effect
        decision = replace(decision, events=(*faults, *decision.events, *self._limits.look(seen)))
        entry = entry_of(time.monotonic() - self._began, self._steps, decision)
        if entry is not None:
            self.entries.append(entry)
        self.failures += [w.name for w in seen.workers if w.exit_code and w.name not in self.failures]
        self._observer.show(seen, decision, entry)
