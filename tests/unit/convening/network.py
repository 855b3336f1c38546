"""A simulated network of workers' state machines: virtual time, one seed, one order of events.

Channels keep the order of what one peer sends to another, as TCP does, and nothing else: delays differ by frame, links
end and lose what is on its way, frames come twice, ways are blocked in one direction or both, processes are stopped and
go on, or end. What a blocked way holds back arrives when it opens.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.machine import step
from heterotrain.groups.convening.worker_state import Rules, State, beginning

CONNECT_SECONDS = 1.0


@dataclass
class Link:
    """An open channel between two workers; `ready` is when the newest frame of each direction arrives."""

    ends: frozenset[str]
    open: bool = True
    ready: dict[str, float] = field(default_factory=dict)  # by receiver


class Machine:
    """One worker's process: its state machine, and what the simulation knows of it."""

    def __init__(self, uid: str, network: Network, rules: Rules) -> None:
        self.uid = uid
        self.network = network
        self.skew = network.random.uniform(-1000, 1000)  # of its own clock
        self.state: State = beginning(uid, rules, self.local())
        self.alive = True
        self.stopped = False
        self.backlog: list[Callable[[], None]] = []  # what happens once it goes on
        self.tick_at = network.now
        self.exited = ""

    @property
    def runs(self) -> bool:
        return self.alive and not self.exited

    def local(self) -> float:
        """This machine's own clock."""
        return self.network.now + self.skew


