"""What steering does and costs on a cluster: how soon a job starts and is balanced, how soon its workers follow a plan,
how much faster it trains than with equal batches, and what the operator takes for it.

With KUBECONFIG naming a cluster that has the images, as after `make kind images`:

    PYTHONPATH=tests .venv/bin/python hack/bench/cluster.py --out out/cluster.json

It installs the operator for itself, and removes it with everything else at the end. Times are taken from the workers'
own records of their steps and from watches of the API server, so they hold for all of the cluster's nodes and this
machine to have one clock.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cluster_balance import Balance, compare, measure_balance
from cluster_bench import ready
from cluster_cost import Cost, measure_cost
from rich.console import Console
from rich.table import Table

from heterotrain_operator.experiments.figures.summary import Summary


def balance_table(rounds: list[Balance]) -> Table:
    """One row per round."""
    table = Table(
        "policy",
        "apply to Running",
        "first metrics to balance",
        "adjustments",
        "plan to all following",
        "batches",
        "own time over mean",
        box=None,
    )
    for each in rounds:
        balanced = "-" if each.balanced_seconds is None else f"{each.balanced_seconds:.1f} s"
        followed = ", ".join(f"{seconds:.2f} s" for seconds in each.followed_seconds) or "-"
        table.add_row(
            each.policy,
            f"{each.running_seconds:.1f} s",
            balanced,
            str(each.adjustments),
            followed,
            ", ".join(map(str, each.batches)),
            f"{each.imbalance:+.1%}",
        )
    return table


def comparison_table(comparison: Summary) -> Table:
    """Uniform beside Optimal."""
    table = Table("policy", "samples/s", "iteration", "of the ceiling", box=None)
    for trial in comparison.trials:
        fraction = "-" if trial.ceiling_fraction is None else f"{trial.ceiling_fraction:.0%}"
        iteration = "-" if trial.iteration_seconds is None else f"{1000 * trial.iteration_seconds:.0f} ms"
        table.add_row(trial.policy, f"{trial.samples_per_second or 0:.0f}", iteration, fraction)
    return table


def cost_table(costs: list[Cost]) -> Table:
    """One row per state and number of jobs."""
    table = Table("jobs", "state", "CPU s / job and hour", "memory", "writes / job and minute", "a look", box=None)
    for each in costs:
        writes = f"{sum(each.writes_per_job_minute.values()):.2f}"
        table.add_row(
            str(each.jobs),
            each.state,
            f"{each.cpu_seconds_per_job_hour:.1f}",
            f"{each.memory_bytes / 2**20:.0f} MiB",
            writes,
            f"{1000 * each.look_seconds:.0f} ms",
        )
    return table


def main() -> int:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="runs of the digits job with each policy (default 2)")
    parser.add_argument("--steps", type=int, default=400, help="steps of each run (default 400)")
    parser.add_argument("--width", type=int, default=56, help="width of the model (default 56)")
    parser.add_argument("--jobs", type=int, nargs="*", default=[1, 20], help="numbers of small jobs (default 1 20)")
    parser.add_argument("--seconds", type=float, default=180.0, help="how long the operator's cost is measured")
    parser.add_argument("--out", type=Path, help="file for all figures, as JSON")
    options = parser.parse_args()
    console = Console(width=150)
    report: dict[str, Any] = {}
    with ready() as bench:
        report["kubernetes"] = bench.cluster.version
        if options.rounds > 0:
            rounds, trials = [], []
            for number in range(1, options.rounds + 1):
                for policy in ("Optimal", "Uniform"):
                    balance, trial = measure_balance(bench, policy, number, options.steps, options.width)
                    rounds.append(balance)
                    trials.append(trial)
            console.print(balance_table(rounds))
            comparison = compare(bench, trials, options.width)
            console.print(comparison_table(comparison))
            report["rounds"] = [asdict(each) for each in rounds]
            report["comparison"] = comparison.to_json()
        costs: list[Cost] = []
        for count in options.jobs:
            costs += measure_cost(bench, count, options.seconds)
        if costs:
            console.print(cost_table(costs))
        report["cost"] = [asdict(each) for each in costs]
    text = json.dumps(report, indent=2)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
