"""The parts of which one call of `convening.step` is made: sending, dialling, and going from one phase to another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.roster import Number, Roster
from heterotrain.groups.convening.settling import is_doubtful
from heterotrain.groups.convening.worker_state import IN_ATTEMPT, Phase, State


class Turn:
    """One call of `step`: the state as it is by then, and the actions so far."""

    def __init__(self, state: State, now: float) -> None:
        self.state = state
        self.now = now
        self.actions: list[p.Action] = []

    def _set(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)

    @property
    def _formed_number(self) -> Number | None:
        formed = self.state.standing.formed
        return formed.number if formed is not None else None

    def _others(self, roster: Roster | None) -> list[str]:
        return [uid for uid in roster.members if uid != self.state.me] if roster is not None else []

    def _hubs(self) -> list[str]:
        """Whom a member beats: the first, and the second so that it knows at once whether that one lives."""
        formed = self.state.standing.formed
        return [uid for uid in formed.members[:2] if uid != self.state.me] if formed is not None else []

    def _alive(self) -> p.Alive:
        return p.Alive(self._formed_number, self.state.leaving)

    def _note(self, number: Number) -> None:
        self._set(seen=max(self.state.seen, number))

    def _enter_meeting(self) -> None:
        state = self.state
        promised = max(state.seen, state.promised.next(), state.standing.newest.next())
        was_in_attempt = state.phase in IN_ATTEMPT or state.phase is Phase.BREAKING
        if was_in_attempt:
            self._begin_silences(state.standing.formed)
        self._set(
            phase=Phase.MEETING,
            promised=promised,
            seen=max(state.seen, promised),
            convener=None,
            since=state.since if was_in_attempt or state.phase is Phase.MAKING else self.now,
            form=None,
            last_hold=None,
            awaited=frozenset(),
            last_meet=None,
            called=frozenset(),
        )

    def _begin_silences(self, formed: Roster | None) -> None:
        """As a member this worker has listened to the first two, and as one of these to all members; the silence of
        the others begins now."""
        state = self.state
        members = formed.members if formed is not None else ()
        listened = members if state.me in members[:2] else members[:2]
        begun = dict.fromkeys((uid for uid in state.standing.everyone if uid not in listened), self.now)
        self._set(leases=replace(state.leases, received_at={**state.leases.received_at, **begun}))

    def _make(self, form: p.Form) -> None:
        standing = form.known.accept(form.roster)
        self._set(phase=Phase.MAKING, standing=standing, form=form)
        self._note(form.roster.number)
        self.actions.append(p.MakeGroups(form))

    def _leave_attempt(self, why: str) -> None:
        if self.state.phase in IN_ATTEMPT:
            self._set(phase=Phase.BREAKING)
            self.actions.append(p.Cut(why))

    def _exit(self, why: str) -> None:
        if self.state.phase in IN_ATTEMPT or self.state.phase is Phase.MAKING:
            self.actions.append(p.Cut(why))
        self._set(phase=Phase.OUT)
        self.actions.append(p.Exit(why))

    def _forget(self, uid: str) -> None:
        self._set(met={each: met for each, met in self.state.met.items() if each != uid})

    def _lost(self, uid: str) -> None:
        """A member's process has ended."""
        state = self.state
        if state.standing.formed is not None and uid in state.standing.formed.members:
            self._leave_attempt(f"{uid} has ended")
        if state.phase is Phase.MAKING and state.form is not None and uid in state.form.roster.members:
            self.actions.append(p.Cut(f"{uid} has ended"))

    def _greet(self, uid: str) -> None:
        """A channel has opened: say at once what the next beat would say."""
        state = self.state
        if state.phase is Phase.MEETING:
            if state.convener == uid:
                self._send_meet(uid)
        elif uid in self._hubs() and state.phase is not Phase.WAITING:
            self._send(uid, p.Beat(self._formed_number))

    def _own_meet(self) -> p.Meet:
        state = self.state
        others = [uid for uid in state.standing.everyone if uid != state.me]
        return p.Meet(
            state.promised,
            state.standing,
            state.steps,
            state.has_state,
            state.begun,
            frozenset(state.leases.refused),
            frozenset(state.leases.proven),
            state.leases.owed(others, self.now, state.rules.silence_seconds),
            state.leaving,
            state.announced,
        )

    def _own_meet_without_leases(self) -> p.Meet:
        return replace(self._own_meet(), owes=())

    def _send_meet(self, uid: str) -> None:
        self._set(last_meet=self._own_meet_without_leases())
        self._send(uid, self._own_meet())

    def _reach(self, uid: str, message: p.Message) -> None:
        if uid == self.state.me:
            return
        if uid in self.state.links:
            self._send(uid, message)
        else:
            self._dial(uid)

    def _dial(self, uid: str) -> None:
        if uid != self.state.me and uid not in self.state.dialled and uid not in self.state.links:
            self._set(dialled=self.state.dialled | {uid})
            self.actions.append(p.Dial(uid))

    def _grants(self, uid: str) -> bool:
        """Whether this worker answers for itself: it has accepted nothing without that peer, and meets nobody else."""
        state = self.state
        if not state.standing.holds(uid):
            return False
        if is_doubtful(uid, state.returned, state.leases, state.rules.beat_seconds):
            return False  # it may be gone again, and nobody may go on without it while this worker is bound to it
        return state.phase is not Phase.MEETING or state.convener in (state.me, uid)

    def _send(self, uid: str, message: p.Message) -> None:
        echo: float | None = None
        if self._grants(uid):
            leases, echo = self.state.leases.answer(uid, self.now)
            self._set(leases=leases)
        self.actions.append(p.Send(uid, message, self.now, echo))
