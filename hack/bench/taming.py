"""Taming's evaluation, simulated: three CPU workers that share 39 cores ever more unequally, a GPU beside a CPU, and
what a controller without a dead-band does. *Simulated*: the ordinary loop decides, and workers follow the laws below.

    .venv/bin/python hack/bench/taming.py --out hack/bench/results/papers/taming.json

Each worker computes as Amdahl's law has it (Taming, section III-C, names it as what cores alone do not show), beside a
part of the step that no core makes shorter and one that all spend on parameter servers. The parts of MNIST and of the
regression are fitted to what the paper saved at its level 10 (fig. 6); all else follows from them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

import kinds
import numpy as np
import runner
import tables_taming

from heterotrain_operator.core.model import Group, Job, Stragglers
from heterotrain_operator.experiments.simulations import simulate
from heterotrain_operator.experiments.simulations.result import SETTLING_INTERVALS

SAMPLES = 64
"""Of each worker in the mean; with 13 cores a step of them takes a second."""

EQUAL_CORES, SERIAL = 13, 0.01
"""Of the three workers; part of a sample's work that runs on one core whatever there is."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Seconds of a second's step: computing, what no core shortens, and the parameter servers."""

    computing: float
    fixed: float
    communication: float


WORKLOADS: Mapping[str, Workload] = {
    "ResNet-50": Workload(0.93, 0.02, 0.05),
    "MNIST": Workload(0.55, 0.05, 0.40),
    "regression": Workload(0.035, 0.065, 0.90),
}

CORES: Mapping[str, tuple[int, ...]] = {
    "equal": (13, 13, 13),
    "2": (9, 12, 18),
    "6": (4, 11, 24),
    "10": (2, 17, 20),
    "fig. 3": (3, 5, 12),
    "mixed": (48, 48),
}
"""By cluster. Those of level 6 are ours, the paper gives none; of the mixed one the first is a GPU. Source: Taming,
sections III-B and IV.
"""

FLOPS = (0.813, 0.187)
"""Shares of the GPU and the CPU, half precision. Source: Taming, section IV-B."""

MEBIBYTE = 2.0**20
POLICIES = ("Uniform", "Static", "PapersProportional", "Optimal")
DEAD_BANDS = (0.0, 0.05)
NOISES = (0.0, 0.05)


@dataclass(frozen=True, slots=True)
class Setting:
    """One run. From batches by cores the global batch stays, so that steps can be compared; from equal ones it is free,
    as in the paper.
    """

    workload: str
    cluster: str
    policy: str
    initial: str
    dead_band: float
    noise: float
    seed: int
    steps: int


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a setting: mean seconds of a step and of the best split's, the slowest own time over the fastest at
    the end, and adjustments before and after settling. `swing`: by what part of its mean the batch of the worker that
    moves most goes up and down after it.
    """

    step_seconds: float
    oracle_seconds: float
    spread: float
    adjustments: int
    later_adjustments: int
    swing: float
    batches: tuple[int, ...]


def speed(cores: float) -> float:
    """How many cores' work so many cores do. Source: Amdahl's law."""
    return 1 / (SERIAL + (1 - SERIAL) / cores)


def play(setting: Setting) -> Run:
    """One run."""
    load, cores = WORKLOADS[setting.workload], CORES[setting.cluster]
    speeds = [speed(each) for each in cores]
    groups = [Group(f"w{rank}", 1, cpu_limit=each) for rank, each in enumerate(cores)]
    if setting.cluster == "mixed":
        speeds[0] *= FLOPS[0] / FLOPS[1]
        groups = [Group(f"w{rank}", 1, ("gpu", "cpu")[rank], flops=each) for rank, each in enumerate(FLOPS)]
    job = Job(
        "taming",
        tuple(groups),
        SAMPLES * len(groups),
        policy=setting.policy,
        initial=setting.initial,
        stragglers=Stragglers(action="Report"),
        dead_band=setting.dead_band,
        fixed_global_batch=setting.initial == "Static",
    )
    per_sample = load.computing * speed(EQUAL_CORES) / SAMPLES
    models = {
        group.name: kinds.WorkerModel(
            kinds.Affine(load.fixed, per_sample / own), noise=kinds.Independent(setting.noise)
        )
        for group, own in zip(groups, speeds, strict=True)
    }
    servers = kinds.ParameterServer(MEBIBYTE, 1e15, load.communication / 2)  # latency alone, there and back
    result = simulate(
        kinds.Scenario(job, models, communication=servers, seed=setting.seed, intervals=setting.steps // job.interval)
    )
    settled = SETTLING_INTERVALS * job.interval
    later = [plan for plan in result.adjustments if plan.step >= settled]
    rest = [plan.batches for plan in result.plans if plan.step >= settled] or [result.plans[-1].batches]
    swings = [(max(each) - min(each)) / fmean(each) / 2 for each in zip(*rest, strict=True)]
    own = np.nanmean(result.own_seconds[-settled:], axis=0)
    return Run(
        step_seconds=float(result.step_seconds.mean()),
        oracle_seconds=float(result.oracle_seconds.mean()),
        spread=float(own.max() / own.min()),
        adjustments=len(result.adjustments) - len(later),
        later_adjustments=len(later),
        swing=max(swings),
        batches=result.plans[-1].batches,
    )


def one(key: runner.Key) -> Run:
    """The run of a setting's values."""
    return play(Setting(*key))


def settings(seeds: int, steps: int) -> list[runner.Key]:
    """All of them: where there is no noise one seed is enough."""
    jobs = [("equal", "Uniform", workload) for workload in WORKLOADS]
    jobs += [(level, policy, workload) for level in ("2", "6", "10") for policy in POLICIES for workload in WORKLOADS]
    jobs += [("mixed", policy, workload) for policy in POLICIES for workload in ("ResNet-50", "MNIST")]
    jobs += [("fig. 3", policy, "ResNet-50") for policy in ("Uniform", "Static")]
    keys = [(workload, cluster, policy, "Static", 0.05) for cluster, policy, workload in jobs]
    keys += [("ResNet-50", "fig. 3", "PapersProportional", "Uniform", band) for band in DEAD_BANDS]
    return [(*key, noise, seed, steps) for key in keys for noise in NOISES for seed in range(seeds if noise else 1)]


def main(arguments: Sequence[str]) -> int:
    """Run all settings and print."""
    parser = argparse.ArgumentParser(description="Simulate Taming's clusters under each policy.")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each setting with noise (5)")
    parser.add_argument("--steps", type=int, default=600, help="of each run (600)")
    options = runner.options_of(parser, pool=True).parse_args(arguments)
    if options.seeds < 1 or options.steps < 400:
        parser.error("--seeds must be at least 1, --steps at least 400")
    sources = ("operator/heterotrain_operator", "trainer-image/heterotrain/contract", "hack/bench/taming.py")
    keys = settings(options.seeds, options.steps)
    runs = [
        asdict(Setting(*key)) | asdict(run)
        for key, run in zip(keys, runner.play(one, Run, keys, options, sources), strict=True)
    ]
    document = {"benchmark": "taming", "runs": runs}
    runner.report(document, tables_taming.clusters([document]), options)
    return 0


if __name__ == "__main__":
    runner.command(main)
