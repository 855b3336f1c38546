"""Where scaling by throughput and by cost ends, and when, beside Elasticity's evaluation. *Simulated*: the ordinary
loop decides, and workers follow the laws below.

    .venv/bin/python hack/bench/scaling.py --out hack/bench/results/papers/scaling.json
    .venv/bin/python hack/bench/scaling.py --parts groups

*cifar* and *imagenet* search by throughput from several sizes, without noise and with it; *prices* searches by utility
at several prices, and *groups* by utility over two groups that differ in price and speed. The paper only draws its
curves: those of the first two are fitted to what its text says was saved, all others are ours. A run is simulated until
its search has long been over; the rest of the job goes on at its last size, by the laws. What stands beside it is by
the laws, too.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import kinds
import numpy as np
import runner
import tables_scaling

from heterotrain_operator.core.model import Group, Growth, Job, Scaling
from heterotrain_operator.core.scaling.conditions import utility
from heterotrain_operator.core.split.allocation import Line, iteration_seconds, waterfill
from heterotrain_operator.experiments.simulations import SimulationResult, simulate

Size = tuple[int, ...]
Row = dict[str, Any]

STEP = 4
"""Workers added or removed at once. Source: Elasticity, section 7.1."""

SECONDS_PER_HOUR = 3600.0
"""As a price: what workers cost then are the seconds that they live."""

NOISE = 0.1
"""Coefficient of variation of each worker's step, where there is any."""

PROTOCOL = 3


@dataclass(frozen=True, slots=True)
class Setting:
    """The workers of a job: own times of each group's, what exchanging gradients takes by the number of workers,
    seconds from the creation of a worker until it has warmed up, and for how long all stand still when some join or
    leave.
    """

    laws: tuple[kinds.Affine, ...]
    exchange: kinds.Measured
    join_seconds: float
    standstill: float

    def step_seconds(self, size: Size, batch: int) -> float:
        """A step of so many samples, split the best way, without noise."""
        lines = [
            Line(law.fixed, law.per_sample) for law, count in zip(self.laws, size, strict=True) for _ in range(count)
        ]
        own = iteration_seconds(lines, waterfill(lines, batch, [(1, batch)] * len(lines)))
        return own + self.exchange.seconds(len(lines))

    def scenario(
        self, job: Job, steps: int, *, total: int | None = None, noise: float = 0.0, seed: int = 0
    ) -> kinds.Scenario:
        """The simulation of the first steps of a job, which has `total`. Its groups are in the order of their names."""
        models = {
            group.name: kinds.WorkerModel(law, noise=kinds.Independent(noise), protocol=PROTOCOL)
            for group, law in zip(job.groups, self.laws, strict=True)
        }
        timing = kinds.Timing(0.0, self.join_seconds, rendezvous_seconds=0.0, transition_seconds=self.standstill)
        return kinds.Scenario(
            job,
            models,
            communication=self.exchange,
            timing=timing,
            seed=seed,
            intervals=steps // job.interval,
            total_steps=total,
        )


CIFAR_SAMPLES, CIFAR_BATCH, CIFAR_SIZES = 200 * 50_000, 1024, range(4, 25, STEP)
CIFAR_OWN = kinds.Affine(0.04, 0.12 / 256)


def cifar_seconds(workers: int) -> float:
    """A step by the number of workers. The paper's job times (-8.23 % in the mean, -16.0 % at most) say how far
    throughput falls, if in a line, and its GPU time (-58.6 %) how long a search is beside the job, and so what a step
    takes.
    """
    return 0.2 / (1 - 0.0083 * (workers - 4))


CIFAR = Setting(
    (CIFAR_OWN,),
    kinds.Measured({each: cifar_seconds(each) - CIFAR_OWN.seconds(CIFAR_BATCH / each) for each in CIFAR_SIZES}),
    join_seconds=40.0,
    standstill=3.18,
)
"""The paper's searches take 61.0 s in the mean and 78.4 s at most, and all but that from 24 wait once for workers; so
it is 40 s until one has warmed up, and 6.5 s for each size. The standstill is that of its table 1.
"""

IMAGENET_SAMPLES, IMAGENET_LOCAL, IMAGENET_MOST = 5 * 1_281_167, 64, 4096
IMAGENET_SIZES = range(32, 65, STEP)
IMAGENET_OWN = kinds.Affine(0.02, 1.33 / IMAGENET_LOCAL)


