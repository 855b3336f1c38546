"""What other ways to deal with slow workers make of the very own times that ours meet, beside LB-BSP's figures.

Two parts. **Cluster-B**, LB-BSP's 32 CPU machines (table 2): its SVM and ResNet-32, alone and with neighbours that come
and go, as its tasks replayed from a trace did. And a **sweep** over noise and workers of four speeds, which shows where
work stealing inside a step pays. Every run is one matrix of own times at equal batches (`rival_schemes.Times`), which
comes from the simulated cluster under `Uniform`. `Optimal` and `LBBSP` are run through the real decisions in the same
cluster, under the same noise: the former with all delays of the control loop, the latter as the paper does it, asked at
every step and without any. Figures are times for as many useful samples over those of BSP with equal batches.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

import kinds
import numpy as np
import rival_schemes as schemes
import runner
import simulated_scenarios as scenarios
import tables_rivals

from heterotrain_operator.clusters.simulated.cluster import SimulatedCluster
from heterotrain_operator.clusters.simulated.scenario import AT_ONCE
from heterotrain_operator.clusters.simulated.steps import Steps
from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.model import Group, Job, Stragglers
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.experiments.simulations import SimulationResult, simulate

C5_SPEED = 1.4
"""Of a c5 core over an m4 core, assumed: 3.4 beside 2.7 GHz with all cores busy, and somewhat more in each cycle."""

MACHINES = {
    "m4-2xlarge": (17, 8, 1.0),
    "c5-2xlarge": (10, 8, C5_SPEED),
    "r4-2xlarge": (2, 8, 1.0),
    "m4-4xlarge": (2, 16, 1.0),
    "m4-xlarge": (1, 4, 1.0),
}
"""How many, their cores, and the speed of one in m4 cores. Source of the first two: LB-BSP, table 2."""

BACKUPS = "backup", (2, 8, C5_SPEED)
"""Source: LB-BSP, section 5.3."""

MEMORY = kinds.MemoryUse(1024 * scenarios.MEBIBYTE, scenarios.MEBIBYTE, 16384 * scenarios.MEBIBYTE)
"""More than enough everywhere: NARX reads its use."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Samples of an equal batch, its seconds on eight m4 cores, and the part of them that is fixed."""

    batch: int
    seconds: float
    fixed: float

    @property
    def law(self) -> kinds.Affine:
        return kinds.Affine(self.fixed * self.seconds, (1 - self.fixed) * self.seconds / self.batch)


WORKLOADS = {"SVM": Workload(150, 0.075, 0.01), "ResNet-32": Workload(128, 0.27, 0.05)}
"""Batches are the paper's: a tenth of 2.4 million URLs over 32 workers, in portions of 50, and 128. Times are assumed:
10 microseconds for a sparse sample, 2 ms for an image; its figure 1 shows hardly any fixed part on CPUs."""

ALONE, SHARED = "alone", "shared"
NOISES = {ALONE: kinds.AR1(0.9, 0.03), SHARED: kinds.AR1(0.9, 0.10)}
NEIGHBOURS = (
    kinds.Interference((), 1.5, 60, 0.3, scattered=True, followed=True),
    kinds.Interference((), 2.0, 300, 0.25, scattered=True, followed=True),
)
"""Assumed, for the trace is not published with the paper: on each machine one that comes for 18 steps in 60, and one
for 75 in 300."""

BSP = "BSP"
INTERVAL, SETTLING, STEPS = 10, 500, 900
"""The first steps are left out: LB-BSP's predictor has no others to learn from until then (section 4)."""

LEVELS, CORRELATION = (0.03, 0.10, 0.20), 0.9
WORKERS = (4, 8, 32, 128)
SWEPT_INTERVALS, SWEPT_SETTLING = 60, 20
PARTS, CHUNKS = (0.25, 0.5, 0.7, 0.8, 0.9, 0.95), (1, 2, 4)
"""Of each setting the best of these is shown, known only afterwards: this favours stealing."""

