"""The messages, events and actions of `machine.py`; data alone, without torch, clock or I/O.

UIDs are those of pods, one process each. Every frame between workers carries a message and two times: `sent`, of the
sender's clock, and `echo`, the newest `sent` of the receiver's that the sender answers, or None if it does not (see
`leases.py`). Both are seconds and mean nothing on any other machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from heterotrain.groups.convening.roster import Number, Roster, Standing

Document: TypeAlias = str  # of a plan; it means nothing here

# --- messages -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Beat:
    """I live; `formed` is the newest attempt that I know to be complete (None: a joiner)."""

    formed: Number | None


@dataclass(frozen=True, slots=True)
class Alive:
    """The answer to `Beat`, `Meet` and `Call`; `leaving` so that nobody waits for the sender to convene."""

    formed: Number | None
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Meet:
    """From a worker that has left its attempt to the one that it takes for the convener; again if that one calls, if
    their channel is another one, or if something else is true than was said.

    It promises to accept attempt `number` from that convener alone and nothing of a lower number. `owes`: for how many
    seconds yet it accepts no attempt without whom. `announced`: planned changes to which it has announced the switch.
    """

    number: Number
    standing: Standing
    step: int
    has_state: bool
    begun: bool  # whether it was ever a member of groups; False before the job's first attempt
    refused: frozenset[str] = frozenset()
    proven: frozenset[str] = frozenset()
    owes: tuple[tuple[str, float], ...] = ()
    leaving: bool = False
    announced: frozenset[Number] = frozenset()


@dataclass(frozen=True, slots=True)
class Call:
    """From the convener of `number` to members that have not met under it; `begun`: one who met was in groups."""

    number: Number
    formed: Number | None
    begun: bool


@dataclass(frozen=True, slots=True)
class Form:
    """From the convener: these members make the groups of this attempt, and begin after `base` committed steps.

    `plan` is what they follow, `known` what all who met know together, `excused` those who are not waited for.
    """

    roster: Roster
    base: int
    plan: Document
    known: Standing
    excused: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A member of this attempt is silent: everybody leaves the attempt and meets."""

    number: Number
    uid: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """The receiver is no member: a newer attempt is complete without it, or a newer plan evicts it."""

    number: Number
    members: tuple[str, ...]


Message = Beat | Alive | Meet | Call | Form | GiveUp | Fenced

# --- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; due at the latest when `Wait` says.

    A gap between two events counts as this worker's own lateness, so nothing but the process itself may delay it.
    """


@dataclass(frozen=True, slots=True)
class PlanShown:
    """The operator's plan, as this worker's volume or a peer shows it.

    With `starts` the members begin the job, or again from a checkpoint, and are all needed; otherwise they carry on
    what they train. `evicted` names only workers that the operator has *seen* ended, and is empty unless nobody else
    can train elsewhere (see `machine.py`). Report each plan once it is read; older ones change nothing.
    """

    generation: int
    members: tuple[str, ...]
    starts: bool = False
    evicted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Connected:
    """A channel with this peer is open, whoever dialled; before anything that comes over it.

    There is one channel for each peer: if both have dialled, one is kept, and the other's end is not reported.
    """

    uid: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The channel with this peer ended; after all that came over it."""

    uid: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The peer's machine answered that nobody listens at its port: the peer's process has ended.

    Never for a dial that took too long, for a name that is not found, or for a channel that closed while it opened; a
    connection to itself (of loopback) is a refusal. The address must have been that process's own.
    """

    uid: str


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Dialling this peer failed otherwise. It is dialled again at the next beat that needs it."""

    uid: str


@dataclass(frozen=True, slots=True)
class Received:
    """A frame of a peer; the channel has checked whose it is, and keeps the order of frames.

    A frame may come late or twice; `sent` and `echo` are handed on as they came.
    """

    uid: str
    message: Message
    sent: float
    echo: float | None


@dataclass(frozen=True, slots=True)
class Vouched:
    """The process beside a peer says that the peer runs, although nothing comes from it.

    It grants nothing for the peer, which is only not taken for silent.
    """

    uid: str


@dataclass(frozen=True, slots=True)
class Committed:
    """This worker committed its `step`-th step, to which it began to contribute at `began`.

    To be reported before it contributes to the next one, or sends anything else that tells of it; by the training
    thread itself, which goes on once `step` has returned. `began` is of the same clock as `now`.
    """

    step: int
    began: float