def imagenet_rate(workers: int) -> float:
    """Samples per second of one worker. From 32 the paper's job takes 2502 s, of which it searches for 583, and saves
    45 %: about 1408 samples/s with 32 workers, and 2712 with 64.
    """
    return 44.0 - 0.05 * (workers - 32)


IMAGENET = Setting(
    (IMAGENET_OWN,),
    kinds.Measured(
        {each: IMAGENET_LOCAL / imagenet_rate(each) - IMAGENET_OWN.seconds(IMAGENET_LOCAL) for each in IMAGENET_SIZES}
    ),
    join_seconds=46.0,
    standstill=6.81,
)
"""From 32 workers the paper's search waits eight times in 583 s."""

CPUS = Setting(
    (kinds.Affine(0.0, 22 / 1024),), kinds.Measured({each: 0.0125 * each for each in range(1, 61)}), 40.0, 3.18
)
"""Machines of fig. 8, a curve of ours: a step is shortest with 40 of them, and 50 epochs take 43 minutes then."""

CPU_STEPS, CPU_BATCH, CPU_FIRST, CPU_MOST = 50 * 50_000 // 1024, 1024, 4, 60
PRICES = (0.01, 0.1, 1.0, 10.0)
"""Of a worker for an hour; the least and the greatest are the paper's."""

WORTHS = (30.0, 10_000.0)
"""Of ending at once; the greater one is the paper's."""

TARGET_SECONDS, LINEAR_SECONDS = 3600.0, 4 * 3600.0
"""Until when a Step is worth all (the paper's), and when a Linear utility is 0."""

