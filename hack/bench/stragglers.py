"""Who is named a straggler, and when: the verdict of the operator beside the paper's rule. *Simulated*: the ordinary
loop on a simulated cluster (`clusters/simulated/`), and nothing is measured on a machine.

    .venv/bin/python hack/bench/stragglers.py --seeds 1000 --workers 8
    .venv/bin/python hack/bench/stragglers.py --seeds 250 --workers 3 8 32 --only healthy "slowed 2x" --first-seed 5000

Clusters are unequal by design: groups of four speeds, and within a group machines that differ by up to 1.5 times. In
each run something happens to one worker, or nothing does, and the verdicts are counted: **wrongly** are the runs in
which somebody was named without a fault, **late** those in which a fault was not named within 10 control intervals,
**never** those of them in which it was not named at all, and **intervals** the median and the greatest number of them
until it was. **Moved** are the median, the 95th of a hundred and the greatest number of intervals until its batch was
smaller by a fifth, named or not. The exit code is 1 if the operator's rule names a healthy worker, or one that is
slowed 2x late.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import kinds
import runner
import tables_simulated

from heterotrain_operator.clusters.simulated.cluster import SimulatedCluster
from heterotrain_operator.core.facts import worker_name
from heterotrain_operator.core.model import Decision, Group, Job, Seen, Stragglers
from heterotrain_operator.loop import run_job

RULES = ("ExpectedTime", "MedianThroughput")
SPEEDS = (1.0, 1.5, 2.0, 4.0)
UNLIKE = 1.5
BATCH, LAW = 128, kinds.Affine(0.006, 0.0007)
"""Steps of about 0.2 s when balanced, so that a round of the loop follows soon after every control interval."""

INTERVAL = 10
NAMED_WITHIN = 10
"""Intervals within which a worker that is slowed is to be named."""

MOVED_BY = 0.2
"""Part of its samples by which a worker's batch is smaller once it is taken to follow the fault."""

NOISES: dict[str, Callable[[float], kinds.Noise]] = {
    "independent": kinds.Independent,
    "AR(.9)": partial(kinds.AR1, 0.9),
}
"""By the coefficient of variation of a step."""


@dataclass(frozen=True, slots=True)
class Victim:
    """The worker to which something happens, its CPU limit in cores, and the executed step at which that begins."""

    name: str
    cores: float
    begins: int


Happening = Callable[[Victim], tuple[kinds.ClusterEvent, ...]]


def slower(factor: float, *, lasts: int | None = None) -> Happening:
    """So many times as slow at an unchanged limit, for good or for so many steps."""
    return lambda victim: (
        kinds.Jump((victim.name,), factor, victim.begins, None if lasts is None else victim.begins + lasts),
    )


def resized(factor: float, binding: float) -> Happening:
    """Another CPU limit, for good; `binding` is the elasticity of its speed."""
    return lambda victim: (kinds.LimitChange((victim.name,), victim.cores * factor, victim.begins, elasticity=binding),)