class Network:
    """All machines, the time, and the channels between them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.machines: dict[str, Machine] = {}
        self.links: dict[frozenset[str], Link] = {}
        self.blocked: set[tuple[str, str]] = set()
        self.faulty = True
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._held: dict[tuple[str, str], list[Callable[[], None]]] = {}
        self._order = itertools.count()
        self.trace: list[str] | None = None

    # --- time ---------------------------------------------------------------------------------------------------

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + seconds, next(self._order), act))

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> bool:
        """Whether it was `done` by then."""
        while self._queue and self._queue[0][0] <= until:
            self.now, _, act = heapq.heappop(self._queue)
            act()
            if done():
                return True
        self.now = max(self.now, until)
        return done()

    def delay(self) -> float:
        """Mostly a local network's, at times much more."""
        kind = self.random.random()
        if not self.faulty or kind < 0.9:
            return self.random.uniform(0.0005, 0.01)
        return self.random.uniform(0.01, 0.5) if kind < 0.98 else self.random.uniform(0.5, 4)

    def log(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:8.3f} {text}")

    # --- processes ----------------------------------------------------------------------------------------------

    def add(self, uid: str, rules: Rules) -> Machine:
        machine = self.machines[uid] = Machine(uid, self, rules)
        self.give(machine, p.Tick())
        return machine

    def on(self, machine: Machine, act: Callable[[], None]) -> None:
        """Something happens in this process: at once, once it goes on, or never."""
        if machine.stopped and machine.alive:
            machine.backlog.append(act)
        elif machine.runs:
            act()

    def give(self, machine: Machine, event: p.Event) -> None:
        self.on(machine, lambda: self._step(machine, event))

    def _step(self, machine: Machine, event: p.Event) -> None:
        if not machine.runs:
            return
        before = machine.state
        machine.state, actions = step(before, event, machine.local())
        assert len(actions) <= 3 * len(self.machines) + 4, f"too many actions for {event}: {actions}"
        if self.trace is not None and not isinstance(event, p.Tick):
            self.log(f"{machine.uid} {machine.state.phase.value}: {event}")
        for action in actions:
            self.act(machine, action)

    def act(self, machine: Machine, action: p.Action) -> None:
        match action:
            case p.Wait(until):
                self._tick(machine, until - machine.skew)
            case p.Dial(uid):
                self._dial(machine, uid)
            case p.Send(uid, message, sent, echo):
                self._send(machine, uid, p.Received(machine.uid, message, sent, echo))
            case _:
                self.log(f"{machine.uid} does {action}")
                self.training(machine, action)

    def training(self, machine: Machine, action: p.Action) -> None:
        """What the process does beside its channels."""
        raise NotImplementedError

    def _tick(self, machine: Machine, at: float) -> None:
        machine.tick_at = at

        def ring() -> None:
            if machine.tick_at == at:
                self.give(machine, p.Tick())

        late = self.random.uniform(0, 0.05) if self.random.random() < 0.9 or not self.faulty else 0.6
        self.after(max(0.0, at - self.now) + late, ring)

    def kill(self, machine: Machine) -> None:
        """The process ends, and its kernel closes what it had open."""
        self.log(f"{machine.uid} ends")
        machine.alive = False
        machine.backlog.clear()
        for link in [each for each in self.links.values() if machine.uid in each.ends]:
            self._end(link)

    def stop(self, machine: Machine) -> None:
        self.log(f"{machine.uid} stops")
        machine.stopped = True

    def go_on(self, machine: Machine) -> None:
        if not machine.alive or not machine.stopped:
            return
        self.log(f"{machine.uid} goes on")
        machine.stopped = False
        backlog, machine.backlog = machine.backlog, []
        for act in backlog:
            if machine.alive:
                act()

    # --- ways and channels --------------------------------------------------------------------------------------

    def travel(self, source: str, target: str, act: Callable[[], None], seconds: float) -> None:
        """Arrive, when the way is open."""

        def arrive() -> None:
            if (source, target) in self.blocked:
                self._held.setdefault((source, target), []).append(arrive)
            else:
                act()

        self.after(seconds, arrive)

    def open_ways(self) -> None:
        self.log("all ways are open")
        self.blocked.clear()
        held, self._held = self._held, {}
        for acts in held.values():
            for act in acts:
                act()

    def block(self, source: str, target: str) -> None:
        self.blocked.add((source, target))

    def _dial(self, machine: Machine, uid: str) -> None:
        target, ends = self.machines[uid], frozenset({machine.uid, uid})

        def knock() -> None:
            if (machine.uid, uid) in self.blocked or (uid, machine.uid) in self.blocked:
                self.after(CONNECT_SECONDS, lambda: self.give(machine, p.Unreachable(uid)))
            elif not target.runs:
                self.travel(uid, machine.uid, lambda: self.give(machine, p.Refused(uid)), self.delay())
            elif machine.runs:
                link = self.links.get(ends)
                if link is None or not link.open:
                    link = self.links[ends] = Link(ends)
                    self._carry(link, machine.uid, uid, p.Connected(machine.uid))
                self._carry(link, uid, machine.uid, p.Connected(uid))

        self.after(self.delay(), knock)

    def _carry(self, link: Link, source: str, target: str, event: p.Event) -> None:
        """In order, unless the link ends before."""
        at = max(self.now + self.delay(), link.ready.get(target, 0.0) + 1e-6)
        link.ready[target] = at

        def arrive() -> None:
            if link.open:
                self.give(self.machines[target], event)

        self.travel(source, target, arrive, at - self.now)

    def _send(self, machine: Machine, uid: str, event: p.Event) -> None:
        link = self.links.get(frozenset({machine.uid, uid}))
        if link is None or not link.open:
            return
        self._carry(link, machine.uid, uid, event)
        if self.faulty and self.random.random() < 0.02:
            self._carry(link, machine.uid, uid, event)

    def _end(self, link: Link) -> None:
        """Frames on their way are lost; each end notices by itself."""
        link.open = False
        self.links.pop(link.ends, None)
        for uid in sorted(link.ends):
            other = next(iter(link.ends - {uid}))
            machine = self.machines[uid]

            def notice(machine: Machine = machine, other: str = other) -> None:
                current = self.links.get(frozenset({machine.uid, other}))
                if current is None:
                    self.give(machine, p.Closed(other))

            self.travel(other, uid, notice, self.delay())

    def lose_links(self, share: float) -> None:
        for link in sorted(self.links.values(), key=lambda each: sorted(each.ends)):
            if self.random.random() < share:
                self._end(link)
