"""How long a job takes whose workers become slow by fault, by what is done about them. *Simulated*: the ordinary loop
on a simulated cluster (`clusters/simulated/`), and nothing is measured on a machine.

    .venv/bin/python hack/bench/stragglers_elastic.py
    .venv/bin/python hack/bench/stragglers_elastic.py --workers 12 40 --seeds 10

After the paper on elasticity (section 7.4, figures 9 and 10): for every three normal workers one becomes 4, 2 or 1.33
times as slow at an unchanged limit, one after the other. *none* keeps equal batches, *rebalance* balances them,
*replace* and *remove* also act on the verdicts, and *healthy* has no stragglers. The paper's reductions of the
completion time, -51.4, -34.1 and -19.9 %, and its distance from a run without stragglers, at most 12.5 %, are the goals
of *replace*; the exit code is 1 if one is missed. In the paper batches stay equal, workers join one by one up to 40,
and its clusters were real, so the figures stand beside each other and are not the same experiment.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import kinds
import runner
import stragglers
import tables_simulated

from heterotrain_operator.core.facts import worker_name
from heterotrain_operator.core.model import Group, Job, Stragglers
from heterotrain_operator.experiments.simulations import simulate

GOALS = {4.0: 0.514, 2.0: 0.341, 1.33: 0.199}
"""Least reduction of the completion time by the slowdown. Source: Elasticity, section 7.4."""

MOST_OVER = 0.125
"""Part by which the completion time may exceed that without stragglers. Source: the same."""

ACTIONS = {
    "none": ("Uniform", "Ignore"),
    "rebalance": ("Optimal", "Rebalance"),
    "replace": ("Optimal", "Replace"),
    "remove": ("Optimal", "Remove"),
    "healthy": ("Optimal", "Report"),
}
"""Policy and `stragglers.action` of each way."""

SAMPLES, LAW = 64, kinds.Affine(0.01, 0.005)
"""Of each worker in the mean; steps take a third of a second when balanced."""

FIRST, APART = 50, 30
"""Executed steps before the first worker becomes slow, and between two; the paper's came 40 steps after each other."""

TIMING = kinds.Timing(pod_seconds=5.0, prepare_seconds=10.0, transition_seconds=0.3)
"""A newcomer is warm after 15 s; changes of members stand still for what `hack/bench/transition.py` measured."""

PROTOCOL = 2


@dataclass(frozen=True, slots=True)
class Setting:
    """One run."""

    way: str
    slowdown: float
    workers: int
    steps: int
    noise: float
    seed: int


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds of the simulated clock from the first plan to the end, workers that were replaced and removed, and steps
    that were repeated since all started again."""

    seconds: float
    replaced: int
    removed: int
    repeated: int


def prepared(setting: Setting) -> kinds.Scenario:
    """The simulation of a run: every fourth worker becomes a straggler, but for a healthy one."""
    policy, action = ACTIONS[setting.way]
    group = Group("w", setting.workers)
    slow = [worker_name("bench", "w", index) for index in range(3, setting.workers, 4)]
    faults = tuple(
        kinds.Jump((name,), setting.slowdown, FIRST + APART * number, cause="cpu-wait")
        for number, name in enumerate(slow)
    )
    acting = Stragglers(action=action, max_replacements=2 * len(slow), cooldown_seconds=0.0)
    return kinds.Scenario(
        Job("bench", (group,), SAMPLES * setting.workers, policy=policy, stragglers=acting),
        other_workers=kinds.WorkerModel(LAW, noise=kinds.Independent(setting.noise), protocol=PROTOCOL),
        events=() if setting.way == "healthy" else faults,
        timing=TIMING,
        seed=setting.seed,
        intervals=setting.steps,
        total_steps=setting.steps,
    )


def play(setting: Setting) -> Run:
    """One run, to its end. Raises RuntimeError if the job does not succeed."""
    result = simulate(prepared(setting), own_seconds=False)
    if result.phase != "Succeeded":
        raise RuntimeError(f"{setting}: the job ended as {result.phase}: {result.reason}")
    seconds = float(result.began[-1] + result.step_seconds[-1]) - result.plans[0].seconds
    counts = Counter(each.event.reason for each in result.events)
    return Run(seconds, counts["WorkerReplaced"], counts["WorkerRemoved"], result.repeated_steps)


def one(key: runner.Key) -> Run:
    """The run of a setting's values."""
    return play(Setting(*key))


def row_of(way: str, slowdown: float, workers: int, runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """What one way came to at one slowdown, `runs` by way: mean seconds over the seeds, the `reduction` beside doing
    nothing, the part `over` a healthy run, and mean numbers of workers that were replaced and removed.
    """
    seconds = {each: statistics.fmean(run.seconds for run in of) for each, of in runs.items()}
    return {
        "workers": workers,
        "slowdown": slowdown,
        "way": way,
        "seconds": seconds[way],
        "reduction": 1 - seconds[way] / seconds["none"],
        "paper": GOALS[slowdown],
        "over": seconds[way] / seconds["healthy"] - 1,
        "replaced": statistics.fmean(run.replaced for run in runs[way]),
        "removed": statistics.fmean(run.removed for run in runs[way]),
        "repeated": sum(run.repeated for run in runs[way]),
    }


def misses(row: runner.Document) -> list[str]:
    """The goals that a row misses, in words; they are of `replace`."""
    if row["way"] != "replace":
        return []
    where, words = f"{row['workers']} workers, {row['slowdown']:g}x", []
    if row["reduction"] < row["paper"]:
        words.append(f"{where}: -{row['reduction']:.1%}, the paper has -{row['paper']:.1%}")
    if row["over"] > MOST_OVER:
        words.append(f"{where}: {row['over']:.1%} over a healthy run, the paper has {MOST_OVER:.1%}")
    if row["repeated"]:
        words.append(f"{where}: {row['repeated']} steps repeated")
    return words


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description="Time simulated jobs with stragglers, by what is done about them.")
    parser.add_argument("--workers", type=int, nargs="+", default=[12], help="numbers of workers (12)")
    parser.add_argument("--steps", type=int, default=2000, help="of each run (2000)")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each way (5)")
    parser.add_argument("--noise", type=float, default=0.05, help="coefficient of variation of a step (0.05)")
    options = runner.options_of(parser, pool=True).parse_args(arguments)
    if min(options.workers) < 4 or min(options.steps, options.seeds) < 1 or not 0 <= options.noise <= 1:
        parser.error("--workers must be at least 4, --steps and --seeds at least 1, --noise within 0 and 1")
    return options


def main(arguments: Sequence[str]) -> int:
    """Time them, and print. Returns 1 if a goal is missed."""
    options = parse(arguments)
    places = [(slowdown, workers) for workers in options.workers for slowdown in GOALS]
    keys = [
        (way, *place, options.steps, options.noise, seed)
        for place in places
        for way in ACTIONS
        for seed in range(options.seeds)
    ]
    found = runner.play(one, Run, keys, options, (*stragglers.SOURCES, "hack/bench/stragglers_elastic.py"))
    rows = []
    for place in places:
        runs = {way: list(islice(found, options.seeds)) for way in ACTIONS}
        rows += [row_of(way, *place, runs) for way in ACTIONS]
    missed = [words for row in rows for words in misses(row)]
    document = {"benchmark": "elastic", "noise": options.noise, "steps": options.steps, "rows": rows, "missed": missed}
    runner.report(document, tables_simulated.elastic([document]), options)
    return int(bool(missed))


if __name__ == "__main__":
    runner.command(main)
