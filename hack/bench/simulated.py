"""How near policies come to the best possible, in simulated clusters: a table of many runs, with the goals beside it.

    .venv/bin/python hack/bench/simulated.py --quick
    .venv/bin/python hack/bench/simulated.py --out hack/bench/results/simulated/table.json
    .venv/bin/python hack/bench/simulated.py --case "affine, AR(.9) 10 %" --workers 8 --policy Optimal --seeds 3
    .venv/bin/python hack/bench/simulated.py --workers 512 --policy Optimal --policy Static --runs out/bench/512.jsonl

Every row is one scenario (`simulated_scenarios.py`) with so many workers under one policy, over several seeds. All
policies, and the oracle, meet the same noise. **E** is the realised time of all steps over the oracle's, **settled**
the same after the first 20 control intervals, with its greatest value over the seeds; **plans** are those per 100
intervals after that; **within 5 %** is the interval from which on every stretch of five stays within 5 % of the oracle
(mean over the seeds in which there is one), **off** counts the seeds whose last fifth is more than 5 % away; **first**
is the greatest number of steps before the first move. The exit code is 1 if a goal is missed.

All runs of the whole table take hours. With `--runs FILE` each is kept there as soon as it ends, and those that are
there are not run again: the table can be done in parts, as long as the sources that decide it stay the same.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import runner
from simulated_scenarios import EVENT_AT, INTERVALS, Case, by_name, cases, quick
from table import NONE, OWN_POLICY, UNIFORM, digits, table

from heterotrain_operator.core.batching.policies import POLICIES
from heterotrain_operator.experiments.simulations import SimulationResult, simulate

NOT_COMPARED = ("Profile",)
WORKERS = (3, 8, 32, 512)
SEEDS = 10
MANY_WORKERS = 100
"""With more of them, where a run takes seconds, only the own policy and `Uniform` are compared unless asked for."""
QUICK_WORKERS, QUICK_SEEDS, QUICK_POLICIES = (3, 8), 3, (UNIFORM, OWN_POLICY)

SOURCES = (
    *(f"operator/heterotrain_operator/{name}" for name in ("api", "core", "clusters/simulated", "experiments")),
    *(f"operator/heterotrain_operator/{name}.py" for name in ("loop", "clusters/port")),
    *(f"trainer-image/heterotrain/{name}" for name in ("contract", "foreign.py", "asynchronous", "data/sampler.py")),
    *(f"hack/bench/{name}" for name in ("simulated.py", "simulated_scenarios.py", "kinds.py", "recorded_steps.json")),
)
"""What decides a run's figures."""

CLOSE = 0.05
STRETCH = 5
"""Intervals over which nearness is judged: ten steps say little where they are noisy."""

WORSE_THAN_UNIFORM = 0.01

CONVERGENCE = "jump 2x"
"""The scenario whose batches are recorded plan by plan with `--plans` and `--courses`."""


@dataclass(frozen=True, slots=True)
class Run:
    """One seed of one row; `close_after` intervals (None: never for good), `first_move` in steps (None: none)."""

    ratio: float
    settled: float
    plans: float
    close_after: int | None
    off: bool
    first_move: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """A scenario with so many workers under one policy: means over the seeds, and the worst where it is said so."""

    case: str
    workers: int
    policy: str
    seeds: int
    ratio: float
    settled: float
    settled_worst: float
    plans_per_100: float
    close_after: float | None
    off: int
    first_move: int | None


@dataclass(frozen=True, slots=True)
class Goal:
    """What `Optimal` is to reach, and whether it does."""

    case: str
    workers: int
    text: str
    found: float
    reached: bool


