"""Who trains together with this worker: the protocol of `convening` among real peers, threads and clocks.

What happens to the peers arrives in the thread of the peer server, and what happens to the training from the thread of
the training; each is one event for the state machine, whose actions are carried out at once. None of them waits.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from functools import partial

from heterotrain.contract import Member, Plan
from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.machine import step
from heterotrain.groups.convening.roster import Number, Roster
from heterotrain.groups.convening.worker_state import (
    Rules,
    asks_peers,
    beginning,
    is_prepared,
    listeners,
    may_commit,
    needing_all,
)
from heterotrain.groups.joiners import Joiners
from heterotrain.groups.peering.addresses import split_address
from heterotrain.groups.peering.board_store import BoardStore, StoreError
from heterotrain.groups.peering.boards import Boards
from heterotrain.groups.peering.channel import Channel, End
from heterotrain.groups.peering.event_loop import safely
from heterotrain.groups.peering.messages import Begins, Frame, Joins, Left, Over, Prepare, Vouches
from heterotrain.groups.peering.server import PeerServer
from heterotrain.groups.peering.vouching import SUFFIX, Order
from heterotrain.groups.voucher import Voucher

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05  # between two looks whether this worker was asked to stop
_LEFT_SECONDS = 3.0
_JOIN_SECONDS = 1.0  # between two words of a joiner
_LEAVE_SECONDS = 1.0
_TICK_SECONDS = 1.0


class MembershipError(RuntimeError):
    """This worker cannot train with the others; the text names who is missing."""


class JobOverError(Exception):
    """The job is done, and this worker, which waits to join, is not needed."""


def now() -> float:
    """Seconds of a clock that runs on while the process, or the machine, is stopped."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Assembly:
    """One worker's side of it, from the first plan that names this worker to its end."""

    def __init__(
        self, job: str, own: Member, rules: Rules, secret: str | None, *, held_seconds: float | None = None
    ) -> None:
        """Listen at this worker's address. A process beside it speaks for it while its interpreter is held, for at most
        `held_seconds`; None: nobody does. Raises OSError if the address cannot be had."""
        host, port = split_address(own.address)
        is_local = host.startswith("127.")
        if is_local:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self.own = own
        self._all_needed = rules.all_needed
        self._state = beginning(own.uid, rules, now())
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._members: dict[str, Member] = {own.uid: own}
        self._links: dict[str, list[Channel]] = {}
        self._contributed = now()
        self._commit: tuple[p.Committed, float] | None = None  # the newest, not told to the state machine yet
        self._tick_at = float("inf")
        self._form: tuple[p.Form, str] | None = None  # and who convened it
        self._cut: Callable[[str], None] | None = None
        self._cut_why = ""
        self._missing: tuple[str, ...] = ()
        self._out = ""
        self._lost = False
        self._is_over = False
        self._left: dict[str, tuple[str, float]] = {}  # in which words, and when this worker learnt of it
        self._joiners = Joiners(self._lock)
        self._offered: Prepare | Begins | None = None
        self._board: Number | None = None  # of the attempt that this worker convened last
        self._is_closed = False
        self._server = PeerServer(job, own.name, own.uid, secret=secret, host=host if is_local else "", port=port)
        self._boards = Boards(self._server)
        self._server.handle(Frame, self._receive)
        self._server.handle(Joins, self._joiners.hear)
        self._server.handle(Prepare, self._hear_offer)
        self._server.handle(Begins, self._hear_offer)
        self._server.handle(Left, self._hear_left)
        self._server.handle(Over, self._hear_over)
        self._server.handle(Vouches, self._hear_voucher)
        self._server.on_opened(self._opened)
        self._server.on_ended(self._ended)
        self._listeners: tuple[str, ...] = ()
        self._voucher: Voucher | None = None
        if held_seconds is not None:
            silence = rules.silence_seconds
            order = Order(os.getpid(), job, own.name, own.uid, secret, silence / 2, min(1.0, silence / 5), held_seconds)
            self._voucher = Voucher(order)
        self._server.start()

    # --- the training's side: what happened ---------------------------------------------------------------------

    def know(self, plan: Plan) -> None:
        """These members can be reached from now on."""
        with self._lock:
            self._members |= {member.uid: member for member in plan.members}

    def begin(self, plan: Plan, *, starts: bool) -> None:
        """The first plan that this worker follows, or another one in its place before its members have met. If it
        `starts`, the job begins with it: it does not continue what others train."""
        self.know(plan)
        uids = tuple(member.uid for member in plan.members)
        with self._lock:
            self._form = self._offered = None
            if starts:
                self._post(p.Plan(plan.generation, uids, starts=True))
            self._joiners.begin(plan.generation if starts else None)

    def read(self, plan: Plan) -> None:
        """This worker's own volume shows this plan, which may be news to the state machine."""
        known = self._state.plan
        if known is None or plan.generation > known.generation:
            self.know(plan)
            uids = tuple(member.uid for member in plan.members)
            self._post(p.Plan(plan.generation, uids, not plan.continues, frozenset(plan.evicted)))

    def contributes(self) -> None:
        """This worker begins to contribute to a step."""
        self._contributed = now()

    def committed(self, step: int) -> None:
        """So many steps are committed; before this worker contributes to the next one."""
        with self._lock:
            self._commit = p.Committed(step, self._contributed), now()

    def woke(self) -> float:
        """When this worker last was itself away for longer than a silence, as it knows now; only ever later."""
        with self._lock:
            if now() - self._state.pulse > self._state.rules.silence_seconds:
                self._post(p.Tick())
            return self._state.woke

    def may_commit(self) -> bool:
        """Whether this worker is a member of an attempt in which it may commit a step, or write a checkpoint, now. If
        it was away, this waits until a peer says so, or until they have been silent for too long themselves."""
        with self._changed:
            while asks_peers(self._state):
                self._changed.wait(_LOOK_SECONDS)
            return may_commit(self._state, now())

    def broken(self, step: int) -> None:
        """This worker has left its attempt, and commits nothing more in it."""
        self._post(p.Broken(step))

    def made(self, number: Number) -> None:
        """The groups of this attempt are made."""
        self._post(p.Made(number))

    def making_failed(self, number: Number) -> None:
        """The groups of this attempt could not be made."""
        self._post(p.MakingFailed(number))

    def stay_together(self) -> None:
        """From now on nobody is left behind: these members cannot go on without one that ends."""
        with self._lock:
            self._all_needed = True
            self._state = needing_all(self._state)

    def agreed(self, step: int) -> None:
        """This worker has the state that its attempt begins with."""
        self._joiners.begin(None)
        if self.number is not None:
            self._boards.forget(self.number)  # all have contributed, so all have made their groups
        self._post(p.Agreed(step))

    def prepared(self, roster: Roster, within: Number | None) -> None:
        """Groups of a planned change are about to be made; all that join were found alike.

        `within`: the attempt in which they are prepared, None on a joiner. Raises RuntimeError if that has ended.
        """
        with self._lock:
            self._post(p.Prepared(roster, within))
            if not is_prepared(self._state, roster.number):
                raise RuntimeError(f"the attempt in which {roster.number} was prepared has ended")

    def announced(self, number: Number) -> None:
        """This worker is about to announce the switch to groups that are made."""
        self._post(p.Announced(number))

    def abandoned(self, number: Number) -> None:
        """All members know that nobody goes over to these groups."""
        self._post(p.Abandoned(number))

    def switched(self, number: Number) -> None:
        """This worker has gone over to the groups of a planned change."""
        self._post(p.Switched(number))

    def leaves(self, why: str) -> None:
        """This worker leaves the job before its end: tell the others why, and be dead to them."""
        with self._lock:
            self._spread(Left(self.own.uid, why))
        self.close(_LEAVE_SECONDS)

    def tell_over(self) -> None:
        """The job is done: tell whoever waits to join."""
        self._joiners.tell_over()

    def close(self, seconds: float = 0.0) -> None:
        """This worker's part has ended: listen no more."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            voucher, self._voucher = self._voucher, None
        self._server.close(seconds)
        if voucher is not None:
            voucher.close()

    # --- the training's side: what to do ------------------------------------------------------------------------

    def member(self, uid: str) -> Member | None:
        """The worker with this UID, if any plan has named it."""
        return self._members.get(uid)

    @property
    def is_out(self) -> bool:
        """Whether a peer or the operator says that the others have gone on without this worker."""
        return bool(self._out)

    @property
    def number(self) -> Number | None:
        """That of the attempt in which this worker trains, or trained last."""
        formed = self._state.standing.formed
        return None if formed is None else formed.number

    def number_of_change(self, generation: int, tries: int) -> Number:
        """Of the groups of a plan of this generation, of any that were prepared the so manyth. The same on all
        members."""
        assert self.number is not None
        return Number.of_change(generation, self.number, tries)

    def cut_with(self, cut: Callable[[str], None]) -> None:
        """This fails the groups that this worker uses or makes; any thread may call it. At once, if it is due."""
        with self._lock:
            self._cut = cut
            if self._cut_why:
                cut(self._cut_why)

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
        self, plan: Plan, deadline: float, check_stop: Callable[[], None]
    ) -> Prepare | Begins | tuple[p.Form, str]:
        """As a joiner, wait until the first member says under which number to make groups, or that the job only begins,
        or until the others form an attempt with this worker. Raises MembershipError; JobOverError if the job is
        done."""
        keeper = plan.members[0]
        spoke = float("-inf")
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
                    raise MembershipError(f"gave up waiting for {keeper.name} to let this worker join")
                if time.monotonic() > spoke + _JOIN_SECONDS:
                    spoke = time.monotonic()
                    self._speak(keeper, plan.generation)
                self._changed.wait(_LOOK_SECONDS)

    def _speak(self, keeper: Member, generation: int) -> None:
        channel = self._link(keeper.uid) or self._server.dial(keeper.address, keeper.name, keeper.uid)
        channel.send(Joins(generation))

    def _check_hopes(self) -> None:
        """Raises MembershipError if this worker's waiting cannot lead to anything. That a member has ended is told some
        time later: the operator has seen its end by then, since it is the cause."""
        if self._out:
            raise MembershipError(self._out)
        if self._lost:
            raise MembershipError("nobody who lives has the job's state")
        if not self._all_needed:
            return
        for uid in self._state.standing.everyone:
            word, since = self._left.get(uid, ("", float("inf")))
            if time.monotonic() > since + _LEFT_SECONDS:
                raise MembershipError(f"{self._name(uid)} {word}")

    def _who_is_missing(self) -> str:
        state = self._state
        number = state.promised
        if state.convener not in (None, state.me):
            return f"{self._name(str(state.convener))} to form attempt {number}"
        missing = self._missing or tuple(
            uid
            for uid in state.standing.everyone
            if uid != state.me and (uid not in state.met or state.met[uid].meet.number != number)
        )
        return f"{', '.join(map(self._name, missing))} in attempt {number}"

    def _name(self, uid: str) -> str:
        member = self._members.get(uid)
        return uid if member is None else member.name

    # --- boards -------------------------------------------------------------------------------------------------

    def keep_board(self, number: Number, uids: Collection[str]) -> None:
        """Keep the board of a planned change; the one before, if there is one, is dropped."""
        with self._lock:
            self._keep_board(number, uids)

    def offer(self, offer: Prepare | None) -> None:
        """Let those that wait to join make these groups, at this worker's board; None: there is nothing to join any
        more."""
        self._joiners.offer(offer)

    def store(self, number: Number, world_size: int, keeper: str, seconds: float) -> BoardStore:
        """The board of this number that the worker with the UID `keeper` keeps, as a store; no wait for a key is longer
        than `seconds`, and `close_store` ends all of them. Raises StoreError if the keeper is not reached, or if this
        worker is to keep the board and does not."""
        if keeper == self.own.uid:
            try:
                return self._boards.store(number, world_size, None, seconds)
            except ValueError as error:
                raise StoreError(str(error)) from error
        channel = self._link(keeper)
        if channel is None:
            member = self._members[keeper]
            channel = self._server.dial(member.address, member.name, member.uid)
            if not channel.wait_open(_JOIN_SECONDS + _LOOK_SECONDS):
                raise StoreError(f"cannot reach {member.name}: {channel.why}")
        return self._boards.store(number, world_size, channel, seconds)

    def close_store(self, store: BoardStore, why: str) -> None:
        """All that waits for one of its keys fails. Safe from any thread, any number of times."""
        self._boards.close(store, why)

    def _keep_board(self, number: Number, uids: Collection[str]) -> None:
        if self._board is not None:
            self._boards.drop(self._board, "another attempt has begun")
        self._boards.open(number, uids)
        self._board = number

    # --- peers, in the server's thread --------------------------------------------------------------------------

    def _opened(self, channel: Channel) -> None:
        uid = channel.peer.uid
        if uid.endswith(SUFFIX):
            return
        with self._lock:
            self._links.setdefault(uid, []).append(channel)
            self._post(p.Connected(uid))

    def _ended(self, channel: Channel) -> None:
        with self._lock:
            if channel.has_opened:
                uid = channel.peer.uid
                self._joiners.forget(channel)
                left = [each for each in self._links.get(uid, []) if each is not channel]
                if left:
                    self._links[uid] = left
                elif self._links.pop(uid, None):
                    self._post(p.Closed(uid))
            elif channel.dials:
                _, uid = channel.expected
                self._post(p.Refused(uid) if channel.end is End.REFUSED else p.Unreachable(uid))
                # Of others the operator hears when their machines are lost, too, which it learns of later.
                if uid in self._state.leases.refused and uid in self._state.standing.everyone[:1]:
                    self._left.setdefault(uid, ("has ended", time.monotonic()))

    def _receive(self, channel: Channel, frame: Frame) -> None:
        self._post(p.Received(channel.peer.uid, frame.message, frame.sent, frame.echo))

    def _hear_voucher(self, channel: Channel, message: Vouches) -> None:
        if channel.peer.uid.endswith(SUFFIX):
            self._post(p.Vouched(channel.peer.uid.removesuffix(SUFFIX)))

    def _hear_offer(self, channel: Channel, offer: Prepare | Begins) -> None:
        with self._changed:
            self._offered = offer
            self._changed.notify_all()

    def _hear_over(self, channel: Channel, message: Over) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _hear_left(self, channel: Channel, message: Left) -> None:
        with self._lock:
            word = f"left: {message.why}"
            known = self._left.get(message.uid)
            if message.uid in self._members and (known is None or known[0] != word):
                self._left[message.uid] = word, time.monotonic()
                self._spread(message)

    def _spread(self, message: Left) -> None:
        """Members are connected with the first two of them alone, who hand it on."""
        for uid in self._links:
            channel = self._link(uid)
            if channel is not None and uid != message.uid:
                channel.send(message)

    def _link(self, uid: str) -> Channel | None:
        return next((each for each in reversed(self._links.get(uid, [])) if each.is_open), None)

    # --- the state machine --------------------------------------------------------------------------------------

    def _post(self, event: p.Event) -> None:
        with self._changed:
            self._tell_commit()
            self._step(event, now())
            self._changed.notify_all()

    def _tell_commit(self) -> None:
        """Before anything else happens. Several commits of which the last alone is told prove no more than they do."""
        commit, self._commit = self._commit, None
        if commit is not None:
            self._step(*commit)

    def _step(self, event: p.Event, at: float) -> None:
        before = self._state
        self._state, actions = step(before, event, max(at, before.pulse))
        for action in actions:
            if isinstance(action, p.MakeGroups) and self._state.convener == self.own.uid:
                self._keep_board(action.form.roster.number, action.form.roster.members)
        for action in actions:
            safely(partial(self._carry_out, action))
        if self._voucher is not None and listeners(self._state) != self._listeners:
            self._listeners = listeners(self._state)
            known = [self._members[uid] for uid in self._listeners if uid in self._members]
            self._voucher.listen([(each.name, each.uid, each.address) for each in known])

    def _carry_out(self, action: p.Action) -> None:
        match action:
            case p.Send(uid, message, sent, echo):
                channel = self._link(uid)
                if channel is not None:
                    channel.send(Frame(sent, echo, message))
            case p.Dial(uid):
                self._dial(uid)
            case p.Cut(why):
                self._cut_why = why
                if self._cut is not None:
                    self._cut(why)
            case p.MakeGroups(form):
                self._cut, self._cut_why, self._missing = None, "", ()
                self._form = form, self._state.convener or self.own.uid
            case p.Hold(missing):
                self._missing = missing
                log.warning("waiting for %s", ", ".join(map(self._name, missing)))
            case p.Exit(why):
                self._out = why
            case p.AllLost():
                self._lost = True
            case p.Wait(until):
                self._wake_at(until)

    def _dial(self, uid: str) -> None:
        member = self._members.get(uid)
        if member is None:
            self._server.call_soon(partial(self._post, p.Unreachable(uid)))
        else:
            self._server.dial(member.address, member.name, member.uid)

    def _wake_at(self, until: float) -> None:
        if until < self._tick_at:
            self._tick_at = until
            self._server.call_later(max(0.0, until - now()), partial(self._tick, until))

    def _tick(self, due: float) -> None:
        with self._lock:
            if self._is_closed or due != self._tick_at:
                return  # an earlier one was asked for meanwhile, and has come
            self._tick_at = float("inf")
            if self._voucher is not None:
                self._voucher.lives()
            try:
                self._post(p.Tick())
            finally:
                if self._tick_at == float("inf"):
                    self._wake_at(now() + _TICK_SECONDS)  # a fault in this turn does not end all others
