"""Who trains together with this worker: the protocol of `convening` among real peers, threads and clocks.

What happens to the peers arrives in the thread of the peer server, and what happens to the training from the thread of
the training; each is one event for the state machine, whose actions are carried out at once. None of them waits.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial

from heterotrain.contract import Member, Plan
from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.roster import Number, Roster
from heterotrain.groups.convening.worker_state import Rules, listeners
from heterotrain.groups.links import Joiners, Links
from heterotrain.groups.peering.board_store import BoardStore, StoreError
from heterotrain.groups.peering.boards import Boards
from heterotrain.groups.peering.channel import Channel, End
from heterotrain.groups.peering.event_loop import safely
from heterotrain.groups.peering.messages import Begins, Frame, Joins, Left, Over, Prepare, Vouches
from heterotrain.groups.peering.own_sockets import split_address
from heterotrain.groups.peering.server import PeerServer
from heterotrain.groups.peering.vouching import SUFFIX, Order
from heterotrain.groups.stepping import Stepping
from heterotrain.groups.voucher import Voucher
from heterotrain.groups.waiting import JobOverError, MembershipError, Waiting

__all__ = ["Assembly", "JobOverError", "MembershipError"]

log = logging.getLogger(__name__)

_REACH_SECONDS = 1.05  # for the keeper of a board to answer
_LEAVE_SECONDS = 1.0


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
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._links = Links(own)
        self._cut: Callable[[str], None] | None = None
        self._cut_why = ""
        self._joiners = Joiners(self._lock)
        self._board: Number | None = None  # of the attempt that this worker convened last
        self._server = PeerServer(job, own.name, own.uid, secret=secret, host=host if is_local else "", port=port)
        self._boards = Boards(self._server)
        self._stepping = Stepping(
            own.uid,
            rules,
            self._changed,
            act=self._act,
            at_tick=self._vouch,
            call_later=self._server.call_later,
        )
        self._waiting = Waiting(self._changed, lambda: self._stepping.state, self._links.name)
        self._server.handle(Frame, self._receive)
        self._server.handle(Joins, self._joiners.receive)
        self._server.handle(Prepare, self._receive_offer)
        self._server.handle(Begins, self._receive_offer)
        self._server.handle(Left, self._receive_left)
        self._server.handle(Over, self._receive_over)
        self._server.handle(Vouches, self._receive_voucher)
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
            self._links.know(plan)

    def begin(self, plan: Plan, *, starts: bool) -> None:
        """The first plan that this worker follows, or another one in its place before its members have met. If it
        `starts`, the job begins with it: it does not continue what others train."""
        self.know(plan)
        uids = tuple(member.uid for member in plan.members)
        with self._lock:
            self._waiting.begin()
            if starts:
                self._post(p.PlanShown(plan.generation, uids, starts=True))
            self._joiners.begin(plan.generation if starts else None)

    def read(self, plan: Plan) -> None:
        """This worker's own volume shows this plan, which may be news to the state machine."""
        known = self._stepping.state.plan
        if known is None or plan.generation > known.generation:
            self.know(plan)
            uids = tuple(member.uid for member in plan.members)
            self._post(p.PlanShown(plan.generation, uids, not plan.continues, frozenset(plan.evicted)))

    def contributes(self) -> None:
        """This worker begins to contribute to a step."""
        self._stepping.contributes()

    def committed(self, step: int) -> None:
        """So many steps are committed; before this worker contributes to the next one."""
        self._stepping.committed(step)

    def woke(self) -> float:
        """When this worker last was itself away for longer than a silence, as it knows now; only ever later."""
        return self._stepping.woke()

    def may_commit(self) -> bool:
        """Whether this worker is a member of an attempt in which it may commit a step, or write a checkpoint, now. If
        it was away, this waits until a peer says so, or until they have been silent for too long themselves."""
        return self._stepping.may_commit()

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
        self._stepping.need_all()

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
        if not self._stepping.prepared(p.Prepared(roster, within)):
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

    def announce_job_finished(self) -> None:
        """The job is done: tell whoever waits to join."""
        self._joiners.announce_job_finished()

    def close(self, seconds: float = 0.0) -> None:
        """This worker's part has ended: listen no more."""
        with self._lock:
            if not self._stepping.close():
                return
            voucher, self._voucher = self._voucher, None
        self._server.close(seconds)
        if voucher is not None:
            voucher.close()

    # --- the training's side: what to do ------------------------------------------------------------------------

    def member(self, uid: str) -> Member | None:
        """The worker with this UID, if any plan has named it."""
        return self._links.member(uid)

    @property
    def is_out(self) -> bool:
        """Whether a peer or the operator says that the others have gone on without this worker."""
        return self._waiting.is_out

    @property
    def number(self) -> Number | None:
        """That of the attempt in which this worker trains, or trained last."""
        formed = self._stepping.state.standing.formed
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
        return self._waiting.await_form(deadline, check_stop)

    def await_offer(
        self, plan: Plan, deadline: float, check_stop: Callable[[], None]
    ) -> Prepare | Begins | tuple[p.Form, str]:
        """As a joiner, wait until the first member says under which number to make groups, or that the job only begins,
        or until the others form an attempt with this worker. Raises MembershipError; JobOverError if the job is
        done."""
        return self._waiting.await_offer(
            plan, deadline, check_stop, ask=partial(self._ask_to_join, plan.members[0], plan.generation)
        )

    def _ask_to_join(self, keeper: Member, generation: int) -> None:
        channel = self._links.channel(keeper.uid) or self._dial(keeper)
        channel.send(Joins(generation))

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
        channel = self._links.channel(keeper)
        if channel is None:
            member = self._links.member(keeper)
            assert member is not None, "a plan has named whoever keeps a board"
            channel = self._dial(member)
            if not channel.wait_open(_REACH_SECONDS):
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
            self._links.opened(channel)
            self._post(p.Connected(uid))

    def _ended(self, channel: Channel) -> None:
        with self._lock:
            if channel.has_opened:
                self._joiners.forget(channel)
                if self._links.ended(channel):
                    self._post(p.Closed(channel.peer.uid))
            elif channel.dials:
                _, uid = channel.expected
                self._post(p.Refused(uid) if channel.end is End.REFUSED else p.Unreachable(uid))
                # The operator learns of the end of others also when their machines are lost, and then later.
                state = self._stepping.state
                if uid in state.leases.refused and uid in state.standing.everyone[:1]:
                    self._waiting.ended(uid)

    def _receive(self, channel: Channel, frame: Frame) -> None:
        self._post(p.Received(channel.peer.uid, frame.message, frame.sent, frame.echo))

    def _receive_voucher(self, channel: Channel, message: Vouches) -> None:
        if channel.peer.uid.endswith(SUFFIX):
            self._post(p.Vouched(channel.peer.uid.removesuffix(SUFFIX)))

    def _receive_offer(self, channel: Channel, offer: Prepare | Begins) -> None:
        with self._changed:
            self._waiting.offered(offer)
            self._changed.notify_all()

    def _receive_over(self, channel: Channel, message: Over) -> None:
        with self._changed:
            self._waiting.over()
            self._changed.notify_all()

    def _receive_left(self, channel: Channel, message: Left) -> None:
        with self._lock:
            if self._links.member(message.uid) is not None and self._waiting.left(message.uid, message.why):
                self._spread(message)

    def _spread(self, message: Left) -> None:
        """Members are connected with the first two of them alone, who hand it on."""
        for uid, channel in self._links.open_channels():
            if uid != message.uid:
                channel.send(message)

    def _dial(self, member: Member) -> Channel:
        return self._server.dial(member.address, member.name, member.uid)

    # --- the state machine --------------------------------------------------------------------------------------

    def _post(self, event: p.Event) -> None:
        self._stepping.post(event)

    def _act(self, actions: Sequence[p.Action]) -> None:
        """Boards come first, for whoever receives the number of an attempt asks for its board."""
        for action in actions:
            if isinstance(action, p.MakeGroups) and self._stepping.state.convener == self.own.uid:
                self._keep_board(action.form.roster.number, action.form.roster.members)
        for action in actions:
            safely(partial(self._carry_out, action))
        judges = listeners(self._stepping.state)
        if self._voucher is not None and judges != self._listeners:
            self._listeners = judges
            known = [member for uid in judges if (member := self._links.member(uid)) is not None]
            self._voucher.listen([(each.name, each.uid, each.address) for each in known])

    def _carry_out(self, action: p.Action) -> None:
        match action:
            case p.Send(uid, message, sent, echo):
                channel = self._links.channel(uid)
                if channel is not None:
                    channel.send(Frame(sent, echo, message))
            case p.Dial(uid):
                member = self._links.member(uid)
                if member is None:
                    self._server.call_soon(partial(self._post, p.Unreachable(uid)))
                else:
                    self._dial(member)
            case p.Cut(why):
                self._cut_why = why
                if self._cut is not None:
                    self._cut(why)
            case p.MakeGroups(form):
                self._cut, self._cut_why = None, ""
                self._waiting.formed(form, self._stepping.state.convener or self.own.uid)
            case p.Hold(missing):
                self._waiting.missing(missing)
                log.warning("waiting for %s", ", ".join(map(self._links.name, missing)))
            case p.Exit(why):
                self._waiting.out(why)
            case p.AllLost():
                self._waiting.lost()
            case p.Wait(until):
                self._stepping.wake_at(until)

    def _vouch(self) -> None:
        if self._voucher is not None:
            self._voucher.lives()
