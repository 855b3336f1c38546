"""How long a job takes whose workers become slow by fault, by what is done about them. *Simulated*: the ordinary loop
on a simulated cluster (`clusters/simulated/`), and nothing is measured on a machine.

    .venv/bin/python hack/bench/stragglers_elastic.py
    .venv/bin/python hack/bench/stragglers_elastic.py --workers 12 40 --seeds 10 --json

After the paper on elasticity (section 7.4, figures 9 and 10): for every three normal workers one becomes 4, 2 or 1.33
times as slow at an unchanged limit, one after the other. *none* keeps equal batches, *rebalance* balances them,
*replace* and *remove* also act on the verdicts, and *healthy* has no stragglers. The paper's reductions of the
completion time, -51.4, -34.1 and -19.9 %, and its distance from a run without stragglers, at most 12.5 %, are the goals
of *replace*; the exit code is 1 if one is missed. In the paper batches stay equal, workers join one by one up to 40,
and its clusters were real, so the figures stand beside each other and are not the same experiment.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass

from heterotrain_operator.clusters.simulated.cluster import SimulatedCluster
from heterotrain_operator.clusters.simulated.events import Jump
from heterotrain_operator.clusters.simulated.laws import Affine
from heterotrain_operator.clusters.simulated.noise import Independent
from heterotrain_operator.clusters.simulated.scenario import Scenario, Timing, WorkerModel
from heterotrain_operator.core.facts import worker_name
from heterotrain_operator.core.model import Decision, Group, Job, Seen, Stragglers
from heterotrain_operator.loop import run_job

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

SAMPLES, LAW = 64, Affine(0.01, 0.005)
"""Of each worker in the mean; steps take a third of a second when balanced."""

FIRST, APART = 50, 30
"""Executed steps before the first worker becomes slow, and between two; the paper's came 40 steps after each other."""

TIMING = Timing(pod_seconds=5.0, prepare_seconds=10.0, transition_seconds=0.3)
"""A newcomer is warm after 15 s; changes of members stand still for what `hack/bench/transition.py` measured."""

PROTOCOL = 3
NICENESS = 10


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
    """Seconds of the simulated clock from the first plan to the end, and workers that were replaced and removed."""

    seconds: float
    replaced: int
    removed: int
    restarts: int


def prepared(setting: Setting) -> Scenario:
    """The simulation of a run: every fourth worker becomes a straggler, but for a healthy one."""
    policy, action = ACTIONS[setting.way]
    group = Group("w", setting.workers)
    slow = [worker_name("bench", "w", index) for index in range(3, setting.workers, 4)]
    faults = tuple(
        Jump((name,), setting.slowdown, FIRST + APART * number, cause="cpu-wait") for number, name in enumerate(slow)
    )
    acting = Stragglers(action=action, max_replacements=2 * len(slow), cooldown_seconds=0.0)
    return Scenario(
        Job("bench", (group,), SAMPLES * setting.workers, policy=policy, stragglers=acting),
        other_workers=WorkerModel(LAW, noise=Independent(setting.noise), protocol=PROTOCOL),
        events=() if setting.way == "healthy" else faults,
        timing=TIMING,
        seed=setting.seed,
        intervals=setting.steps,
        total_steps=setting.steps,
    )


def play(setting: Setting) -> Run:
    """One run, to its end. Raises RuntimeError if the job does not succeed."""
    scenario = prepared(setting)
    cluster = SimulatedCluster(scenario)
    began: list[float] = []
    counts = dict.fromkeys(("WorkerReplaced", "WorkerRemoved"), 0)

    def on_round(_: Seen, decision: Decision) -> None:
        if decision.plan is not None and not began:
            began.append(cluster.now)
        for event in decision.events:
            if event.reason in counts:
                counts[event.reason] += 1

    last = run_job(
        scenario.job,
        cluster,
        now=lambda: cluster.now,
        pause=cluster.wait,
        on_round=on_round,
        monotonic=lambda: cluster.now,
    )
    memory = cluster.memory
    if last.phase != "Succeeded" or memory is None:
        raise RuntimeError(f"{setting}: the job ended as {last.phase}: {last.reason}")
    ended = cluster.training.last_step_at
    return Run(ended - began[0], counts["WorkerReplaced"], counts["WorkerRemoved"], memory.budget.restarts)