def slowed_at_known_limit(victim: Victim) -> tuple[kinds.ClusterEvent, ...]:
    """A limit that does not bind is halved, restored, and when it is halved again the worker becomes twice as slow by
    fault.
    """
    at = (victim.begins // 3, 2 * victim.begins // 3, victim.begins)
    limits = zip((victim.cores / 2, victim.cores, victim.cores / 2), at, strict=True)
    resizes = (kinds.LimitChange((victim.name,), limit, begins, elasticity=0.0) for limit, begins in limits)
    return (*resizes, *slower(2.0)(victim))


@dataclass(frozen=True, slots=True)
class Case:
    """What happens, and whether the worker that it happens to is to be named."""

    name: str
    happening: Happening
    fault: bool = False


CASES = (
    Case("healthy", lambda _: ()),
    Case("slowed 2x", slower(2.0), fault=True),
    Case("limit halved, binding", resized(0.5, 1.0)),
    Case("limit halved, half binding", resized(0.5, 0.5)),
    Case("limit halved, not binding", resized(0.5, 0.0)),
    Case("limit quartered, binding", resized(0.25, 1.0)),
    Case("limit doubled, binding", resized(2.0, 1.0)),
    Case("limit doubled, not binding", resized(2.0, 0.0)),
    Case("fault at a known limit", slowed_at_known_limit, fault=True),
    Case("one interval 10x slower", slower(10.0, lasts=INTERVAL)),
    Case("creeping to 2x", lambda it: (kinds.Drift((it.name,), 2.0, it.begins, it.begins + 200),), fault=True),
    Case("all slower together", lambda it: (kinds.Jump((), 2.0, it.begins),)),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One run: so many workers that train for so many steps, by noise and its coefficient of variation."""

    case: str
    workers: int
    rule: str
    noise: str
    variation: float
    steps: int
    seed: int


@dataclass(frozen=True, slots=True)
class Run:
    """Whether somebody was named without a fault, and the intervals until a fault was named, and until the worker that
    has it was left fewer samples by a fifth (None: never).
    """

    wrong: bool
    named_after: float | None
    moved_after: float | None = None


def prepared(setting: Setting) -> tuple[kinds.Scenario, Victim]:
    """The simulation of a run, and to whom it happens."""
    chance = random.Random(setting.seed)
    speeds = min(setting.workers, len(SPEEDS))
    groups = tuple(
        Group(f"g{rank}", len(range(rank, setting.workers, speeds)), cpu_limit=4 / SPEEDS[rank])
        for rank in range(speeds)
    )
    noise = NOISES[setting.noise](setting.variation)
    models = {
        worker_name("bench", group.name, index): kinds.WorkerModel(LAW, speed * chance.uniform(1.0, UNLIKE), noise)
        for group, speed in zip(groups, SPEEDS, strict=False)
        for index in range(group.replicas)
    }
    group, index = chance.choice([(group, index) for group in groups for index in range(group.replicas)])
    assert group.cpu_limit is not None
    begins = chance.randrange(setting.steps // 5, setting.steps - 2 * NAMED_WITHIN * INTERVAL)
    victim = Victim(worker_name("bench", group.name, index), group.cpu_limit, begins)
    [case] = [case for case in CASES if case.name == setting.case]
    judging = Stragglers(action="Report", rule=setting.rule)
    total = BATCH * setting.workers
    job = Job("bench", groups, total, initial="Uniform", interval=INTERVAL, stragglers=judging)
    intervals = setting.steps // INTERVAL
    return kinds.Scenario(job, models, case.happening(victim), seed=setting.seed, intervals=intervals), victim


def play(setting: Setting) -> Run:
    """One run, to its end."""
    [fault] = [case.fault for case in CASES if case.name == setting.case]
    scenario, victim = prepared(setting)
    cluster = SimulatedCluster(scenario)
    wrong, named_at, moved_at, before = False, None, None, 0

    def on_round(_: Seen, decision: Decision) -> None:
        nonlocal wrong, named_at, moved_at, before
        executed, plan = cluster.training.executed, cluster.plan
        [batch] = [member.batch_size for member in plan.members if member.name == victim.name] if plan else [before]
        if executed <= victim.begins:
            before = batch
        elif moved_at is None and batch < (1 - MOVED_BY) * before:
            moved_at = executed
        named = {verdict.worker for verdict in decision.stragglers}
        if fault and executed > victim.begins and victim.name in named:
            named_at = executed if named_at is None else named_at
            named.remove(victim.name)
        wrong = wrong or bool(named)

    run_job(
        scenario.job,
        cluster,
        now=lambda: cluster.now,
        pause=cluster.wait,
        on_round=on_round,
        until=lambda _, __: cluster.training.executed >= scenario.steps,
        monotonic=lambda: cluster.now,
    )
    named_after, moved_after = (None if at is None else (at - victim.begins) / INTERVAL for at in (named_at, moved_at))
    return Run(wrong, named_after, moved_after)


@dataclass(frozen=True, slots=True)
class Counts:
    """Over the runs of one case, as the module says; `intervals` are those until a fault was named, and `moved` those
    until its worker was left fewer samples, one by one; of runs in which neither happened there are none.
    """

    runs: int
    wrong: int
    late: int
    never: int
    intervals: tuple[float, ...]
    moved: tuple[float, ...]


def counted(runs: Iterable[Run], *, fault: bool) -> Counts:
    """The counts over these runs."""
    runs = list(runs)
    named = [run.named_after for run in runs if run.named_after is not None]
    never = len(runs) - len(named) if fault else 0
    late = never + sum(each > NAMED_WITHIN for each in named)
    moved = [run.moved_after for run in runs if run.moved_after is not None]
    return Counts(len(runs), sum(run.wrong for run in runs), late, never, tuple(named), tuple(moved))


SOURCES = ("operator/heterotrain_operator", "trainer-image/heterotrain/contract", "hack/bench/stragglers.py")


def one(key: runner.Key) -> Run:
    """The run of a setting's values."""
    return play(Setting(*key))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description="Count verdicts about stragglers in simulated runs.")
    parser.add_argument("--seeds", type=int, default=1000, help="runs of each case (1000)")
    parser.add_argument("--steps", type=int, default=500, help="of each run (500)")
    parser.add_argument("--workers", type=int, nargs="+", default=[8], help="numbers of workers (8)")
    parser.add_argument("--noise", type=float, default=0.10, help="coefficient of variation of a step (0.1)")
    parser.add_argument("--rule", nargs="+", choices=RULES, default=list(RULES), help="(both)")
    parser.add_argument("--only", nargs="+", help="names of cases, or parts of them")
    parser.add_argument("--first-seed", type=int, default=0, help="of the runs, which have a seed each (0)")
    options = runner.options_of(parser, pool=True).parse_args(arguments)
    least = 2.5 * NAMED_WITHIN * INTERVAL + 10
    if min(*options.workers, options.seeds, options.processes) < 1 or options.steps < least:
        parser.error("--workers, --seeds and --processes must be at least 1, --steps at least 260")
    return options


def main(arguments: Sequence[str]) -> int:
    """Count, and print. Returns 1 if the operator's rule fails."""
    options = parse(arguments)
    cases = [case for case in CASES if not options.only or any(part in case.name for part in options.only)]
    rows = list(itertools.product(options.workers, NOISES, options.rule, cases))
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    keys = [
        (case.name, workers, rule, noise, options.noise, options.steps, seed)
        for workers, noise, rule, case in rows
        for seed in seeds
    ]
    runs = runner.play(one, Run, keys, options, SOURCES)
    found, failed = [], False
    for workers, noise, rule, case in rows:
        counts = counted(itertools.islice(runs, len(seeds)), fault=case.fault)
        late = counts.late and case.name == "slowed 2x"
        failed = failed or (rule == RULES[0] and bool(counts.wrong or late))
        like = {"case": case.name, "workers": workers, "noise": noise, "rule": rule, "fault": case.fault}
        found.append(like | asdict(counts))
    document = {"benchmark": "stragglers", "variation": options.noise, "steps": options.steps, "rows": found}
    runner.report(document, tables_simulated.stragglers([document]), options)
    return int(failed)


if __name__ == "__main__":
    runner.command(main)
