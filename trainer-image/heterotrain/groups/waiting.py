"""What the training waits for while it has no groups, and what shows that waiting cannot help.

The thread of the peer server notes what it learns; the training's thread waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from heterotrain.contract import Plan
from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.worker_state import State
from heterotrain.groups.peering.messages import Begins, Prepare

_LOOK_SECONDS = 0.05  # between two looks whether this worker was asked to stop
_LEFT_SECONDS = 3.0
_JOIN_SECONDS = 1.0  # between two messages of a joiner


class MembershipError(RuntimeError):
    """This worker cannot train with the others; the text names who is missing."""


class JobOverError(Exception):
    """The job is done, and this worker, which waits to join, is not needed."""


class Waiting:
    """Notes are made with the lock of `changed` held; whoever makes one notifies it."""

    def __init__(self, changed: threading.Condition, state: Callable[[], State], name_of: Callable[[str], str]) -> None:
        self._changed = changed
        self._state = state
        self._name_of = name_of
        self._form: tuple[p.Form, str] | None = None  # and who convened it
        self._offered: Prepare | Begins | None = None
        self._missing: tuple[str, ...] = ()
        self._out = ""
        self._lost = False
        self._is_over = False
        self._left: dict[str, tuple[str, float]] = {}  # in which words, and when this worker learnt of it

    # --- notes --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """This worker follows another first plan: what was formed or offered before does not count."""
        self._form = self._offered = None

    def formed(self, form: p.Form, convener: str) -> None:
        """The next attempt is formed."""
        self._missing = ()
        self._form = form, convener

    def offered(self, offer: Prepare | Begins) -> None:
        """The first member lets this worker join, or says that the job only begins."""
        self._offered = offer

    def missing(self, uids: tuple[str, ...]) -> None:
        """No attempt can be formed without these."""
        self._missing = uids

    def out(self, why: str) -> None:
        """The others have gone on without this worker."""
        self._out = why

    def lost(self) -> None:
        """Nobody who lives has the job's state."""
        self._lost = True

    def over(self) -> None:
        """The job is done."""
        self._is_over = True

    def ended(self, uid: str) -> None:
        """This worker was seen to have ended, if it has not left before."""
        self._left.setdefault(uid, ("has ended", time.monotonic()))

    def left(self, uid: str, why: str) -> bool:
        """This worker has left the job before its end. Returns whether that is news."""
        words = f"left: {why}"
        known = self._left.get(uid)
        if known is not None and known[0] == words:
            return False
        self._left[uid] = words, time.monotonic()
        return True

    @property
    def is_out(self) -> bool:
        """Whether a peer or the operator says that the others have gone on without this worker."""
        return bool(self._out)

    # --- waiting ------------------------------------------------------------------------------------------------

    def await_form(self, deadline: float, check_stop: Callable[[], None]) -> tuple[p.Form, str]:
        """Wait until the next attempt is formed; what it is, and the UID of the one who convened it.

        `deadline` is of `time.monotonic`. `check_stop` is called while waiting, and may raise. Raises MembershipError,
        naming who is missing.
        """
        while True:
            check_stop()
            with self._changed:
                self._check_hopes()
                if self._form is not None:
                    found, self._form = self._form, None
                    return found
                if time.monotonic() > deadline:
                    raise MembershipError(f"gave up waiting for {self._who_is_missing()}")
                self._changed.wait(_LOOK_SECONDS)

    def await_offer(
        self, plan: Plan, deadline: float, check_stop: Callable[[], None], ask: Callable[[], None]
    ) -> Prepare | Begins | tuple[p.Form, str]:
        """As a joiner, wait until the first member says under which number to make groups, or that the job only begins,
        or until the others form an attempt with this worker; `ask`, called now and then, asks that member. Raises
        MembershipError; JobOverError if the job is done."""
        asked = float("-inf")
        while True:
            check_stop()
            with self._changed:
                self._check_hopes()
                if self._is_over:
                    raise JobOverError
                if self._form is not None:
                    found, self._form = self._form, None
                    return found
                offer = self._offered
                if offer is not None and offer.generation == plan.generation:
                    self._offered = None
                    return offer
                if time.monotonic() > deadline:
                    raise MembershipError(f"gave up waiting for {plan.members[0].name} to let this worker join")
                if time.monotonic() > asked + _JOIN_SECONDS:
                    asked = time.monotonic()
                    ask()
                self._changed.wait(_LOOK_SECONDS)

    def _check_hopes(self) -> None:
        """Raises MembershipError if this worker's waiting cannot lead to anything. That a member has ended is reported
        some time later: the operator has seen its end by then, since it is the cause."""
        if self._out:
            raise MembershipError(self._out)
        if self._lost:
            raise MembershipError("nobody who lives has the job's state")
        state = self._state()
        if not state.rules.all_needed:
            return
        for uid in state.standing.everyone:
            words, since = self._left.get(uid, ("", float("inf")))
            if time.monotonic() > since + _LEFT_SECONDS:
                raise MembershipError(f"{self._name_of(uid)} {words}")

    def _who_is_missing(self) -> str:
        state = self._state()
        number = state.promised
        if state.convener not in (None, state.me):
            return f"{self._name_of(str(state.convener))} to form attempt {number}"
        missing = self._missing or tuple(
            uid
            for uid in state.standing.everyone
            if uid != state.me and (uid not in state.met or state.met[uid].meet.number != number)
        )
        return f"{', '.join(map(self._name_of, missing))} in attempt {number}"