@dataclass(frozen=True, slots=True)
class Row:
    """What one way came to at one slowdown: mean seconds over the seeds, the `reduction` beside doing nothing, the part
    `over` a healthy run, and mean numbers of workers that were replaced and removed.
    """

    workers: int
    slowdown: float
    way: str
    seconds: float
    reduction: float
    over: float
    replaced: float
    removed: float
    restarts: int

    @property
    def misses(self) -> list[str]:
        """The goals that are missed."""
        if self.way != "replace":
            return []
        goal = GOALS[self.slowdown]
        words = []
        if self.reduction < goal:
            words.append(f"{self.slowdown:g}x: -{self.reduction:.1%}, the paper has -{goal:.1%}")
        if self.over > MOST_OVER:
            words.append(f"{self.slowdown:g}x: {self.over:.1%} over a healthy run, the paper has {MOST_OVER:.1%}")
        if self.restarts:
            words.append(f"{self.slowdown:g}x: {self.restarts} restarts")
        return words


def rows_of(workers: int, slowdown: float, runs: dict[str, list[Run]]) -> list[Row]:
    """All ways at one slowdown; `runs` by way."""
    seconds = {way: statistics.fmean(run.seconds for run in each) for way, each in runs.items()}
    return [
        Row(
            workers,
            slowdown,
            way,
            seconds[way],
            1 - seconds[way] / seconds["none"],
            seconds[way] / seconds["healthy"] - 1,
            statistics.fmean(run.replaced for run in each),
            statistics.fmean(run.removed for run in each),
            sum(run.restarts for run in each),
        )
        for way, each in runs.items()
    ]


HEADING = f"{'slowed':>7} {'way':10} {'seconds':>8} {'beside none':>12} {'over healthy':>13} replaced removed"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description="Time simulated jobs with stragglers, by what is done about them.")
    parser.add_argument("--workers", type=int, nargs="+", default=[12], help="numbers of workers (12)")
    parser.add_argument("--steps", type=int, default=2000, help="of each run (2000)")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each way (5)")
    parser.add_argument("--noise", type=float, default=0.05, help="coefficient of variation of a step (0.05)")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once (1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each row")
    options = parser.parse_args(arguments)
    if min(options.workers) < 4 or min(options.steps, options.seeds, options.jobs) < 1 or not 0 <= options.noise <= 1:
        parser.error("--workers must be at least 4, --steps, --seeds and --jobs at least 1, --noise within 0 and 1")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and one line that sums up. Exits with 1 if a goal is missed."""
    options, missed, reached = parse(arguments), [], []
    with ProcessPoolExecutor(options.jobs, initializer=os.nice, initargs=(NICENESS,)) as pool:
        for workers in options.workers:
            if not options.json:
                print(f"\n{workers} workers, {workers // 4} become slow, noise {options.noise:.0%} (simulated)")
                print(
                    f"{'slowed':>7} {'way':10} {'seconds':>8} {'beside none':>12} {'over healthy':>13} replaced removed"
                )
            for slowdown, goal in GOALS.items():
                like = (slowdown, workers, options.steps, options.noise)
                settings = {way: [Setting(way, *like, seed) for seed in range(options.seeds)] for way in ACTIONS}
                for row in rows_of(
                    workers, slowdown, {way: list(pool.map(play, each)) for way, each in settings.items()}
                ):
                    missed += [f"{workers} workers, {words}" for words in row.misses]
                    if row.way == "replace":
                        reached.append(f"{slowdown:g}x -{row.reduction:.1%} (paper -{goal:.1%})")
                    print(json.dumps({"simulated": True, **asdict(row)}) if options.json else line(row), flush=True)
    print("(simulated) " + (f"missed: {'; '.join(missed)}" if missed else f"all goals reached: {', '.join(reached)}"))
    return int(bool(missed))


def line(row: Row) -> str:
    """One line of the table."""
    return (
        f"{row.slowdown:6g}x {row.way:10} {row.seconds:8.0f} {0.0 - row.reduction:+12.1%} {row.over:+13.1%} "
        f"{row.replaced:8.1f} {row.removed:7.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())