SWEPT: Mapping[str, kinds.Noise] = {
    "none": kinds.NoNoise(),
    **{f"white {level:.0%}": kinds.Independent(level) for level in LEVELS},
    **{f"correlated {level:.0%}": kinds.AR1(CORRELATION, level) for level in LEVELS},
    "recorded": scenarios.replayed(),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One setting under one seed: by scheme, its time for as many useful samples over that of BSP.

    `stealing`: part and chunks of the stealing that was best beside `Optimal`. `saved_if_delayed`: what it saves of the
    steps with `Optimal`'s batches where noise is a delay that passes however few samples a worker has.
    """

    setting: str
    workers: int
    seed: int
    over_bsp: dict[str, float]
    stealing: str
    saved_if_delayed: float


def cluster_b(
    workload: str, neighbours: str, policy: str, seed: int, *, backups: bool = False, **job: object
) -> kinds.Scenario:
    """A scenario of the paper's 32 machines, or of the two besides, too."""
    work, machines = WORKLOADS[workload], [*MACHINES.items(), *([BACKUPS] if backups else [])]
    groups = tuple(Group(name, count) for name, (count, _, _) in machines)
    total = work.batch * sum(group.replicas for group in groups)
    models = {
        name: kinds.WorkerModel(
            work.law, 8 / (cores * speed), NOISES[neighbours], memory=MEMORY, cpu_limit=float(cores)
        )
        for name, (_, cores, speed) in machines
    }
    return kinds.Scenario(
        replace(Job("job", groups, total, policy, "Uniform", INTERVAL, stragglers=Stragglers(action="Report")), **job),  # type: ignore[arg-type]
        models,
        NEIGHBOURS if neighbours == SHARED else (),
        seed=seed,
        intervals=STEPS // INTERVAL,
    )


def without_delays(scenario: kinds.Scenario, every: int = 1) -> tuple[schemes.Matrix, schemes.Matrix]:
    """Seconds of a scenario's steps, and own times in them, when decisions take no time and are made after so many
    steps: with 1 it is the paper's blocking update.
    """
    job = replace(scenario.job, interval=every)
    cluster = SimulatedCluster(replace(scenario, job=job, timing=AT_ONCE, intervals=scenario.steps // every))
    found: list[Steps] = []
    cluster.training.on_steps = found.append
    memory = Remembered.initial()
    while cluster.training.executed < scenario.steps:
        cluster.now += 1.0
        decision, memory = decide(job, cluster.observe()[0], memory, cluster.now)
        cluster.act(decision, memory)
        cluster.train(every)
    return np.concatenate([each.seconds for each in found]), np.concatenate([each.own_seconds for each in found])


def times_of(scenario: kinds.Scenario, law: kinds.Affine, batch: float, measured: int) -> schemes.Times:
    """Own times at equal batches, in the last so many steps of a scenario under `Uniform`."""
    _, own = without_delays(scenario, scenario.steps)
    return schemes.Times(own[-measured:], law.fixed / law.seconds(batch))


def batches_of(result: SimulationResult, equal: schemes.Times, measured: int) -> schemes.Matrix:
    """The batches of its last steps of another run under the same noise, in equal batches."""
    found: schemes.Matrix = (result.own_seconds[-measured:] / equal.own - equal.fixed) / (1 - equal.fixed)
    return found


def best_stealing(
    times: schemes.Times, batches: schemes.Matrix | None = None, *, delayed: bool = False
) -> tuple[str, float]:
    """The best part and chunks afterwards, and their mean seconds of a step."""
    means = {
        f"{part:.0%}, {chunks}": float(schemes.stealing(times, part, chunks, batches, delayed=delayed).mean())
        for part, chunks in product(PARTS, CHUNKS)
    }
    return min(means.items(), key=lambda each: each[1])


def compared(
    setting: str, seed: int, times: schemes.Times, own: SimulationResult, more: Mapping[str, schemes.Matrix]
) -> Run:
    """All schemes, `more` among them, beside `own`, the run under `Optimal`."""
    measured = len(times.own)
    batches = batches_of(own, times, measured)
    best, added = best_stealing(times, batches)
    found: dict[str, schemes.Matrix | float] = {
        BSP: schemes.equal_batches(times),
        "2 of them backups": schemes.redundant(times, 2),
        "FlexRR": schemes.flexrr(times, seed),
        "Hivemind": schemes.hivemind(times)[0],
        "stealing": best_stealing(times)[1],
        "Optimal": own.step_seconds[-measured:],
        "Optimal and stealing": added,
        **more,
        "oracle": own.oracle_seconds[-measured:],
        "no waiting": schemes.without_waiting(times),
    }
    means = {name: float(np.mean(each)) for name, each in found.items()}
    saved = 1 - best_stealing(times, batches, delayed=True)[1] / means["Optimal"]
    over_bsp = {name: round(each / means[BSP], 4) for name, each in means.items()}
    return Run(setting, times.own.shape[1], seed, over_bsp, best, round(saved, 4))


def in_cluster_b(workload: str, neighbours: str, seed: int) -> Run:
    """One seed of a workload in Cluster-B."""
    scenario = functools.partial(cluster_b, workload, neighbours)
    law, batch = WORKLOADS[workload].law, WORKLOADS[workload].batch
    measured = STEPS - SETTLING
    times = times_of(scenario("Uniform", seed), law, batch, measured)
    enlarged = times_of(scenario("Uniform", seed, backups=True), law, batch, measured)
    alike = schemes.equal_batches(times).mean() / schemes.equal_batches(enlarged.of_first(times.own.shape[1])).mean()
    more = {
        "2 more machines": alike * schemes.redundant(enlarged, 2, more=True),
        "Hivemind, 5 s": schemes.hivemind(times, 5.0)[0],
    }
    for policy, prediction in (("LBBSP", "EMA"), ("LBBSP", "NARX"), ("Optimal", "EMA")):
        seconds, _ = without_delays(scenario(policy, seed, prediction=prediction))
        more[f"{policy}, {prediction}, each step"] = seconds[-measured:]
    return compared(f"{workload}, {neighbours}", seed, times, simulate(scenario("Optimal", seed)), more)


def in_sweep(noise: str, workers: int, seed: int) -> Run:
    """One seed of so many workers of four speeds under a noise."""
    case = scenarios.Case(noise, noise=SWEPT[noise], intervals=SWEPT_INTERVALS)
    uniform = case.scenario(workers, "Uniform", seed)
    measured = (SWEPT_INTERVALS - SWEPT_SETTLING) * uniform.job.interval
    times = times_of(uniform, scenarios.AFFINE, scenarios.SAMPLES_PER_WORKER, measured)
    return compared(noise, seed, times, simulate(case.scenario(workers, "Optimal", seed)), {})


PARTS_OF_IT: Mapping[str, Callable[..., Run]] = {"cluster": in_cluster_b, "sweep": in_sweep}
SOURCES = (
    *(f"operator/heterotrain_operator/{name}" for name in ("core", "clusters/simulated", "experiments", "loop.py")),
    *(f"hack/bench/{name}.py" for name in ("rivals", "rival_schemes", "simulated_scenarios", "kinds")),
)


def one(work: runner.Key) -> Run:
    """One run, in a process of its own."""
    return PARTS_OF_IT[work[0]](*work[1:])


def main(arguments: Sequence[str]) -> int:
    """Run all settings and print."""
    parser = argparse.ArgumentParser(description="Compare rivals on the own times of one simulated cluster.")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each setting (3)")
    parser.add_argument("--part", choices=PARTS_OF_IT, help="only this one")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="of the sweep (4 8 32 128)")
    options = runner.options_of(parser, pool=True).parse_args(arguments)
    if options.seeds < 1 or min(options.workers) < 4:
        parser.error("--seeds must be at least 1, and --workers at least 4")
    settings: list[runner.Key] = [("cluster", *each) for each in product(WORKLOADS, NOISES)]
    settings += [("sweep", *each) for each in product(SWEPT, options.workers)]
    keys = [(*key, seed) for key in settings if options.part in (None, key[0]) for seed in range(options.seeds)]
    runs = [(key[0], run) for key, run in zip(keys, runner.play(one, Run, keys, options, SOURCES), strict=True)]
    document = {"benchmark": "rivals", "runs": [{"part": part, **asdict(run)} for part, run in runs]}
    runner.report(document, f"{tables_rivals.rivals([document])}\n\n{tables_rivals.stealing([document])}", options)
    return 0


if __name__ == "__main__":
    runner.command(main)
