"""Single workers in situations that a test needs, and what they do as events reach them."""

from __future__ import annotations

from dataclasses import replace

from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.machine import step
from heterotrain.groups.convening.roster import Number, Roster, Standing
from heterotrain.groups.convening.worker_state import Phase, Rules, State, beginning

RULES = Rules(split=lambda members: "a plan")
FIRST, NEXT = Number(1, 1), Number(1, 2)
ABC = Standing(Roster(FIRST, tuple("abc")))
CHANGE = Roster(Number(2, 0), tuple("abj"), announcer="a")


class Worker:
    """One worker's state machine, with the actions of its newest event and of all."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.actions: tuple[p.Action, ...] = ()
        self.all: list[p.Action] = []

    @property
    def now(self) -> float:
        return self.state.pulse

    def take(self, event: p.Event, now: float | None = None) -> Worker:
        """An event at this time, before which the clock ticks."""
        if now is not None:
            self.tick_until(now)
        self.state, self.actions = step(self.state, event, self.now)
        self.all += self.actions
        return self

    def receive(self, uid: str, message: p.Message, now: float | None = None, echo: float | None = None) -> Worker:
        """A frame of a peer, whose clock is ahead by 1,000 s."""
        if now is not None:
            self.tick_until(now)
        return self.take(p.Received(uid, message, self.now + 1000.0, echo))

    def tick_until(self, now: float) -> Worker:
        while self.now < now:
            self.state, self.actions = step(self.state, p.Tick(), min(now, self.now + 0.5))
            self.all += self.actions
        return self

    def sleep_until(self, now: float) -> Worker:
        """The process is stopped until then."""
        self.state, self.actions = step(self.state, p.Tick(), now)
        self.all += self.actions
        return self

    def sent(self, uid: str) -> list[p.Send]:
        """What the newest event made it send to a peer."""
        return [each for each in self.actions if isinstance(each, p.Send) and each.uid == uid]

    def forms(self) -> list[p.Form]:
        """All attempts of which it has begun to make groups."""
        return [each.form for each in self.all if isinstance(each, p.MakeGroups)]

    def does(self, kind: type[p.Action]) -> bool:
        """Whether it has ever asked for an action of this kind."""
        return any(isinstance(each, kind) for each in self.all)


def training(me: str, members: str, *pending: Roster, number: Number = FIRST, linked: bool = True) -> Worker:
    """A worker in a complete attempt since 0 s, with channels to all others, from which something has just come."""
    others = [uid for uid in members if uid != me]
    state = replace(
        beginning(me, RULES, 0.0),
        phase=Phase.TRAINING,
        standing=Standing(Roster(number, tuple(members)), pending),
        has_state=True,
        begun=True,
        trained=True,
        steps=7,
        links=frozenset(others) if linked else frozenset(),
    )
    worker = Worker(state)
    for uid in others:
        worker.receive(uid, p.Alive(number))
    return worker


def joining(me: str, *pending: Roster) -> Worker:
    """A worker that has trained in nothing and has accepted these planned changes."""
    worker = Worker(beginning(me, RULES, 0.0))
    for roster in pending:
        worker.take(p.Prepared(roster, None))
    return worker


def broken(me: str, members: str, *pending: Roster, number: Number = FIRST) -> Worker:
    """A worker whose attempt has broken at 0 s."""
    return training(me, members, *pending, number=number).take(p.Broken(7))


def meet(
    uid: str,
    number: Number,
    standing: Standing,
    *,
    step: int = 7,
    has_state: bool = True,
    begun: bool = True,
    refused: str = "",
    proven: str = "",
    owes: tuple[tuple[str, float], ...] = (),
    leaving: bool = False,
    announced: frozenset[Number] = frozenset(),
) -> p.Meet:
    """What a peer says that has left the attempt of `standing`."""
    assert standing.formed is None or uid in standing.formed.members
    return p.Meet(
        number, standing, step, has_state, begun, frozenset(refused), frozenset(proven), owes, leaving, announced
    )


def form(number: Number, members: str, known: Standing, excused: str = "") -> p.Form:
    """An attempt that a convener has formed."""
    return p.Form(Roster(number, tuple(members)), 7, "a plan", known, frozenset(excused))
