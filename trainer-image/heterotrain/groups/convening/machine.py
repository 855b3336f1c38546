"""How the workers of an attempt that broke find one another and form the next one, as a pure state machine.

`step(state, event, now)` returns the state and the actions that follow; it reads no clock and does no I/O.
`protocol.py` says of each event and action what its caller owes. One state serves both roles: each member meets the
first candidate in the order of its attempt that lives and stays, and whoever is that itself convenes. `now` is
CLOCK_BOOTTIME, in seconds, so that it goes on while a process is stopped.

* A collective failed (`Broken`), or groups could not be made (`MakingFailed`): promise the next number, and send `Meet`
  to the first candidate that is not known to have ended, to be evicted, silent or leaving.
* A member's channel ended: dial it; a refusal says that it has ended, so the attempt is cut (`Cut`).
* A member has promised a newer number, or is given up as silent: cut, and meet once the training thread has left the
  attempt (`Broken`). Until then beats are answered, so the others wait for it.
* The first candidate itself calls everybody (`Call`) under the highest number that was promised to it, until all have
  met under one number, have ended or are silent. Then it forms the next attempt (`Form`) if there is a quorum
  (`roster.py`), and otherwise says what is missing (`Hold`) and calls again with every beat (`settling.py`).
* `Form` is accepted from the convener of the newest promise, under that very number, unless this worker is bound to
  somebody left out (`leases.py`). The attempt is pending from then on.
* Groups are made (`Made`): the attempt is complete. It trains after `Agreed`.
* A worker that is asked to stop (`Leaving`) trains on. It is left out of the next attempt if the others are a quorum
  and have the state, and learns of it (`Fenced`); it convenes only if all leave.
* A newer attempt is complete without this worker, or the operator has evicted it: `Exit`, and nothing more is written.
* This worker was itself away for longer than a silence (it was stopped, or the interpreter was held): it commits
  nothing more until a peer has answered it, which grants that it was not left out. It may convene, for all may have
  been away together, but it forms no attempt *alone* until a peer has answered it or a newer plan names it. Without
  the only member of an attempt, or the only one not proven dead, nobody can have gone on, so it needs nobody's word.
* There is no quorum, but a newer plan says who has ended: all whom it names meet, under a number above all attempts
  before it, and go on with the newest state among them. Steps that only those who ended had committed are lost then.
  Newcomers among them are called so that they can tell what they know, and join by a planned change afterwards.

What is to hold whatever frames are lost, late or repeated, ways closed, and processes stopped or ended (tested by
schedules of faults on a simulated network, not proven):

* No two attempts of one number have a quorum, so no two are ever complete.
* Once an attempt is complete, an older one commits no step but the one that was under way, and the newer one begins at
  most one step before that. So no two attempts train beside each other.
* Each attempt has a quorum of the complete one before it, was planned in it, or has the operator's word that who is
  missing has ended.
* Once faults end, those who live and are a quorum train within seconds (some silences and times for making groups).
  Without a quorum they wait for a plan.

Assumed:

* The caller does what `protocol.py` asks. `may_commit` is asked in the same moment as the commit; a checkpoint carries
  the number of its attempt.
* `Made` is said only when a connection to each member of the roster is up: then all of them have accepted it.
* One switch at a time: the next change is prepared in the attempt that the one before has led to. A leaver waits to be
  released: who ends at once breaks the attempt in which the others may still be.
* Clocks run equally fast, within the ratio of `proof_seconds` to `silence_seconds`, and go on while a process is
  stopped.
* The port is open from before the first message until the process ends. A UID is one process's.
* The operator names as `evicted` only workers that it has seen end, and only if all others are members of that plan
  that it has named since one which its members have gone over to, and in that one. Whoever was let go before can form
  nothing any more. One that hangs is ended first and evicted then.
* No attempt has a number of a later generation than the newest plan that its members have gone over to, or have
  accepted the change to.
"""

from __future__ import annotations

from dataclasses import replace

from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.attending import Attending
from heterotrain.groups.convening.roster import Number, Roster, Standing
from heterotrain.groups.convening.settling import Met, has_returned, is_only_one
from heterotrain.groups.convening.worker_state import IN_ATTEMPT, PREPARING, Phase, State

_KEPT_FOR_EACH, _KEPT = 4, 64  # workers of whom something is known, for each member of an attempt and beside


