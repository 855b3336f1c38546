"""The groups of the next generation of members, made beside training in a thread, as often as it takes."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from heterotrain.contract import Plan
from heterotrain.groups.assembly import Assembly
from heterotrain.groups.convening.roster import Number, Roster
from heterotrain.groups.generation import GROUP_SECONDS, Generation
from heterotrain.groups.making import Maker, Making, Traits
from heterotrain.groups.peering.board_store import BoardStore, StoreError

log = logging.getLogger(__name__)

MEETING_SECONDS = 60.0
"""How long those that are there wait for the others, before groups are given up and tried again."""

_SOON_SECONDS, _PAUSE_SECONDS = 2.0, 0.02  # the keeper of the board may learn later than others that it is to keep one
_ENDING_SECONDS = GROUP_SECONDS + 1.0


@dataclass(frozen=True, slots=True)
class Preparation:
    """How one worker makes groups for a plan, with the `announcer` who will say when to go over to them."""

    assembly: Assembly
    maker: Maker
    plan: Plan
    rank: int
    announcer: str
    within: Number | None = None  # the attempt in which they are made, None on a joiner

    def make(self, number: Number, hold: Callable[[BoardStore, Making], None]) -> Making:
        """Make the groups of this number; `hold` gets what ends that from another thread, before each try. Raises
        RuntimeError if that fails, ValueError if members are not alike."""
        uids = tuple(member.uid for member in self.plan.members)
        began, store = time.monotonic(), None
        while True:
            making = self.maker.begin(self.plan, number, self.rank, ahead=True)
            try:
                store = self.assembly.store(number, len(uids), uids[0], MEETING_SECONDS)
                hold(store, making)
                making.meet(store)
            except StoreError:
                if store is not None:
                    self.assembly.close_store(store, "it was of no use")
                if time.monotonic() > began + _SOON_SECONDS:
                    raise
                time.sleep(_PAUSE_SECONDS)
            else:
                break
        self.assembly.prepared(Roster(number, uids, self.announcer), self.within)
        making.make(store)
        making.generation.on_leave = partial(self.assembly.close_store, store, "its groups are released")
        return making


class Succession:
    """One worker's side of the change to a plan with other members."""

    def __init__(self, plan: Plan, rank: int | None, preparation: Preparation | None, refused: str = "") -> None:
        """`rank` is this worker's in the plan; None if the plan goes on without it, which has nothing to prepare then.
        It may be `refused` from the start."""
        self.plan = plan
        self.rank = rank
        self.number: Number | None = None
        """Under which the members make groups at present."""
        self.failed = False
        """Whether they could not be made here under this number."""
        self.refused = refused
        """Why they never will be; empty if they may be."""
        self._preparation = preparation
        self._lock = threading.Lock()
        self._made: Making | None = None
        self._held: tuple[BoardStore, Making] | None = None
        self._thread: threading.Thread | None = None
        _all.add(self)

    @property
    def is_ready(self) -> bool:
        """Whether this worker can go over to it."""
        return not self.refused and self.number is not None and (self.rank is None or self._made is not None)

    @property
    def generation(self) -> Generation | None:
        """The groups that are made; None before, and on a worker that leaves."""
        return None if self._made is None else self._made.generation

    @property
    def traits(self) -> Sequence[Traits]:
        """Those of all members, by rank, once the groups are made."""
        return () if self._made is None else self._made.traits

    def begin(self, number: Number) -> None:
        """Make groups under this number from now on, and no others."""
        self._end("groups are made under another number")
        with self._lock:
            self.number, self.failed = number, False
        if self.rank is not None and not self.refused:
            self._thread = threading.Thread(
                target=self._prepare, args=(number,), name="heterotrain-succession", daemon=True
            )
            self._thread.start()

    def fail(self, why: str) -> None:
        """The groups that were made are of no use."""
        log.warning("generation %d is not there yet: %s", self.plan.generation, why)
        self._end(why)
        self.failed = True

    def take(self) -> tuple[Generation, Sequence[Traits]]:
        """The groups, which are the caller's from now on."""
        with self._lock:
            made, self._made, self._held = self._made, None, None
        assert made is not None
        return made.generation, made.traits

    def close(self, why: str, *, wait: bool = False) -> None:
        """It is not needed any more, and its other members, who may wait in its groups, learn of it. With `wait` its
        thread has ended afterwards: one that comes back from torch while the interpreter ends would take the process
        down."""
        with self._lock:
            self.number = None
        self._end(why)
        if wait and self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_ENDING_SECONDS)

    def _prepare(self, number: Number) -> None:
        assert self._preparation is not None
        made: Making | None = None
        try:
            made = self._preparation.make(number, lambda store, making: self._hold(number, store, making))
        except _ClosedError:
            pass
        except ValueError as error:
            self.refused = self.refused or str(error)
        except (RuntimeError, OSError) as error:
            log.warning("generation %d is not there yet: %s", self.plan.generation, error)
        finally:
            with self._lock:
                is_wanted = self.number == number
                if is_wanted:
                    self._made, self.failed = made, made is None
            if made is not None and not is_wanted:
                made.generation.break_up("it is not needed any more")
                made.generation.leave()

    def _hold(self, number: Number, store: BoardStore, making: Making) -> None:
        with self._lock:
            if self.number != number:
                raise _ClosedError
            self._held = store, making

    def _end(self, why: str) -> None:
        with self._lock:
            made, self._made = self._made, None
            held, self._held = self._held, None
        if held is not None and self._preparation is not None:
            store, making = held
            self._preparation.assembly.close_store(store, why)
            making.generation.break_up(why)
        if made is not None:
            made.generation.leave()


class _ClosedError(Exception):
    """Nobody wants these groups any more."""


_all: weakref.WeakSet[Succession] = weakref.WeakSet()
os.register_at_fork(after_in_child=_all.clear)  # a forked process ends without ending its parent's groups


@atexit.register
def _close_all() -> None:
    for each in list(_all):
        each.close("this worker ends", wait=True)
