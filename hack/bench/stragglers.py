"""Who is named a straggler, and when: the verdict of the operator beside the paper's rule. *Simulated*: the pure core
decides on seeded own times, and nothing is measured on a machine.

Clusters are unequal by design: groups of four speeds, and within a group machines that differ by up to 1.5 times. In
each run something happens to one worker, or nothing does, and the verdicts are counted.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat

from heterotrain.contract import PHASE_TRAINING, PHASE_WAITING, Plan
from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.model import Group, Job, Seen, Stragglers, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.state import Memory

RULES = ("ExpectedTime", "MedianThroughput")
SPEEDS = (1.0, 1.5, 2.0, 4.0)
UNLIKE = 1.5
FIXED_SECONDS, SECONDS_PER_SAMPLE, BATCH = 0.005, 0.0006, 128
INTERVAL = 10
NAMED_WITHIN = 10
"""Intervals within which a worker that is slowed is to be named."""


@dataclass
class Worker:
    """One simulated worker: its own seconds are `scale * slowed * (fixed + per sample * batch)`, times noise."""

    seen: WorkerSeen
    scale: float
    slowed: float = 1.0
    drift: float = 0.0
    version: int = 0
    times: list[float] = field(default_factory=list)

    def now(self, plan: Plan | None, batch: int, step: int) -> WorkerSeen:
        """As the operator sees it."""
        if plan is None or not self.times:
            return self.seen
        metrics = WorkerMetrics(
            plan_version=plan.version,
            generation=1,
            batch_size=batch,
            phase=PHASE_TRAINING,
            step=step,
            steps=len(self.times),
            own_seconds=math.fsum(self.times),
            own_seconds_squared=math.fsum(seconds * seconds for seconds in self.times),
        )
        return replace(self.seen, metrics=metrics)


def independent(worker: Worker, noise: float, chance: random.Random) -> float:
    """Gamma noise of each step on its own."""
    shape = 1 / noise**2
    return chance.gammavariate(shape, 1 / shape)


def autoregressive(worker: Worker, noise: float, chance: random.Random) -> float:
    """Log-normal noise whose logarithm is an AR(1) of 0.9."""
    worker.drift = 0.9 * worker.drift + math.sqrt(1 - 0.9**2) * chance.gauss(0, 1)
    return math.exp(noise * worker.drift - noise**2 / 2)


NOISES: dict[str, Callable[[Worker, float, random.Random], float]] = {
    "independent": independent,
    "AR(.9)": autoregressive,
}


class World:
    """A job of so many workers that trains; `interval` lets an interval pass and decides once."""

    def __init__(self, workers: int, rule: str, noise: str, cv: float, seed: int) -> None:
        self.chance = random.Random(seed)
        kinds = min(workers, len(SPEEDS))
        groups = tuple(
            Group(f"g{rank}", len(range(rank, workers, kinds)), cpu_limit=4 / SPEEDS[rank]) for rank in range(kinds)
        )
        self._job = Job("bench", groups, BATCH * workers, interval=INTERVAL, stragglers=Stragglers(rule=rule))
        self._noise, self._cv = NOISES[noise], cv
        self._memory, self._plan, self._now = Memory.initial(), None, 1_700_000_000.0
        self.workers: list[Worker] = []
        self.step = 0
        for _ in range(2):
            self._decide()
        assert self._plan is not None

    def interval(self, happens: Callable[[World], None] | None = None) -> tuple[str, ...]:
        """Train for an interval, with what `happens` before each step, and decide; returns who is named."""
        for _ in range(INTERVAL):
            if happens is not None:
                happens(self)
            self._train()
        return self._decide()

    def resize(self, worker: Worker, factor: float, binding: float) -> None:
        """Give a worker so many times its CPU limit; `binding` is the elasticity of its speed."""
        limit = worker.seen.cpu_limit or 1.0
        worker.seen = replace(worker.seen, cpu_limit=limit * factor)
        worker.scale *= factor**-binding

    def _train(self) -> None:
        assert self._plan is not None
        self.step += 1
        self._now += 0.1
        for worker, member in zip(self.workers, self._plan.members, strict=True):
            if worker.version != self._plan.version:
                worker.version = self._plan.version
                worker.times.clear()
            seconds = worker.scale * worker.slowed * (FIXED_SECONDS + SECONDS_PER_SAMPLE * member.batch_size)
            worker.times.append(seconds * self._noise(worker, self._cv, self.chance))

    def _decide(self) -> tuple[str, ...]:
        batches = self._plan.batch_sizes if self._plan is not None else ()
        members = zip(self.workers, batches or repeat(0), strict=False)
        seen = Seen(tuple(worker.now(self._plan, batch, self.step) for worker, batch in members), self._plan)
        decision, self._memory = decide(self._job, seen, self._memory, self._now)
        speeds = {group.name: SPEEDS[rank] for rank, group in enumerate(self._job.groups)}
        limits = {group.name: group.cpu_limit for group in self._job.groups}
        for key in decision.create:
            waiting = WorkerMetrics(plan_version=0, phase=PHASE_WAITING)
            seen_worker = WorkerSeen(
                key.name,
                f"uid-{key.name}",
                key.group,
                key.index,
                "Running",
                address=f"h:{key.index}",
                cpu_limit=limits[key.group],
                metrics=waiting,
            )
            self.workers.append(Worker(seen_worker, speeds[key.group] * self.chance.uniform(1.0, UNLIKE)))
        if decision.plan is not None:
            self._plan = decision.plan
            order = {member.name: rank for rank, member in enumerate(decision.plan.members)}
            self.workers.sort(key=lambda worker: order[worker.seen.name])
        return tuple(verdict.worker for verdict in decision.stragglers)


Event = Callable[[World, Worker, int], None]
"""What happens to a worker before a step, so many steps after the event began (negative: it has not)."""


def nothing(world: World, worker: Worker, after: int) -> None:
    """A healthy run."""


def slowed(world: World, worker: Worker, after: int) -> None:
    """Twice as slow for good, at an unchanged limit."""
    worker.slowed = 2.0 if after >= 0 else 1.0


def resized(factor: float, binding: float) -> Event:
    """Another CPU limit, for good."""

    def happens(world: World, worker: Worker, after: int) -> None:
        if after == 0:
            world.resize(worker, factor, binding)

    return happens


def stalled(world: World, worker: Worker, after: int) -> None:
    """Ten times as slow for one interval."""
    worker.slowed = 10.0 if 0 <= after < INTERVAL else 1.0


def creeping(world: World, worker: Worker, after: int) -> None:
    """Slower by half a percent each step, up to twice."""
    worker.slowed = min(1.0 + 0.005 * max(after, 0), 2.0)


def together(world: World, worker: Worker, after: int) -> None:
    """Everybody becomes twice as slow: the script does more for each sample."""
    for each in world.workers:
        each.slowed = 2.0 if after >= 0 else 1.0


@dataclass(frozen=True)
class Scenario:
    """What happens, and whether the worker that it happens to is to be named."""

    name: str
    event: Event
    fault: bool


SCENARIOS = (
    Scenario("healthy", nothing, fault=False),
    Scenario("slowed 2x", slowed, fault=True),
    Scenario("limit halved, binding", resized(0.5, 1.0), fault=False),
    Scenario("limit halved, half binding", resized(0.5, 0.5), fault=False),
    Scenario("limit halved, not binding", resized(0.5, 0.0), fault=False),
    Scenario("limit quartered, binding", resized(0.25, 1.0), fault=False),
    Scenario("limit doubled, binding", resized(2.0, 1.0), fault=False),
    Scenario("limit doubled, not binding", resized(2.0, 0.0), fault=False),
    Scenario("one interval 10x slower", stalled, fault=False),
    Scenario("creeping to 2x", creeping, fault=True),
    Scenario("all slowed 2x together", together, fault=False),
)


@dataclass
class Counts:
    """Over the runs of one scenario. `late` are the faults not named within `NAMED_WITHIN` intervals, `never` those of
    them that were not named at all, `wrong` the runs in which somebody was named without a fault.
    """

    runs: int = 0
    wrong: int = 0
    late: int = 0
    never: int = 0
    intervals: list[int] = field(default_factory=list)


def play(scenario: Scenario, world: World, steps: int, counts: Counts) -> None:
    """One run."""
    victim = world.chance.choice(world.workers)
    begins = world.chance.randrange(steps // 5, steps - 2 * NAMED_WITHIN * INTERVAL)
    first, wrong = None, False
    for index in range(steps // INTERVAL):
        named = world.interval(lambda world: scenario.event(world, victim, world.step - begins))
        faulty = scenario.fault and world.step >= begins
        if faulty and first is None and victim.seen.name in named:
            first = index - begins // INTERVAL
        wrong = wrong or any(not faulty or name != victim.seen.name for name in named)
    counts.runs += 1
    counts.wrong += wrong
    if scenario.fault:
        counts.never += first is None
        counts.late += first is None or first > NAMED_WITHIN
        counts.intervals += [] if first is None else [first]


def row(scenario: Scenario, counts: Counts) -> str:
    """One line of the table."""
    delays = counts.intervals
    delay = f"{statistics.median(delays):.0f} / {max(delays)}" if delays else "-"
    late = str(counts.late) if scenario.fault else "-"
    return f"{scenario.name:28} {counts.runs:6} {counts.wrong:7} {late:6} {delay:>10}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and with --json a line for each of its rows. Exits with 1 if the operator's rule fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--workers", type=int, nargs="+", default=[8])
    parser.add_argument("--noise", type=float, default=0.10, help="coefficient of variation of a step")
    parser.add_argument("--rule", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--only", nargs="+", help="names of scenarios, or parts of them")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    failed = False
    for title, each in tables(options):
        if title and not options.json:
            print(title)
        for scenario, rule, counts in each:
            failed = failed or (
                rule == RULES[0] and bool(counts.wrong or (counts.late and scenario.name == "slowed 2x"))
            )
            if options.json:
                print(json.dumps({"title": title, "scenario": scenario.name, "rule": rule, **vars(counts)}))
            else:
                print(row(scenario, counts), flush=True)
    return int(failed)


def tables(options: argparse.Namespace) -> Iterator[tuple[str, Iterator[tuple[Scenario, str, Counts]]]]:
    """A table for each number of workers, noise and rule: its title, and its rows."""
    for workers in options.workers:
        for noise in NOISES:
            for rule in options.rule:
                title = (
                    f"\n{workers} workers, noise {options.noise:.0%} {noise}, rule {rule} (simulated)\n"
                    f"{'what happens':28} {'runs':>6} {'wrongly':>7} {'late':>6} {'intervals':>10}"
                )
                yield title, rows(options, workers, noise, rule)


def rows(options: argparse.Namespace, workers: int, noise: str, rule: str) -> Iterator[tuple[Scenario, str, Counts]]:
    """What was counted in each scenario."""
    for scenario in SCENARIOS:
        if options.only and not any(part in scenario.name for part in options.only):
            continue
        counts = Counts()
        for seed in range(options.runs):
            play(scenario, World(workers, rule, noise, options.noise, seed), options.steps, counts)
        yield scenario, rule, counts


if __name__ == "__main__":
    sys.exit(main())
