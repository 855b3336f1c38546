"""The state machine of `convening` in a real worker: events come from any thread, and time passes between them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.machine import step
from heterotrain.groups.convening.worker_state import (
    Rules,
    State,
    asks_peers,
    beginning,
    is_prepared,
    may_commit,
    needing_all,
)

_LOOK_SECONDS = 0.05
_TICK_SECONDS = 1.0


def now() -> float:
    """Seconds of a clock that runs on while the process, or the machine, is stopped."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Stepping:
    """Takes one event after the other, each with the actions that follow, and sees to it that ticks come in time."""

    def __init__(
        self,
        uid: str,
        rules: Rules,
        changed: threading.Condition,
        *,
        act: Callable[[Sequence[p.Action]], None],
        at_tick: Callable[[], None],
        call_later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        """For the worker with this UID. `changed` has a lock that may be taken twice, and is notified after every
        event; `act` carries out the actions of one event, with the lock held; `at_tick` is called before each tick."""
        self.state: State = beginning(uid, rules, now())
        self._changed = changed
        self._act = act
        self._at_tick = at_tick
        self._call_later = call_later
        self._contributed = now()
        self._commit: tuple[p.Committed, float] | None = None  # the newest that the state machine does not know yet
        self._tick_at = float("inf")
        self._is_closed = False

    def post(self, event: p.Event) -> None:
        """This has happened now."""
        with self._changed:
            self._take_commit()
            self._take(event, now())
            self._changed.notify_all()

    def contributes(self) -> None:
        """This worker begins to contribute to a step."""
        self._contributed = now()

    def committed(self, step: int) -> None:
        """So many steps are committed. The state machine learns of it with the next event: several commits of which it
        knows the last alone prove no more than they do."""
        with self._changed:
            self._commit = p.Committed(step, self._contributed), now()

    def prepared(self, prepared: p.Prepared) -> bool:
        """Groups of a planned change are about to be made. Returns whether this worker accepts the change."""
        with self._changed:
            self.post(prepared)
            return is_prepared(self.state, prepared.roster.number)

    def need_all(self) -> None:
        """From now on members cannot go on without one another."""
        with self._changed:
            self.state = needing_all(self.state)

    def woke(self) -> float:
        """When this worker last was itself away for longer than a silence, as it knows now; only ever later."""
        with self._changed:
            if now() - self.state.pulse > self.state.rules.silence_seconds:
                self.post(p.Tick())
            return self.state.woke

    def may_commit(self) -> bool:
        """Whether this worker may commit a step now; if it was away, after a peer has answered or all are silent."""
        with self._changed:
            while asks_peers(self.state):
                self._changed.wait(_LOOK_SECONDS)
            return may_commit(self.state, now())

    def wake_at(self, until: float) -> None:
        """Let a tick come at this time at the latest."""
        if until < self._tick_at:
            self._tick_at = until
            self._call_later(max(0.0, until - now()), partial(self._tick, until))

    def close(self) -> bool:
        """Let no tick come any more. Returns whether this is the first call."""
        with self._changed:
            is_first, self._is_closed = not self._is_closed, True
            return is_first

    def _take_commit(self) -> None:
        commit, self._commit = self._commit, None
        if commit is not None:
            self._take(*commit)

    def _take(self, event: p.Event, at: float) -> None:
        self.state, actions = step(self.state, event, max(at, self.state.pulse))
        self._act(actions)

    def _tick(self, due: float) -> None:
        with self._changed:
            if self._is_closed or due != self._tick_at:
                return  # an earlier one was asked for meanwhile, and has come
            self._tick_at = float("inf")
            self._at_tick()
            try:
                self.post(p.Tick())
            finally:
                if self._tick_at == float("inf"):
                    self.wake_at(now() + _TICK_SECONDS)  # a fault in this turn does not end all others
