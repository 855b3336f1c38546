"""What a worker does by itself as time goes on: beating, judging silence, meeting, and convening if it is the first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.roster import Number
from heterotrain.groups.convening.settling import (
    Attendance,
    Holds,
    Lost,
    Met,
    Out,
    Verdict,
    Waits,
    doubtful,
    known_to,
    settle,
)
from heterotrain.groups.convening.turn import Turn
from heterotrain.groups.convening.worker_state import IN_ATTEMPT, Phase

_SOON_SECONDS = 0.01
_TURNS_OF_A_MEETING = 0.2  # of the time between two beats: what it waits for may be over by itself


class Attending(Turn):
    """A turn that knows what is due whatever has happened."""

    quiet = False  # what has happened is a frame, or a new channel, and lets nobody be missed who was not

    def go_on(self) -> None:
        """What is due whatever has happened."""
        beat = self.now >= self.state.next_beat
        if beat:
            self._set(next_beat=self.now + self.state.rules.beat_seconds)
        if self.now >= self.state.judge_at and self.state.phase in IN_ATTEMPT:
            self._judge()
        if self.state.phase in IN_ATTEMPT or self.state.phase is Phase.BREAKING:
            if beat:
                for uid in self._hubs():
                    self._reach(uid, p.Beat(self._formed_number))
        elif self.state.phase is Phase.MEETING:
            self._meet(beat=beat)
        self._wait()

    def _wait(self) -> None:
        """Until the next turn that no event brings. A silence is noticed as soon as it has lasted long enough: later,
        channels to who is silent end, and over those that are tried again something may come from it once more."""
        state = self.state
        if state.phase is Phase.OUT:
            return
        until = min(state.next_beat, self.now + state.rules.late_seconds / 2)
        if state.phase in IN_ATTEMPT:
            until = min(until, state.judge_at)
        elif state.phase is Phase.MEETING:
            until = min(until, self.now + state.rules.beat_seconds * _TURNS_OF_A_MEETING)
        self.actions.append(p.Wait(until))

    def _judge(self) -> None:
        """The first member judges all others, and they judge it."""
        state, roster = self.state, self.state.standing.formed
        if roster is None:
            return
        judged = roster.members[1:] if roster.members[0] == state.me else roster.members[:1]
        silence = state.rules.silence_seconds
        silent = [uid for uid in judged if state.leases.is_silent(uid, self.now, state.woke, silence)]
        if not silent:
            oldest = min(
                (max(state.leases.received_at.get(uid, state.woke), state.woke) for uid in judged), default=self.now
            )
            self._set(judge_at=max(oldest + silence, self.now) + _SOON_SECONDS)
            return
        for uid in roster.members:
            if uid != state.me and uid in state.links:
                self._send(uid, p.GiveUp(roster.number, silent[0]))
        self._leave_attempt(f"{silent[0]} is silent")

    def _meet(self, *, beat: bool) -> None:
        state = self.state
        target = self._target()
        if target is None:
            return
        if target != state.convener:
            if state.convener is not None:
                self._set(promised=max(state.seen, state.promised.next()))
                self._listen_again(target)
            seen = max(state.seen, self.state.promised)
            self._set(convener=target, called=frozenset(), awaited=frozenset(), last_meet=None, seen=seen)
            beat = True
        if target == state.me:
            self._convene(beat=beat)
        elif beat:
            if target not in self.state.links:
                self._dial(target)
            elif self._own_meet_without_leases() == self.state.last_meet:
                self._send(target, p.Beat(self._formed_number))
            else:
                self._send_meet(target)

    def _listen_again(self, target: str) -> None:
        """All who met spoke to the convener that is gone, and not to one another: the silence of those that come after
        the next one begins now. Those before it were waited for."""
        state = self.state
        everyone = state.standing.everyone
        later = everyone[everyone.index(target) + 1 :] if target in everyone else ()
        begun = dict.fromkeys((uid for uid in later if uid in state.leases.received_at), self.now)
        self._set(leases=replace(state.leases, received_at={**state.leases.received_at, **begun}))

    def _target(self) -> str | None:
        """The first candidate that lives and stays, as far as is known here; if all leave, the first that lives."""
        state, formed = self.state, self.state.standing.formed
        if formed is None:
            return state.caller if self._lives(state.caller) else None  # who has only joined convenes nothing
        leavers = state.leavers | {state.me} if state.leaving else state.leavers

        def first(candidates: Iterable[str]) -> str | None:
            return next((uid for uid in candidates if uid == state.me or self._lives(uid)), None)

        return first(uid for uid in formed.members if uid not in leavers) or first(formed.members)

    def _lives(self, uid: str | None) -> bool:
        """Whether a peer may still answer, as far as is known here."""
        state = self.state
        return (
            uid is not None
            and uid not in state.leases.refused
            and (state.plan is None or uid not in state.plan.evicted)
            and not state.leases.is_silent(uid, self.now, state.since, state.rules.silence_seconds)
        )

    def _convene(self, *, beat: bool) -> None:
        state = self.state
        if self.quiet and not beat and state.awaited:
            return  # with a thousand members, to look at all whenever one comes would take seconds
        number = max([state.promised, *(met.meet.number for met in state.met.values())])
        if state.last_hold is not None and state.plan is not None and state.plan.evicted:  # see `_seen_ended`
            number = max(number, Number.by_word_of(state.plan.generation))
        if number > state.promised:
            self._set(promised=number, called=frozenset())
        self._note(number)
        state = self.state
        meeting = Attendance(
            me=state.me,
            number=number,
            met={**state.met, state.me: Met(self._own_meet(), self.now)},
            leases=state.leases,
            since=state.since,
            away=state.away,
            plan=state.plan,
            silence_seconds=state.rules.silence_seconds,
            split=state.rules.split,
            all_needed=state.rules.all_needed,
            returned=state.returned,
            beat_seconds=state.rules.beat_seconds,
        )
        self._carry_out(settle(meeting, self.now), meeting, beat=beat)

    def _carry_out(self, verdict: Verdict, meeting: Attendance, *, beat: bool) -> None:
        if isinstance(verdict, Out):
            self._exit(f"attempt {verdict.by.number} has formed without this worker")
            return
        if isinstance(verdict, p.Form):
            for uid in verdict.roster.members:
                if uid != self.state.me:
                    self._send(uid, verdict)
            self._make(verdict)
            return
        waits = verdict.missing if isinstance(verdict, Waits) and verdict.until is None else ()
        self._set(awaited=frozenset(waits))
        held_up_by = verdict.missing if isinstance(verdict, Holds) else None
        if isinstance(verdict, Lost) and self.state.last_hold != ():
            self.actions.append(p.AllLost())
            held_up_by = ()
        if held_up_by is not None and held_up_by != self.state.last_hold:
            if held_up_by:
                self.actions.append(p.Hold(held_up_by))
            self._set(last_hold=held_up_by)
        self._call(meeting, verdict.missing if isinstance(verdict, (Holds, Waits)) else (), beat=beat)

    def _call(self, meeting: Attendance, missing: tuple[str, ...], *, beat: bool) -> None:
        """Call those who have not met under this number.

        Whoever is no member of a job's first plan has joined it, even if nobody here has ever made groups.
        """
        begun = any(each.meet.begun for each in meeting.met.values())
        ready = {uid for uid, each in meeting.met.items() if each.meet.number == meeting.number}
        known = known_to(meeting)
        first = known.formed.members if known.formed is not None else ()
        for uid in dict.fromkeys((*known.everyone, *missing)):
            if uid not in ready and uid not in self.state.leases.refused and (beat or uid not in self.state.called):
                self._reach(uid, p.Call(meeting.number, self._formed_number, begun or uid not in first))
                self._set(called=self.state.called | {uid})
        for uid in doubtful(meeting):
            if uid in ready and uid in self.state.links:
                self._send(uid, p.Call(meeting.number, self._formed_number, begun or uid not in first))
