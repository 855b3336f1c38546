"""Who is silent and who is proven dead, as one worker knows it; pure, without torch, clock or I/O.

A port that refuses connections says that its worker is dead. It does not say what this worker agreed to before: it may
have formed an attempt with others who live. So a refusal is a *proof*, which takes the dead one out of the quorums,
only while a **lease** holds:

* Every worker d keeps `granted[p]`, when what it last answered p had come, or when it committed a step with p. It
  accepts no attempt that leaves p out before `granted[p] + silence`, unless p's port refuses.
* Every worker p keeps `contact[d]`, when it sent what d has answered. A refusal of d's is a proof before
  `contact[d] + proof`, with `proof < silence`.

d answers only while it has accepted nothing that leaves p out. What p has sent came to d after that, and before d's
answer, so at a refusal within the lease d has not agreed to anything without p. The time of sending counts, and not
that of the answer: an answer may have been on its way for long. A committed step is an answer of everybody to the
contribution before it (whoever contributes to step k has committed step k - 1). Clocks of different machines are never
compared, they only have to run equally fast within the ratio of `proof` to `silence`, and go on while a process is
stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Leases:
    """What one worker knows of its peers, by UID; all times are in seconds on this worker's own clock."""

    received_at: Mapping[str, float] = field(default_factory=dict)  # when something came from it last
    latest: Mapping[str, float] = field(default_factory=dict)  # the peer's own time of sending, to be answered
    contact: Mapping[str, float] = field(default_factory=dict)
    granted: Mapping[str, float] = field(default_factory=dict)
    echoed: Mapping[str, float] = field(default_factory=dict)  # the newest of `latest` that was answered
    refused: Set[str] = frozenset()  # the process has ended, whatever it agreed to before
    proven: Set[str] = frozenset()

    def receive(self, uid: str, now: float, sent: float, echo: float | None) -> Leases:
        """A frame came that was sent at the peer's `sent`; `echo` is the newest time of ours that the peer answers."""
        changed = replace(
            self,
            received_at={**self.received_at, uid: now},
            latest={**self.latest, uid: max(sent, self.latest.get(uid, _NEVER))},
        )
        if echo is not None and echo > self.contact.get(uid, _NEVER) and echo <= now:
            changed = replace(changed, contact={**self.contact, uid: echo})
        return changed

    def vouched(self, uid: str, now: float) -> Leases:
        """Somebody who knows says that the peer runs: it is not silent, and has answered nothing."""
        return replace(self, received_at={**self.received_at, uid: now})

    def grant(self, uids: Iterable[str], now: float) -> Leases:
        """This worker is bound to these peers as of this time, or of a later one if it was already."""
        newer = {uid: max(now, self.granted.get(uid, _NEVER)) for uid in uids}
        return replace(self, granted={**self.granted, **newer})

    def answer(self, uid: str, now: float) -> tuple[Leases, float | None]:
        """The time to send back to a peer as answered, and what is known then.

        To answer the same frame again grants nothing, or a peer that is called while it is silent would be waited for.
        An answer that waited for the next beat does not bind for longer than one at once, or whoever falls silent
        would be waited for by so much more.
        """
        echo = self.latest.get(uid)
        if echo is None or echo <= self.echoed.get(uid, _NEVER):
            return self, echo
        return replace(self, echoed={**self.echoed, uid: echo}).grant([uid], self.received_at.get(uid, now)), echo

    def stepped(self, uids: Iterable[str], now: float, began: float | None) -> Leases:
        """A step with these peers was committed; `began`: when this worker contributed to the step before it."""
        others = list(uids)
        changed = replace(self, received_at={**self.received_at, **dict.fromkeys(others, now)}).grant(others, now)
        if began is None:
            return changed
        newer = {uid: max(began, self.contact.get(uid, _NEVER)) for uid in others}
        return replace(changed, contact={**self.contact, **newer})

    def refuse(self, uid: str, now: float, proof_seconds: float) -> Leases:
        """The peer's port refused. This proves nothing of one that never spoke: it may not listen yet."""
        if uid not in self.received_at:
            return self
        changed = replace(self, refused=self.refused | {uid})
        if now < self.contact.get(uid, _NEVER) + proof_seconds:
            changed = replace(changed, proven=self.proven | {uid})
        return changed

    def only(self, uids: Set[str], now: float, silence_seconds: float) -> Leases:
        """Of these peers, and of those to which this worker is still bound; what else was known of others is of no use
        to anybody who has come into a newer attempt."""
        bound = {uid for uid, at in self.granted.items() if at + silence_seconds > now}
        kept = uids | bound

        def of(known: Mapping[str, float]) -> Mapping[str, float]:
            return {uid: at for uid, at in known.items() if uid in kept}

        return Leases(
            of(self.received_at),
            of(self.latest),
            of(self.contact),
            of(self.granted),
            of(self.echoed),
            frozenset(self.refused) & kept,
            frozenset(self.proven) & kept,
        )

    def restart(self, now: float) -> Leases:
        """Start all silences again: this worker was late itself, so it must accuse nobody. Leases are not prolonged."""
        return replace(self, received_at=dict.fromkeys(self.received_at, now))

    def is_silent(self, uid: str, now: float, since: float, silence_seconds: float) -> bool:
        """Whether nothing came from a peer for that long, of a time in which this worker listened (from `since` on)."""
        return now - max(self.received_at.get(uid, _NEVER), since) > silence_seconds

    def owed(self, uids: Iterable[str], now: float, silence_seconds: float) -> tuple[tuple[str, float], ...]:
        """The seconds for which this worker will still accept no attempt without these peers."""
        left = ((uid, self.granted.get(uid, _NEVER) + silence_seconds - now) for uid in uids)
        return tuple((uid, seconds) for uid, seconds in left if seconds > 0)