def run_of(result: SimulationResult) -> Run:
    """The figures of one run."""
    ratios = result.interval_ratios
    if len(ratios) < STRETCH:
        return Run(result.ratio, result.settled_ratio, result.plans_per_100_intervals(), None, True, None)
    stretches = np.convolve(ratios, np.ones(STRETCH) / STRETCH, mode="valid")
    far = np.flatnonzero(stretches > 1 + CLOSE)
    close_after = int(far[-1]) + 1 if len(far) else 0
    last_fifth = result.ratio_between(result.steps - result.steps // 5, result.steps)
    return Run(
        ratio=result.ratio,
        settled=result.settled_ratio,
        plans=result.plans_per_100_intervals(),
        close_after=close_after if close_after < len(stretches) else None,
        off=not last_fifth <= 1 + CLOSE,
        first_move=result.steps_to_first_move,
    )


def row_of(case: Case, workers: int, policy: str, runs: Sequence[Run]) -> Row:
    """The figures of one row."""
    close = [run.close_after for run in runs if run.close_after is not None]
    moved = [run.first_move for run in runs if run.first_move is not None]
    return Row(
        case.name,
        workers,
        policy,
        len(runs),
        fmean(run.ratio for run in runs),
        fmean(run.settled for run in runs),
        max(run.settled for run in runs),
        fmean(run.plans for run in runs),
        fmean(close) if close else None,
        sum(run.off for run in runs),
        max(moved) if len(moved) == len(runs) else None,
    )


def goals_of(known: Iterable[Case], rows: Sequence[Row]) -> list[Goal]:
    """What is asked of the own policy in these rows."""
    by_key = {(row.case, row.workers, row.policy): row for row in rows}
    found: list[Goal] = []
    for case in known:
        for workers in dict.fromkeys(row.workers for row in rows):
            own = by_key.get((case.name, workers, OWN_POLICY))
            if own is None:
                continue

            def add(text: str, value: float, reached: bool, name: str = case.name, count: int = workers) -> None:
                found.append(Goal(name, count, text, value, reached))

            if case.goal is not None:
                ratio, plans = case.goal
                add(f"settled E <= {ratio:g}", own.settled, own.settled <= ratio)
                add(f"plans <= {plans:g}", own.plans_per_100, own.plans_per_100 <= plans)
            if case.first_move is not None:
                first = math.inf if own.first_move is None else own.first_move
                add(f"first move within {case.first_move} steps", first, first <= case.first_move)
            if not case.may_stay_off:
                add("nobody stays more than 5 % off", own.off, own.off == 0)
            uniform = by_key.get((case.name, workers, UNIFORM))
            if uniform is not None:
                over = own.ratio / uniform.ratio
                add("E at most 1.01 times that of Uniform", over, over <= 1 + WORSE_THAN_UNIFORM)
    return found


def one(work: tuple[str, int, int, str, int]) -> Run:
    """One run, in a process of its own; the case by its name, for functions do not travel."""
    name, intervals, workers, policy, seed = work
    scenario = replace(by_name()[name].scenario(workers, policy, seed), intervals=intervals)
    return run_of(simulate(scenario, own_seconds=False))


def rows_of(known: Sequence[Case], options: argparse.Namespace) -> list[tuple[Case, int, str]]:
    """What is asked for, row by row: cases, workers and policies."""
    names = [name for name in POLICIES if name not in NOT_COMPARED]
    return [
        (case, count, policy)
        for case in known
        for count in options.workers
        for policy in options.policy or (names if count <= MANY_WORKERS else (UNIFORM, OWN_POLICY))
    ]


def measure(rows: Sequence[tuple[Case, int, str]], options: argparse.Namespace) -> list[Row]:
    """All these rows."""
    keys = [
        (case.name, case.intervals, count, policy, seed)
        for case, count, policy in rows
        for seed in range(options.seeds)
    ]
    runs = runner.play(one, Run, keys, options, SOURCES)
    return [row_of(*row, [next(runs) for _ in range(options.seeds)]) for row in rows]


def shown(rows: Sequence[Row], goals: Sequence[Goal]) -> str:
    """A line for each row, and what is missed."""
    headings = ("scenario", "policy", "workers", "E", "settled", "worst", "plans", "within 5 %", "off", "first")
    lines = [
        [
            row.case,
            row.policy,
            row.workers,
            *(digits(3)(value) for value in (row.ratio, row.settled, row.settled_worst)),
            digits(1)(row.plans_per_100),
            "never" if row.close_after is None else digits(1)(row.close_after),
            row.off,
            NONE if row.first_move is None else row.first_move,
        ]
        for row in rows
    ]
    missed = [goal for goal in goals if not goal.reached]
    notes = [f"missed: {each.case}, {each.workers} workers: {each.text}, found {each.found:.3f}" for each in missed]
    notes.append(f"{len(goals) - len(missed)} of {len(goals)} goals reached, all of it simulated")
    return "\n".join([table(headings, lines, texts=2), "", *notes])


def convergence(workers: int, policy: str = OWN_POLICY, intervals: int = INTERVALS) -> dict[str, Any]:
    """One run plan by plan: from which step on each worker has which batch."""
    scenario = replace(by_name()[CONVERGENCE].scenario(workers, policy, 0), intervals=intervals)
    result = simulate(scenario, own_seconds=False)
    return {
        "benchmark": "convergence",
        "scenario": CONVERGENCE,
        "policy": policy,
        "steps": scenario.steps,
        "ratio": result.ratio,
        "workers": result.plans[0].workers,
        "plans": [{"step": plan.step, "batches": plan.batches} for plan in result.plans],
    }


def courses() -> dict[str, Any]:
    """The same of all policies, with four workers of which one changes halfway."""
    intervals = 2 * EVENT_AT // by_name()[CONVERGENCE].scenario(4, OWN_POLICY, 0).job.interval
    names = [name for name in POLICIES if name not in NOT_COMPARED]
    return {"benchmark": "courses", "courses": [convergence(4, name, intervals) for name in names]}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description="Compare policies with the oracle in simulated clusters.")
    names = [name for name in POLICIES if name not in NOT_COMPARED]
    parser.add_argument("--quick", action="store_true", help="a few scenarios and seeds: about a minute")
    parser.add_argument("--case", action="append", choices=by_name(), help="again for several (all)")
    parser.add_argument("--workers", type=int, nargs="+", help="numbers of workers (3 8 32 512)")
    parser.add_argument("--courses", action="store_true", help="record only the plans of each policy, of four workers")
    parser.add_argument("--policy", action="append", choices=names, help="again for several (all)")
    parser.add_argument("--seeds", type=int, help="runs of each row (10)")
    parser.add_argument("--plans", action="store_true", help=f"record only the plans of one run of {CONVERGENCE!r}")
    runner.options_of(parser, pool=True)
    options = parser.parse_args(arguments)
    options.workers = options.workers or (QUICK_WORKERS if options.quick else WORKERS)
    options.seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    if options.quick and not options.policy:
        options.policy = QUICK_POLICIES
    if min(*options.workers, options.seeds, options.processes) < 1 or max(options.workers) > 10_000:
        parser.error("--workers, --seeds and --processes must be at least 1, --workers at most 10,000")
    return options


def main(arguments: Sequence[str]) -> int:
    """Run, print, and say which goals are missed."""
    options = parse(arguments)
    if options.plans:
        recorded = convergence(min(options.workers))
        runner.report(recorded, f"{len(recorded['plans'])} plans", options)
        return 0
    if options.courses:
        runner.report(courses(), f"{CONVERGENCE} under each policy", options)
        return 0
    known = [by_name()[name] for name in options.case] if options.case else list(quick() if options.quick else cases())
    rows = measure(rows_of(known, options), options)
    goals = goals_of(known, rows)
    figures = {"rows": [asdict(row) for row in rows], "goals": [asdict(goal) for goal in goals]}
    document = {"benchmark": "simulated", "seeds": options.seeds, **figures}
    runner.report(document, shown(rows, goals), options)
    return 0 if all(goal.reached for goal in goals) else 1


if __name__ == "__main__":
    runner.command(main)