@dataclass(frozen=True, slots=True)
class Broken:
    """The training thread has left its attempt (a collective failed, or it was cut) and commits nothing more in it.

    After every attempt that breaks, cut or not, once; also if it had not entered its groups yet.
    """

    step: int


@dataclass(frozen=True, slots=True)
class Made:
    """The groups of this attempt are made here: a connection to each member is up. Before the first contribution."""

    number: Number


@dataclass(frozen=True, slots=True)
class MakingFailed:
    """The groups of this attempt could not be made within seconds, or making them was cut; nothing is left of them."""

    number: Number


@dataclass(frozen=True, slots=True)
class Agreed:
    """This worker has the state of `step` committed steps that the attempt begins with, and trains."""

    step: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """Before this worker begins to make the groups of a planned change, all of whose joiners were found alike.

    To be said by those who leave as well, which make none: otherwise one of them, which the switch does not reach,
    could go on in the attempt before, once the others have died. The switch is announced only once all have accepted.

    `within`: the complete attempt in which it is prepared, None for a joiner. A worker that has left that attempt by
    now does not accept it (`is_prepared` tells), and must not say that it is ready.
    """

    roster: Roster
    within: Number | None


@dataclass(frozen=True, slots=True)
class Announced:
    """This worker is about to announce the switch to an attempt prepared; to be reported first, by the announcer alone.

    It announces only in the attempt in which the change was prepared, and only if all of that attempt and of the change
    have said that they are ready.
    """

    number: Number


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The announcer has given up an attempt prepared, and never announces it; nobody else may say so for it."""

    number: Number


@dataclass(frozen=True, slots=True)
class Switched:
    """At the step announced this worker goes over to an attempt prepared, or leaves if it is no member of it.

    After the `Committed` of that step, and before it contributes to the attempt prepared. A joiner says it when the
    first contribution of a stayer comes, not when its groups are made.
    """

    number: Number


@dataclass(frozen=True, slots=True)
class Leaving:
    """This worker was asked to stop. It trains on until a change or a meeting leaves it out; again changes nothing."""


Event = (
    Tick
    | PlanShown
    | Connected
    | Closed
    | Refused
    | Unreachable
    | Received
    | Vouched
    | Committed
    | Broken
    | Made
    | MakingFailed
    | Agreed
    | Prepared
    | Announced
    | Abandoned
    | Switched
    | Leaving
)

# --- actions ------------------------------------------------------------------------------------------------------
# To be carried out in their order, none of them waiting for anything: what takes time happens in another thread, and
# its outcome is an event.


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a channel within a second; answered by `Connected`, `Refused` or `Unreachable`, by exactly one.

    If the peer's own channel has come meanwhile, that is the answer.
    """

    uid: str


@dataclass(frozen=True, slots=True)
class Send:
    """Send a frame over the open channel, or nothing if there is none any more: it is not kept for the next one."""

    uid: str
    message: Message
    sent: float
    echo: float | None


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut the sockets of the attempt, or what makes its groups, so that nothing there waits any more.

    Answered by `Broken` or `MakingFailed`, once the training thread has noticed; if `Made` was reported meanwhile, by
    `Broken`. May come again, which changes nothing. Preparing a change in that attempt ends as well.
    """

    why: str


@dataclass(frozen=True, slots=True)
class MakeGroups:
    """Make the groups that `form` describes, within seconds; answered by `Made` or `MakingFailed`.

    Nothing is left of earlier ones by then. After `Made` the members agree on the state after `form.base` steps
    (`Agreed`), and train.
    """

    form: Form


@dataclass(frozen=True, slots=True)
class Hold:
    """No attempt can be formed without these workers, or a plan that evicts them: to be reported to the operator.

    Said by the convener alone, once each time that it changes.
    """

    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Exit:
    """This worker has no place any more: it commits and writes nothing from now on, and ends. No event counts then."""

    why: str


@dataclass(frozen=True, slots=True)
class AllLost:
    """Nobody who lives has the job's state: to be reported to the operator, which begins from a checkpoint."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Send `Tick` at this time at the latest, if nothing else happens before. The newest one counts."""

    until: float


Action = Dial | Send | Cut | MakeGroups | Hold | Exit | AllLost | Wait