CASES, CASE_STEPS, CASE_MOST, CASE_BATCH, CASE_NOISE = 20, 4000, 8, 512, 0.03


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one job: its last size, by group, seconds from the first step until the search was over and all
    workers of that size trained (None: it never was), sizes that were measured, and of the whole job seconds from the
    first step on and what its workers cost in these.
    """

    size: Size
    rest_seconds: float | None
    tried: int
    seconds: float
    cost: float


def played(setting: Setting, scenario: kinds.Scenario, samples: float) -> Run:
    """One run of a job of so many samples. Its search is over before the simulation is."""
    result, job = simulate(scenario), scenario.job
    last = result.plans[-1]
    names = Counter(name.rsplit("-", 1)[0] for name in last.workers)
    size = tuple(names[f"{job.name}-{group.name}"] for group in job.groups)
    began = float(result.began[0])
    lasted = float(result.began[-1] + result.step_seconds[-1]) - began
    batches = {len(plan.workers): sum(plan.batches) for plan in result.plans}
    done = sum(batches[count] for count in np.isfinite(result.own_seconds).sum(axis=1).tolist())
    rest = max(samples - done, 0) / sum(last.batches) * setting.step_seconds(size, sum(last.batches))
    prices = [(group.price_per_hour or 0.0) / SECONDS_PER_HOUR for group in job.groups]
    before = began * sum(group.replicas * price for group, price in zip(job.groups, prices, strict=True))
    after = rest * sum(count * price for count, price in zip(size, prices, strict=True))
    return Run(size, _rested(result), len(result.sizes), lasted + rest, (result.cost or 0.0) - before + after)


def _rested(result: SimulationResult) -> float | None:
    stopped = [each.seconds for each in result.events if each.event.reason == "ScalingStopped"]
    if not stopped:
        return None
    pairs = itertools.pairwise(result.plans)
    changed = [plan.step for before, plan in pairs if len(before.workers) != len(plan.workers)]
    came = [float(result.began[step]) for step in changed if step < result.steps]
    return max(stopped[-1], *came) - float(result.began[0])


def by_throughput(first: int, bounds: range, batch: int, growth: Growth | None = None) -> Job:
    """A job that searches by throughput, whose cost is seconds of workers."""
    group = Group("gpu", first, min_replicas=bounds[0], max_replicas=bounds[-1], price_per_hour=SECONDS_PER_HOUR)
    return Job("job", (group,), batch, scaling=Scaling("Throughput", step=STEP), growth=growth)


def cifar(first: int, noise: float, seed: int, steps: int) -> Run:
    """Training CIFAR-10 with a fixed global batch, on so many workers first."""
    job = by_throughput(first, CIFAR_SIZES, CIFAR_BATCH)
    return played(CIFAR, CIFAR.scenario(job, steps, noise=noise, seed=seed), CIFAR_SAMPLES)


def imagenet(first: int, noise: float, seed: int, steps: int) -> Run:
    """Training ImageNet with 64 samples for each worker, up to 4096."""
    growth = Growth(first * IMAGENET_LOCAL, IMAGENET_MOST)
    job = by_throughput(first, IMAGENET_SIZES, first * IMAGENET_LOCAL, growth)
    return played(IMAGENET, IMAGENET.scenario(job, steps, noise=noise, seed=seed), IMAGENET_SAMPLES)


def price(form: str, worth: float, per_hour: float, steps: int) -> Run:
    """Training CIFAR-10 on CPUs of a price, where ending early is worth so much at most."""
    corners = ((0.0, worth), (LINEAR_SECONDS, 0.0)) if form == "Linear" else ((TARGET_SECONDS, worth),)
    group = Group("cpu", CPU_FIRST, min_replicas=CPU_FIRST, max_replicas=CPU_MOST, price_per_hour=per_hour)
    scaling = Scaling("Utility", step=STEP, form=form, corners=corners)
    scenario = CPUS.scenario(Job("job", (group,), CPU_BATCH, scaling=scaling), steps, total=CPU_STEPS)
    return played(CPUS, scenario, CPU_STEPS * CPU_BATCH)


@dataclass(frozen=True, slots=True)
class Case:
    """A job of two groups: their workers, prices and first sizes, and its utility."""

    setting: Setting
    job: Job

    def value(self, size: Size) -> float:
        """Utility less cost of the whole job at one size, by the laws."""
        seconds = CASE_STEPS * self.setting.step_seconds(size, CASE_BATCH)
        prices = [group.price_per_hour or 0.0 for group in self.job.groups]
        cost = seconds / SECONDS_PER_HOUR * sum(count * price for count, price in zip(size, prices, strict=True))
        return utility(self.job.scaling, seconds, seconds) - cost

    def best(self) -> Size:
        """The size of the greatest value, of all that there can be."""
        counts = [range(min(group.replicas, 1), CASE_MOST + 1) for group in self.job.groups]
        return max((size for size in itertools.product(*counts) if any(size)), key=self.value)


def drawn(number: int) -> Case:
    """A case. One worker of the faster group is 1.2 to 4 times as fast as one of the other, whose first size is 1 to 4,
    and costs up to eight times as much; to end at once is worth 5 to 30 times what the job costs at its first size.
    """
    random = np.random.default_rng([7, number])
    per_sample = random.uniform(0.002, 0.006) / np.array([1.0, random.uniform(1.2, 4.0)])
    fixed = random.uniform(0.0, 0.2, 2) * per_sample * 64
    exchange = random.uniform(0.0, 0.02)
    prices = random.uniform(0.05, 0.5) * np.array([1.0, random.uniform(1.0, 8.0)])
    counts = int(random.integers(1, 5)), int(random.integers(0, 3))
    laws = tuple(kinds.Affine(float(a), float(b)) for a, b in zip(fixed, per_sample, strict=True))
    law = kinds.Measured({1: 0.0, 2 * CASE_MOST: (2 * CASE_MOST - 1) * exchange})
    setting = Setting(laws, law, join_seconds=10.0, standstill=0.3)
    groups = tuple(
        Group(name, count, max_replicas=CASE_MOST, price_per_hour=float(price))
        for name, count, price in zip(("a", "b"), counts, prices, strict=True)
    )
    job = Job("job", groups, CASE_BATCH)
    seconds = CASE_STEPS * setting.step_seconds(counts, CASE_BATCH)
    cost = seconds / SECONDS_PER_HOUR * sum(count * float(price) for count, price in zip(counts, prices, strict=True))
    corners = ((0.0, float(cost * random.uniform(5.0, 30.0))), (1.5 * seconds, 0.0))
    return Case(setting, replace(job, scaling=Scaling("Utility", step=1, corners=corners)))


def groups(number: int, noise: float, seed: int, steps: int) -> Run:
    """A drawn case of two groups."""
    case = drawn(number)
    scenario = case.setting.scenario(case.job, steps, total=CASE_STEPS, noise=noise, seed=seed)
    return played(case.setting, scenario, CASE_STEPS * CASE_BATCH)


PLAY: Mapping[str, Callable[..., Run]] = {"cifar": cifar, "imagenet": imagenet, "prices": price, "groups": groups}
STEPS = {"cifar": 700, "imagenet": 500, "prices": 700, "groups": 2500}
"""That are simulated of each job; its search is over long before."""

SOURCES = ("operator/heterotrain_operator", "trainer-image/heterotrain/contract", "hack/bench/scaling.py")


def one(key: runner.Key) -> Run:
    """The run of a part and its values."""
    part, *values = key
    return PLAY[part](*values, STEPS[part])


def keys_of(part: str, seeds: int) -> list[runner.Key]:
    """All runs of a part."""
    if part == "prices":
        return [(part, form, worth, each) for form in ("Linear", "Step") for worth in WORTHS for each in PRICES]
    if part == "groups":
        return [(part, case, CASE_NOISE, 0) for case in range(CASES)]
    sizes = CIFAR_SIZES if part == "cifar" else IMAGENET_SIZES
    noisy = sizes if part == "cifar" else sizes[:1]  # from the size that is farthest from the best
    calm = [(part, first, 0.0, 0) for first in sizes]
    return calm + [(part, first, NOISE, seed) for first in noisy for seed in range(seeds)]


def stays(part: str, first: int) -> tuple[float, float]:
    """Seconds of a job that stays at its first size, and of its workers, by the laws."""
    if part == "cifar":
        seconds = CIFAR_SAMPLES / CIFAR_BATCH * cifar_seconds(first)
    else:
        seconds = IMAGENET_SAMPLES / (first * imagenet_rate(first))
    return seconds, seconds * first


def row_of(key: runner.Key, run: Run) -> Row:
    """What is recorded of a run without noise, or of one of its own kind."""
    part, *values = key
    row: Row = {"size": list(run.size), "tried": run.tried, "rest_seconds": run.rest_seconds}
    row |= {"seconds": round(run.seconds, 1), "cost": round(run.cost, 4)}
    if part == "prices":
        form, worth, each = values
        counts = range(CPU_FIRST, CPU_MOST + 1, STEP)
        meet = (count for count in counts if CPU_STEPS * CPUS.step_seconds((count,), CPU_BATCH) <= TARGET_SECONDS)
        return {"form": form, "worth": worth, "price": each, **row, "enough": next(meet)}
    if part == "groups":
        case = drawn(values[0])
        best = case.best()
        first = [group.replicas for group in case.job.groups]
        figures = {"value": case.value(run.size), "best_value": case.value(best)}
        return {"first": first, "best": list(best), **row, **{name: round(each, 4) for name, each in figures.items()}}
    seconds, cost = stays(part, values[0])
    return {"first": values[0], **row, "stays_seconds": round(seconds, 1), "stays_cost": round(cost, 1)}


def noisy_row(first: int, runs: Sequence[Run]) -> Row:
    """What is recorded of the runs of one first size under noise: how many ended where, and the longest search."""
    ends = Counter(str(run.size[0]) for run in runs)
    rests = [run.rest_seconds for run in runs]
    return {
        "first": first,
        "ends": dict(sorted(ends.items(), key=lambda pair: int(pair[0]))),
        "longest_rest_seconds": None if None in rests else max(filter(None, rests)),
    }


def main(arguments: Sequence[str]) -> int:
    """Run all parts and print."""
    parser = argparse.ArgumentParser(description="Show where scaling by throughput and by cost ends, beside the paper.")
    parser.add_argument("--parts", nargs="+", choices=PLAY, default=[*PLAY], help="only these")
    parser.add_argument("--seeds", type=int, default=20, help="runs with noise from each size (20)")
    options = runner.options_of(parser, pool=True).parse_args(arguments)
    if options.seeds < 1:
        parser.error("--seeds must be at least 1")
    keys = [key for part in options.parts for key in keys_of(part, options.seeds)]
    runs = dict(zip(keys, runner.play(one, Run, keys, options, SOURCES), strict=True))
    document: Row = {"benchmark": "scaling", "noise": NOISE}
    for part in options.parts:
        mine = {key: run for key, run in runs.items() if key[0] == part}
        by_seed = part in ("cifar", "imagenet")
        document[part] = [row_of(key, run) for key, run in mine.items() if not (by_seed and key[2])]
        if by_seed:
            firsts = dict.fromkeys(key[1] for key in mine if key[2])
            document[f"{part}_noisy"] = [
                noisy_row(first, [run for key, run in mine.items() if key[1] == first and key[2]]) for first in firsts
            ]
    runner.report(document, tables_scaling.scaling([document]), options)
    return 0


if __name__ == "__main__":
    runner.command(main)