def step(state: State, event: p.Event, now: float) -> tuple[State, tuple[p.Action, ...]]:
    """What a worker does about an event at this time, in seconds of a clock that runs on while it is stopped."""
    if state.phase is Phase.OUT:
        return state, ()
    turn = _Events(state, now)
    turn.notice_gap()
    turn.take(event)
    turn.quiet = isinstance(event, (p.Received, p.Connected))
    turn.go_on()
    return turn.state, tuple(turn.actions)


class _Events(Attending):
    """A turn that takes an event."""

    def notice_gap(self) -> None:
        """A worker that is late accuses nobody; one that was away asks its peers whether they went on without it."""
        state, gap = self.state, self.now - self.state.pulse
        self._set(pulse=self.now)
        if gap > state.rules.late_seconds:
            self._set(leases=state.leases.restart(self.now), since=self.now)
        if gap > state.rules.silence_seconds:
            self._set(away=not is_only_one(state.me, state.standing, state.leases), woke=self.now, next_beat=self.now)

    def take(self, event: p.Event) -> None:
        """What an event changes by itself."""
        state = self.state
        match event:
            case p.Tick():
                pass
            case p.PlanShown():
                self._follow(event)
            case p.Connected(uid):
                self._set(links=state.links | {uid}, dialled=state.dialled - {uid}, called=state.called - {uid})
                self._greet(uid)
            case p.Closed(uid):
                self._set(links=state.links - {uid}, dialled=state.dialled - {uid})
                self._forget(uid)
                if uid in state.standing.everyone and state.phase is not Phase.WAITING:
                    self._dial(uid)
            case p.Refused(uid):
                self._set(
                    dialled=state.dialled - {uid},
                    leases=state.leases.refuse(uid, self.now, state.rules.proof_seconds),
                )
                self._forget(uid)
                if uid in self.state.leases.refused:
                    self._lost(uid)
            case p.Unreachable(uid):
                self._set(dialled=state.dialled - {uid})
            case p.Received():
                self._receive(event)
            case p.Vouched(uid):
                if uid in state.leases.received_at:
                    self._set(leases=state.leases.vouched(uid, self.now))
            case p.Committed(steps, began):
                others = self._others(state.standing.formed)
                self._set(steps=steps, began=began, leases=state.leases.stepped(others, self.now, state.began))
            case p.Broken(steps):
                if state.phase in IN_ATTEMPT or state.phase is Phase.BREAKING:
                    self._set(steps=steps)
                    self._enter_meeting()
            case p.Made(number):
                if state.phase is Phase.MAKING and state.form is not None and state.form.roster.number == number:
                    self._join(state.form.roster)
            case p.MakingFailed(number):
                if state.phase is Phase.MAKING and state.form is not None and state.form.roster.number == number:
                    self._enter_meeting()
            case p.Agreed(steps):
                if state.phase in IN_ATTEMPT or state.phase is Phase.BREAKING:
                    phase = Phase.TRAINING if state.phase is Phase.AGREEING else state.phase
                    self._set(phase=phase, steps=steps, has_state=True, trained=True)
            case p.Prepared(roster, within):
                self._prepare(roster, within)
            case p.Announced(number):
                self._set(announced=state.announced | {number})
            case p.Abandoned(number):
                self._set(standing=state.standing.drop(number))
            case p.Switched(number):
                self._switch(number)
            case p.Leaving():
                self._set(leaving=True)

    def _follow(self, plan: p.PlanShown) -> None:
        state = self.state
        if state.plan is not None and plan.generation <= state.plan.generation:
            return
        self._set(plan=plan)
        if state.me in plan.evicted:
            self._exit(f"the plan of generation {plan.generation} evicts this worker")
        elif plan.starts:
            if state.trained and state.standing.formed is not None:
                self._exit(f"generation {plan.generation} begins from a checkpoint")
            elif state.me in plan.members:
                roster = Roster(Number(plan.generation, 0), plan.members)
                self._set(standing=Standing(roster), has_state=True, begun=False)
                self._enter_meeting()
        else:
            if state.me in plan.members:
                self._set(away=False)
            if state.standing.formed is not None and plan.evicted & set(state.standing.formed.members):
                self._leave_attempt(f"the plan of generation {plan.generation} evicts a member")

    def _prepare(self, roster: Roster, within: Number | None) -> None:
        """Accept a planned change. A joiner that knows of none, and was only called to a meeting, leaves it for one of
        a higher number, and accepts no attempt of that meeting any more: whoever prepares it has gone on without it.

        A joiner forgets older planned changes, since only those who stayed learn that these were abandoned. It has
        gone over to none of them, and makes their groups no more, so no step was or ever will be committed there. Nor
        does a meeting miss what it forgets: all members of the attempt in which a change was prepared accept it before
        anybody goes over to it, and every quorum that might not know of it has one of them in it.
        """
        state, newest = self.state, self._formed_number
        is_idle = state.phase is Phase.MEETING and not state.standing.rosters and roster.number > state.promised
        is_newer = roster.number > (newest or state.promised)
        if roster.announcer is None or within != newest or not is_newer:
            return
        if is_idle:
            self._set(phase=Phase.WAITING, convener=None, met={})
        if self.state.phase in PREPARING:
            known = state.standing.supersede(roster) if newest is None else state.standing
            self._set(standing=known.accept(roster))

    def _switch(self, number: Number) -> None:
        state = self.state
        roster = next((each for each in state.standing.pending if each.number == number), None)
        if roster is None:
            return
        if state.me not in roster.members:
            self._exit(f"this worker has left with generation {number}")
        elif state.phase in IN_ATTEMPT or state.phase is Phase.WAITING:
            self._join(roster)
        elif state.phase is Phase.BREAKING:
            self._set(standing=state.standing.form(roster), begun=True, began=None)

    def _join(self, roster: Roster) -> None:
        """This worker is in a complete attempt."""
        state = self.state
        received_at = {**state.leases.received_at, **dict.fromkeys(self._others(roster), self.now)}
        self._set(
            phase=Phase.AGREEING,
            standing=state.standing.form(roster),
            begun=True,
            began=None,
            away=False,
            leases=replace(state.leases, received_at=received_at),
            returned={},
            met={},
            form=None,
            convener=None,
            last_hold=None,
            announced=frozenset(number for number in state.announced if number >= roster.number),
            next_beat=self.now,
            judge_at=self.now,
        )
        self._forget_others()

    def _forget_others(self) -> None:
        """What is known of workers that are gone for long is let go of, once it is much."""
        state = self.state
        here = frozenset(state.standing.everyone)
        if len(state.leases.received_at) > _KEPT_FOR_EACH * len(here) + _KEPT:
            leases = state.leases.only(here, self.now, state.rules.silence_seconds)
            self._set(leases=leases, leavers=state.leavers & here)

    # --- frames -------------------------------------------------------------------------------------------------

    def _receive(self, event: p.Received) -> None:
        uid, message = event.uid, event.message
        if has_returned(self.now, self.state.leases.received_at.get(uid), self.state.rules.silence_seconds):
            self._set(returned={**self.state.returned, uid: self.now})
        self._set(leases=self.state.leases.receive(uid, self.now, event.sent, event.echo))
        self._learn(message)
        state = self.state
        if state.away and event.echo is not None and event.echo >= state.woke:
            self._set(away=False)
        if state.plan is not None and uid in state.plan.evicted:
            self._send(uid, p.Fenced(Number(state.plan.generation, 0), state.plan.members))
        elif self._is_fenced(uid, message):
            assert state.standing.formed is not None
            self._forget(uid)
            self._send(uid, p.Fenced(state.standing.formed.number, state.standing.formed.members))
        else:
            self._answer(uid, message)

    def _learn(self, message: p.Message) -> None:
        """An attempt that this worker has only accepted is complete, as a peer says: from now on its order counts.

        A joiner that waits for the first contribution of that attempt meets, for its peer has left it again.
        """
        state, number = self.state, _formed_by(message)
        roster = next((each for each in state.standing.pending if each.number == number), None)
        if roster is None or state.me not in roster.members:
            return
        waits = state.phase is Phase.WAITING and isinstance(message, (p.Meet, p.Call))
        if waits or state.phase is Phase.MEETING:
            self._set(standing=state.standing.form(roster), begun=True)
        if waits:
            self._enter_meeting()

    def _is_fenced(self, uid: str, message: p.Message) -> bool:
        """Whether the sender still lives in an attempt older than one that is complete without it."""
        formed = self.state.standing.formed
        if formed is None or not isinstance(message, (p.Beat, p.Meet, p.Call)):
            return False
        if any(uid in roster.members for roster in self.state.standing.rosters):
            return False
        theirs = _formed_by(message)
        if theirs is not None:
            return theirs < formed.number
        if isinstance(message, p.Meet):  # a joiner that was not needed
            return message.number <= formed.number
        return isinstance(message, p.Beat) and self.state.phase in IN_ATTEMPT  # one that was called, to no purpose

    def _answer(self, uid: str, message: p.Message) -> None:
        state, formed = self.state, self.state.standing.formed
        match message:
            case p.Beat():
                self._send(uid, self._alive())
            case p.Meet():
                self._note(message.number)
                if message.leaving:
                    self._set(leavers=state.leavers | {uid})
                if uid not in state.met or state.met[uid].meet.number <= message.number:
                    is_newer = message.number > state.promised
                    awaited = frozenset[str]() if is_newer else state.awaited - {uid}
                    self._set(met={**state.met, uid: Met(message, self.now)}, awaited=awaited)
                self._heed(uid, message.number)
                form = self.state.form
                if form is not None and state.convener == state.me and uid in form.roster.members:
                    if message.number == form.roster.number:
                        self._send(uid, form)  # it had not come
                else:
                    self._send(uid, self._alive())
            case p.Call():
                self._note(message.number)
                self._heed(uid, message.number)
                if formed is None and message.begun:
                    self._follow_caller(uid, message.number)
                if self.state.phase is Phase.MEETING and self.state.convener == uid:
                    if message.number > self.state.promised:
                        self._set(promised=message.number)
                    self._send_meet(uid)
                else:
                    self._send(uid, self._alive())
            case p.Form():
                self._accept(uid, message)
            case p.GiveUp(number, silent):
                if formed is not None and number == formed.number:
                    self._leave_attempt(f"{silent} is silent")
            case p.Fenced(number, members):
                if formed is None:
                    self._dismiss(uid, number)
                elif number > formed.number and state.me not in members:
                    self._exit(f"attempt {number} has formed without this worker")
            case p.Alive(_, leaving):
                if leaving:
                    self._set(leavers=state.leavers | {uid})

    def _follow_caller(self, uid: str, number: Number) -> None:
        """A joiner that has made groups ahead meets whoever calls it, the newest of several."""
        state = self.state
        if state.phase is Phase.WAITING:
            self._set(caller=uid)
            self._enter_meeting()
        elif state.phase is Phase.MEETING and (number > state.promised or not self._lives(state.caller)):
            self._set(caller=uid)

    def _heed(self, uid: str, number: Number) -> None:
        """A peer has promised a number or wants it promised; if it is a member here, its attempt is over."""
        state, formed = self.state, self.state.standing.formed
        if formed is not None and uid in formed.members and number > formed.number:
            self._leave_attempt(f"{uid} has left the attempt")
        form = state.form
        making = state.phase is Phase.MAKING and form is not None and uid in form.roster.members
        if making and form is not None and number > form.roster.number:
            self.actions.append(p.Cut(f"{uid} has left the attempt"))

    def _accept(self, uid: str, form: p.Form) -> None:
        state, roster = self.state, form.roster
        if (
            state.phase is not Phase.MEETING
            or state.convener != uid
            or state.promised != roster.number
            or state.me not in roster.members
        ):
            return
        gone = {*roster.members, *form.excused}
        without = [each for each in state.standing.everyone if each not in gone]
        if state.leases.owed(without, self.now, state.rules.silence_seconds):
            return
        self._make(form)

    def _dismiss(self, uid: str, number: Number) -> None:
        """A joiner was not needed: it waits for another plan. One that meets somebody else by now is needed there."""
        state = self.state
        if state.phase not in (Phase.MEETING, Phase.WAITING) or state.convener not in (uid, None):
            return
        kept = tuple(roster for roster in state.standing.pending if roster.number > number)
        self._set(standing=Standing(None, kept), phase=Phase.WAITING, convener=None, met={})


def _formed_by(message: p.Message) -> Number | None:
    """The attempt that the sender knows to be complete, if it says so."""
    match message:
        case p.Beat() | p.Alive() | p.Call():
            return message.formed
        case p.Meet(standing=Standing(formed=Roster(number=number))):
            return number
        case _:
            return None
