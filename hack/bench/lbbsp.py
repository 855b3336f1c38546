"""Where LB-BSP's Algorithm 2 comes to rest, when, and what that saves, beside the paper's four kinds of GPU.

Simulated: own times are lines that are equal at the paper's last batches, with noise that is drawn for each step, and a
decision takes no time, as in the paper's blocking update. With 16 and 12 workers there are four of each kind, all kinds
or all but the fastest (its Cluster-A, and that without the p3.2xlarge instances).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import runner
import tables_papers

from heterotrain_operator.core.model import Group, Job
from unit.core.traces import World

REST = {"V100": 89, "M60": 21, "K80": 12, "K520": 6}
"""Samples at which the paper's GPUs take equally long, from 32 each. Source: LB-BSP, section 5.2."""

FIXED_PART = 0.1
"""Of the time at these; the paper's fig. 4 shows a line above a fixed part."""

CHANGE_STEP, STEPS, UNEQUAL = 150, 400, 32


@dataclass(frozen=True, slots=True)
class Run:
    """One job. `fine_step`: the step from which on single samples move (None: never); `off`: by how many samples the
    farthest batch is from the balance before the change; `saved`: the part of the first plan's step that is saved then;
    `excess_after_change`: by what part of the mean the slowest step exceeds it once the first worker takes twice as
    long.
    """

    interval: int
    noise: float
    workers: int
    seed: int
    fine_step: int | None
    off: int
    excess_after_change: float
    saved: float


def play(interval: int, noise: float, kinds: Sequence[str], seed: int) -> Run:
    """Train 150 steps undisturbed, or as long as Algorithm 2 needs at this interval, and as long with a change."""
    groups = tuple(Group(f"g{rank}", 1, device="gpu") for rank in range(len(kinds)))
    job = Job("bench", groups, UNEQUAL * len(kinds), policy="LBBSP", interval=interval)
    balance = [REST[kind] for kind in kinds]
    per_sample = 0.001
    fixed = FIXED_PART * per_sample * UNEQUAL
    scales = {f"bench-g{rank}-0": 0.5 / (fixed + per_sample * batch) for rank, batch in enumerate(balance)}
    world = World(job, scales, noise=noise, seed=seed, fixed=fixed, per_sample=per_sample).start()
    first = max(world.true_seconds())
    fine, rounds = None, math.ceil(max(CHANGE_STEP, 30 * interval) * len(kinds) / len(REST) / interval)
    for each in range(1, rounds + 1):
        (decision,) = world.run(1)
        if fine is None and "small steps from now on" in decision.reason:
            fine = each * interval
    assert world.plan is not None
    off = max(
        abs(batch - best * sum(world.plan.batch_sizes) / sum(balance))
        for batch, best in zip(world.plan.batch_sizes, balance, strict=True)
    )
    saved = 1 - max(world.true_seconds()) / first
    world.workers["bench-g0-0"].scale *= 2
    world.run(math.ceil(STEPS * max(interval / 5, 1) / interval))
    seconds = world.true_seconds()
    return Run(
        interval, noise, len(kinds), seed, fine, round(off), max(seconds) / (sum(seconds) / len(kinds)) - 1, saved
    )


def main(arguments: Sequence[str]) -> int:
    """Run all settings and print."""
    parser = argparse.ArgumentParser(description="Show where LB-BSP's Algorithm 2 comes to rest, and when.")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each setting with noise (10)")
    options = runner.options_of(parser).parse_args(arguments)
    if options.seeds < 1:
        parser.error("--seeds: must be at least 1")
    four, twelve = list(REST), [kind for kind in REST for _ in range(4) if kind != "V100"]
    sixteen = [kind for kind in REST for _ in range(4)]
    settings = [(interval, noise, four) for interval in (1, 5, 10) for noise in (0.0, 0.03, 0.10)]
    settings += [(1, 0.03, kinds) for kinds in (sixteen, twelve)]
    runs = [
        play(interval, noise, kinds, seed)
        for interval, noise, kinds in settings
        for seed in range(options.seeds if noise else 1)
    ]
    document = {"benchmark": "lbbsp", "machine": runner.machine(), "runs": [asdict(run) for run in runs]}
    runner.report(document, tables_papers.lbbsp([document]), options)
    return 0


if __name__ == "__main__":
    runner.command(main)
