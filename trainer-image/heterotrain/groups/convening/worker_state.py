"""What one worker knows of its attempt and of its peers; changed by `convening.step` alone."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.leases import Leases
from heterotrain.groups.convening.roster import Number, Standing
from heterotrain.groups.convening.settling import Met, Split

FOREVER_SECONDS = 1e9
"""Of silence, where nobody is left behind for it."""

PROOF_SHARE = 0.8
"""Of the seconds of silence, so long a refusal proves that a peer has ended; see `leases.py`."""

_NONE = Number(0, 0)


class Phase(enum.Enum):
    """What a worker does, as far as membership goes."""

    WAITING = "waiting"  # named by no attempt that can be met for
    TRAINING = "training"  # also while the plan has its members take no step
    AGREEING = "agreeing"  # groups are made, the state of the base is not here yet
    BREAKING = "breaking"  # cut, and the training thread has not noticed
    MEETING = "meeting"
    MAKING = "making"
    OUT = "out"


IN_ATTEMPT = frozenset({Phase.TRAINING, Phase.AGREEING})
PREPARING = IN_ATTEMPT | {Phase.BREAKING, Phase.WAITING}  # what it accepts here is in the first thing that it promises


@dataclass(frozen=True, slots=True)
class Rules:
    """What is the same for a worker's whole life; times in seconds.

    With `all_needed` an attempt is formed by all members of the one before or by none. `proof_seconds` must be less
    than `silence_seconds`, by more than clocks may drift in that time.
    """

    split: Split
    silence_seconds: float = 5.0
    proof_seconds: float = 4.0
    beat_seconds: float = 1.0
    late_seconds: float = 1.0
    all_needed: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.proof_seconds < self.silence_seconds:
            raise ValueError(f"proof_seconds ({self.proof_seconds}) must be between 0 and {self.silence_seconds}")


@dataclass(frozen=True, slots=True)
class State:
    """All that one worker knows; made by `beginning`, changed by `step` alone."""

    me: str
    rules: Rules
    pulse: float  # time of the newest event
    phase: Phase = Phase.WAITING
    standing: Standing = field(default_factory=Standing)
    plan: p.PlanShown | None = None
    leases: Leases = field(default_factory=Leases)
    returned: Mapping[str, float] = field(default_factory=dict)  # when peers spoke again after a long gap
    steps: int = 0  # committed
    has_state: bool = False
    begun: bool = False  # it was ever a member of groups
    trained: bool = False  # and has come to the same state as the others there
    leaving: bool = False
    leavers: frozenset[str] = frozenset()  # peers that have said so
    away: bool = False  # for so long that others may have gone on without it, and none has said since that it did not
    woke: float = 0.0
    began: float | None = None  # when this worker contributed to the newest committed step of this attempt
    announced: frozenset[Number] = frozenset()
    # of the meeting
    seen: Number = _NONE
    promised: Number = _NONE
    convener: str | None = None  # to whom `promised` was promised
    caller: str | None = None  # whom a joiner meets, for it knows no order
    since: float = 0.0
    met: Mapping[str, Met] = field(default_factory=dict)
    form: p.Form | None = None  # what is being made
    last_hold: tuple[str, ...] | None = None
    awaited: frozenset[str] = frozenset()  # as the convener: while these are missing, who comes settles nothing
    last_meet: p.Meet | None = None  # sent to the convener; sent again only if it differs by now, or if that one calls
    # of the channels
    links: frozenset[str] = frozenset()
    dialled: frozenset[str] = frozenset()
    called: frozenset[str] = frozenset()  # under `promised`
    next_beat: float = 0.0
    judge_at: float = float("-inf")  # sooner no member of this attempt can have become silent


def beginning(me: str, rules: Rules, now: float) -> State:
    """The state of a worker that has seen no plan."""
    return State(me, rules, now, woke=now, since=now, next_beat=now)


def needing_all(state: State) -> State:
    """The same worker from when it is known that members cannot go on without one another."""
    proof = PROOF_SHARE * FOREVER_SECONDS
    rules = replace(state.rules, silence_seconds=FOREVER_SECONDS, proof_seconds=proof, all_needed=True)
    return replace(state, rules=rules)


def is_prepared(state: State, number: Number) -> bool:
    """Whether this worker has accepted a planned change: only then may it make the groups, or say that it is ready."""
    return any(roster.number == number for roster in state.standing.pending)


def may_commit(state: State, now: float) -> bool:
    """Whether a worker may commit a step, or write a checkpoint, at this time.

    To be asked in the same moment, for a worker that was stopped and goes on has not had the `Tick` that tells it so.
    """
    is_here = now - state.pulse <= state.rules.silence_seconds
    return state.phase is Phase.TRAINING and is_here and not state.away


def listeners(state: State) -> tuple[str, ...]:
    """Who judges whether this worker is silent: the first two members, or all if it is one of these; in a meeting the
    convener too."""
    members = state.standing.formed.members if state.standing.formed is not None else ()
    judges = members if state.me in members[:2] else members[:2]
    return tuple(uid for uid in dict.fromkeys((*judges, state.convener)) if uid is not None and uid != state.me)


def asks_peers(state: State) -> bool:
    """Whether a worker that was away is still a member as far as it knows, and waits for a peer to say so: it may
    commit soon, or never again."""
    return state.phase is Phase.TRAINING and state.away
