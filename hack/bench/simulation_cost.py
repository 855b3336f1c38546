"""What a simulation costs: CPU seconds of so many workers and control intervals, and the part that is decisions.

    .venv/bin/python hack/bench/simulation_cost.py
    .venv/bin/python hack/bench/simulation_cost.py --workers 1000 --intervals 100

Workers of four speeds with independent noise of 10 % take steps of about 0.1 s, so that a round follows every interval.
All runs on one core.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from heterotrain_operator import loop
from heterotrain_operator.clusters.simulated.laws import Affine
from heterotrain_operator.clusters.simulated.noise import Independent
from heterotrain_operator.clusters.simulated.scenario import Scenario, WorkerModel
from heterotrain_operator.core.model import Decision, Group, Job, Seen
from heterotrain_operator.core.state import Memory
from heterotrain_operator.experiments.simulations import simulate

SPEEDS = (1.0, 1.5, 2.0, 4.0)
BATCH, LAW = 32, Affine(0.004, 0.0014)


def scenario(workers: int, intervals: int) -> Scenario:
    """So many workers of four speeds."""
    groups = [Group(f"g{rank}", len(range(rank, workers, len(SPEEDS)))) for rank in range(len(SPEEDS))]
    models = {f"g{rank}": WorkerModel(LAW, speed, Independent(0.1)) for rank, speed in enumerate(SPEEDS)}
    return Scenario(Job("cost", tuple(groups), BATCH * workers), models, intervals=intervals)


def main(arguments: Sequence[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure the CPU time of simulations by the number of workers.")
    parser.add_argument("--workers", type=int, nargs="+", default=(10, 100, 1000, 10_000), help="(10 ... 10,000)")
    parser.add_argument("--intervals", type=int, default=100, help="control intervals of each (100)")
    options = parser.parse_args(arguments)
    if min(*options.workers, options.intervals, 10_000) < 1 or min(options.workers) < len(SPEEDS):
        parser.error(f"--workers must be at least {len(SPEEDS)}, --intervals at least 1")
    decide, spent = loop.decide, 0.0

    def timed(job: Job, seen: Seen, memory: Memory, now: float) -> tuple[Decision, Memory]:
        nonlocal spent
        began = time.process_time()
        try:
            return decide(job, seen, memory, now)
        finally:
            spent += time.process_time() - began

    loop.decide = timed
    print(f"{'workers':>8}  {'rounds':>6}  {'CPU s':>7}  {'of it decisions':>15}  {'step over oracle':>16}")
    for workers in options.workers:
        spent, began = 0.0, time.process_time()
        result = simulate(scenario(workers, options.intervals), own_seconds=False)
        cpu = time.process_time() - began
        print(f"{workers:>8,}  {result.rounds:>6}  {cpu:>7.1f}  {spent:>13.1f} s  {result.settled_ratio:>16.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
