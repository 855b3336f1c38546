"""What `simulated.py` simulates: laws of time, noises and events, each at any number of workers.

A quarter of the workers is the reference, others take 1.5, 2 and 4 times as long (three workers: 1, 2 and 4 times). A
step has 32 samples for each worker. No policy but `Static` knows a CPU limit, except where limits are what it is about.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import kinds

from heterotrain_operator.core.model import Group, Job, Stragglers

RECORDED = Path(__file__).with_name("recorded_steps.json")
SAMPLES_PER_WORKER = 32
SCALES = (1.0, 1.5, 2.0, 4.0)
FEW_SCALES = (1.0, 2.0, 4.0)
INTERVALS = 120
EVENT_AT = 400
"""The step of what happens once: a third of the way, so that there is a time before and after it."""

AFFINE = kinds.Affine(0.010, 0.002)
STATIC = "Static"
ONLY_THE_ORACLE_KNOWS = "speeds go on changing, which only the oracle knows before steps have shown it"
MEBIBYTE = 2.0**20


@dataclass(frozen=True, slots=True)
class Case:
    """A scenario at any number of workers. `events` are given the names of the groups, the fastest first."""

    name: str
    law: kinds.TimeLaw = AFFINE
    noise: kinds.Noise = field(default_factory=lambda: kinds.Independent(0.05))
    shared: kinds.Noise = field(default_factory=kinds.NoNoise)
    """By which all workers' steps vary alike, besides."""
    events: Callable[[tuple[str, ...]], tuple[kinds.ClusterEvent, ...]] = lambda groups: ()
    scales: tuple[float, ...] = ()
    limits: bool = False
    multiple: int = 1
    """Of what batches are to be multiples, as a user says who knows of padding."""
    noises: tuple[float, ...] = ()
    """Variation of each group's independent noise, where they differ."""
    memory: kinds.MemoryUse | None = None
    communication: kinds.Communication = field(default_factory=kinds.NoCommunication)
    intervals: int = INTERVALS
    goal: tuple[float, float] | None = None
    """Greatest E and plans per 100 intervals of `Optimal` after settling."""
    may_stay_off: str = ""
    """Why no policy can come near the oracle, which knows more than can be known; empty: one can."""
    first_move: int | None = None
    """Steps within which `Optimal` is to publish its first move."""

    def scenario(self, workers: int, policy: str, seed: int) -> kinds.Scenario:
        """It with so many workers under a policy."""
        scales = self.scales or (FEW_SCALES if workers < len(SCALES) else SCALES)
        limits = [4.0 / scale if self.limits or policy == STATIC else None for scale in scales]
        counts = [(workers - index + len(scales) - 1) // len(scales) for index in range(len(scales))]
        groups = tuple(
            Group(f"g{index}", count, cpu_limit=limit, multiple_of=self.multiple)
            for index, (count, limit) in enumerate(zip(counts, limits, strict=True))
            if count
        )
        acting = Stragglers(action="Report")  # balancing alone is what is looked at
        job = Job("job", groups, SAMPLES_PER_WORKER * workers, policy=policy, initial="Uniform", stragglers=acting)
        models = {
            f"g{index}": kinds.WorkerModel(
                self.law,
                scale,
                kinds.Independent(self.noises[index % len(self.noises)]) if self.noises else self.noise,
                memory=self.memory,
            )
            for index, scale in enumerate(scales[: len(groups)])
        }
        names = tuple(group.name for group in groups)
        return kinds.Scenario(
            job,
            models,
            self.events(names),
            communication=self.communication,
            seed=seed,
            intervals=self.intervals,
            title=self.name,
            shared_noise=self.shared,
        )


def _one(group: str) -> tuple[str, ...]:
    return (f"job-{group}-0",)


def _limits_that_flap(groups: tuple[str, ...]) -> tuple[kinds.ClusterEvent, ...]:
    """The limits of one worker go down and up again, and do not bind."""
    return tuple(
        kinds.LimitChange(_one(groups[0]), 4.0 if number % 2 else 2.0, 200 + 100 * number, elasticity=0.0)
        for number in range(8)
    )


def replayed() -> kinds.Replayed:
    """Noise as it was recorded."""
    return kinds.Replayed(tuple(tuple(one) for one in json.loads(RECORDED.read_text(encoding="utf-8"))["series"]))


def _laws() -> tuple[tuple[str, kinds.TimeLaw], ...]:
    return (
        ("plateau", kinds.Plateau(0.05, 0.010, 0.002)),
        ("padded 8", kinds.Padded(AFFINE, 8)),
        ("padded 16", kinds.Padded(AFFINE, 16)),
        ("padded 32", kinds.Padded(AFFINE, 32)),
        ("memory cliff", kinds.MemoryCliff(AFFINE, 40)),
        ("b^1.5", kinds.Power(1.5, 0.005, 0.002, 32)),
        ("b^2", kinds.Power(2.0, 0.005, 0.002, 32)),
        ("throttled", kinds.Throttled(AFFINE)),
    )


QUICK = ("affine, independent 10 %", "affine, AR(.9) 10 %", "b^2, independent 10 %", "jump 2x", "four times slower")
STEADY = (1.01, 1.0)
CORRELATED = (1.02, 3.0)


def cases() -> tuple[Case, ...]:
    """All of them."""
    noises: tuple[tuple[str, kinds.Noise, tuple[float, float] | None], ...] = (
        ("no noise", kinds.NoNoise(), STEADY),
        ("independent 5 %", kinds.Independent(0.05), STEADY),
        ("independent 10 %", kinds.Independent(0.10), STEADY),
        ("independent 20 %", kinds.Independent(0.20), STEADY),
        ("AR(.9) 5 %", kinds.AR1(0.9, 0.05), CORRELATED),
        ("AR(.9) 10 %", kinds.AR1(0.9, 0.10), CORRELATED),
        ("AR(.98) 10 %", kinds.AR1(0.98, 0.10), None),
        ("heavy-tailed 20 %", kinds.HeavyTailed(0.20), None),
        ("replayed", replayed(), CORRELATED),
    )
    return (
        *(Case(f"affine, {name}", noise=noise, goal=goal) for name, noise, goal in noises),
        *(
            Case(f"{name}, {noise}", law, kind, multiple=law.multiple if isinstance(law, kinds.Padded) else 1)
            for noise, kind in (("independent 10 %", kinds.Independent(0.10)), ("AR(.9) 10 %", kinds.AR1(0.9, 0.10)))
            for name, law in _laws()
        ),
        Case("shared AR(.9) 10 %", shared=kinds.AR1(0.9, 0.10), goal=STEADY),
        Case("shared AR(.98) 30 %", shared=kinds.AR1(0.98, 0.30), goal=STEADY),
        Case("padded 16 unsaid, independent 10 %", kinds.Padded(AFFINE, 16), kinds.Independent(0.10)),
        Case("unlike noise 2-30 %", noises=(0.02, 0.30, 0.10, 0.05)),
        Case("equal workers", scales=(1.0,), noise=kinds.Independent(0.10)),
        Case("four times slower", scales=(4.0, 1.0, 1.0, 1.0), first_move=3),
        Case("jump 2x", events=lambda groups: (kinds.Jump(_one(groups[0]), 2.0, EVENT_AT),)),
        Case(
            "jump 2x, AR(.9) 10 %",
            noise=kinds.AR1(0.9, 0.10),
            events=lambda g: (kinds.Jump(_one(g[0]), 2.0, EVENT_AT),),
        ),
        Case("jump 4x", events=lambda groups: (kinds.Jump(_one(groups[0]), 4.0, EVENT_AT),)),
        Case("drift 2x", events=lambda groups: (kinds.Drift(_one(groups[0]), 2.0, EVENT_AT, 2 * EVENT_AT),)),
        Case("common drift 2x", events=lambda groups: (kinds.Drift((), 2.0, EVENT_AT, 2 * EVENT_AT),)),
        Case(
            "interference 2x",
            events=lambda groups: (
                kinds.Interference(
                    (*_one(groups[0]), *_one(groups[1 % len(groups)])),
                    2.0,
                    300,
                    followed=True,
                    begin=200,
                    scattered=True,
                ),
            ),
            may_stay_off=ONLY_THE_ORACLE_KNOWS,
        ),
        Case(
            "interference 2x, a quarter",
            events=lambda groups: (
                kinds.Interference((groups[0],), 2.0, 300, followed=True, begin=200, scattered=True),
            ),
            may_stay_off=ONLY_THE_ORACLE_KNOWS,
        ),
        Case(
            "speeds that swap",
            events=lambda groups: (
                kinds.Interference((groups[0],), 2.0, 400, 0.5, followed=True),
                kinds.Interference((groups[-1],), 0.5, 400, 0.5, followed=True),
            ),
            may_stay_off=ONLY_THE_ORACLE_KNOWS,
        ),
        Case("limits known", limits=True, events=lambda groups: (kinds.LimitChange((groups[0],), 1.0, EVENT_AT),)),
        Case("limits hidden", limits=True, events=lambda g: (kinds.LimitChange((g[0],), 1.0, EVENT_AT, known=False),)),
        Case("limits that do not bind", scales=(1.0,), limits=True, events=_limits_that_flap),
        Case("preemption", events=lambda groups: (kinds.Preemption(_one(groups[0]), EVENT_AT),)),
        Case("slow start", events=lambda groups: (kinds.WarmUp((), 4.0, 20.0),)),
        Case("late metrics", events=lambda groups: (kinds.LateMetrics((), 15.0),)),
        Case("lost readings 1 %", events=lambda groups: (kinds.Unreadable((), probability=0.01),)),
        Case(
            "one never read",
            events=lambda groups: (kinds.Unreadable(_one(groups[0]), begin=1),),
            may_stay_off="who is not read keeps the batch it has",
        ),
        Case(
            "memory deadlock",
            memory=kinds.MemoryUse(300 * MEBIBYTE, 5 * MEBIBYTE, 505 * MEBIBYTE),
            may_stay_off="the oracle fills all of the memory, of which policies leave a part free",
        ),
        Case("ring all-reduce", communication=kinds.RingAllReduce(40e6, 1.25e9, 50e-6)),
        Case("parameter server", communication=kinds.ParameterServer(4e6, 1.25e9, 50e-6)),
    )


def quick() -> tuple[Case, ...]:
    """A few of them, of fewer intervals."""
    return tuple(replace(case, intervals=60) for case in cases() if case.name in QUICK)


def by_name() -> Mapping[str, Case]:
    """All cases by their names."""
    return {case.name: case for case in cases()}
