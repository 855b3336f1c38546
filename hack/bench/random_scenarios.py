"""Random jobs on random clusters, to which random things happen: whatever it is, decisions must be sound.

`python hack/bench/random_scenarios.py --seeds 2000` simulates that many and reports which rule a seed breaks. The unit
tests do so for some tens. A rule: nothing raises; every plan's batches add up to the global batch and keep their
bounds; once nothing happens any more, and noise is moderate and independent, the batches come to rest.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import traceback
from collections.abc import Sequence

import kinds

from heterotrain_operator.core.facts import bounds_of
from heterotrain_operator.core.model import Group, Job, Stragglers
from heterotrain_operator.core.split.passes import in_passes
from heterotrain_operator.experiments.simulations import SimulationResult, simulate

POLICIES = ("Optimal", "Optimal", "Optimal", "Proportional", "Static", "Uniform")
INTERVALS, EVENTFUL_INTERVALS = 70, 25
QUIET_INTERVALS, QUIET_PLANS = 20, 3
"""In the last so many intervals at most so many plans: the batches rest."""

CALM_SHARE, CALM_VARIATION = 0.3, 0.1
MIB = 2.0**20


def random_scenario(seed: int) -> kinds.Scenario:
    """The scenario of a seed; always the same one."""
    rng = random.Random(seed)
    groups, models = [], {}
    calm = rng.random() < CALM_SHARE
    for rank in range(rng.randint(1, 4)):
        replicas = rng.randint(1, 4)
        low = rng.choice([0, 1, 1, 1, 4, 8])
        high = rng.choice([None, None, 40, 96, 300])
        limit = rng.choice([None, 0.25, 1.0, 4.0])
        groups.append(Group(f"g{rank}", replicas, batch_min=low, batch_max=high, cpu_limit=limit))
        models[f"g{rank}"] = _calm_model(rng) if calm else _model(rng)
    workers = sum(group.replicas for group in groups)
    job = Job(
        "job",
        tuple(groups),
        global_batch=rng.randint(8, 96) * workers,
        policy=rng.choice(POLICIES),
        initial="Uniform",
        interval=rng.choice([5, 10, 10, 20]),
        resumable=rng.random() < 0.5,
        backoff_limit=rng.choice([0, 3]),
        startup_deadline_seconds=60.0,
        stragglers=Stragglers(action="Report"),
    )
    events = tuple(_event(rng, job) for _ in range(rng.choice([0, 1, 2, 5])))
    return kinds.Scenario(
        job,
        models,
        events,
        communication=_communication(rng),
        timing=kinds.Timing(
            rng.uniform(0, 3), rng.uniform(0, 3), rng.uniform(0, 2), rng.randint(0, 4), rng.randint(0, 2), 1
        ),
        seed=seed,
        intervals=INTERVALS,
        checkpoint_steps=rng.choice([0, 50]),
    )


def _law(rng: random.Random) -> kinds.TimeLaw:
    line = kinds.Affine(rng.choice([0.0, 0.005, 0.03]), rng.choice([0.0005, 0.001, 0.004]))
    return rng.choice(
        [
            line,
            line,
            line,
            kinds.Plateau(rng.uniform(0.01, 0.1), line.fixed, line.per_sample),
            kinds.Padded(line, rng.choice([8, 16, 32])),
            kinds.MemoryCliff(line, rng.randint(16, 128), rng.uniform(2, 8)),
            kinds.Power(rng.choice([1.5, 2.0, 3.0]), line.fixed, line.per_sample),
            kinds.Throttled(line, rng.uniform(1, 2)),
        ]
    )


def _noise(rng: random.Random) -> kinds.Noise:
    variation = rng.choice([0.02, 0.05, 0.1, 0.2])
    return rng.choice(
        [kinds.NoNoise(), kinds.Independent(variation), kinds.AR1(0.9, variation), kinds.HeavyTailed(variation)]
    )


def _model(rng: random.Random) -> kinds.WorkerModel:
    memory = None
    if rng.random() < 0.3:
        memory = kinds.MemoryUse(200 * MIB, rng.uniform(0.5, 4) * MIB, rng.uniform(300, 2000) * MIB)
    return kinds.WorkerModel(
        _law(rng), rng.choice([0.5, 1.0, 2.0, 4.0]), _noise(rng), rng.choice([0.0, 0.1, 0.4]), memory
    )


def _calm_model(rng: random.Random) -> kinds.WorkerModel:
    line = kinds.Affine(rng.choice([0.0, 0.005, 0.03]), rng.choice([0.0005, 0.001, 0.004]))
    return kinds.WorkerModel(line, rng.choice([0.5, 1.0, 2.0, 4.0]), kinds.Independent(rng.uniform(0, CALM_VARIATION)))


def _communication(rng: random.Random) -> kinds.Communication:
    return rng.choice([kinds.NoCommunication(), kinds.RingAllReduce(4e7, 1e9, 1e-4), kinds.ParameterServer(1e7, 1e9)])


def _event(rng: random.Random, job: Job) -> kinds.ClusterEvent:
    last = EVENTFUL_INTERVALS * job.interval
    begin = rng.randint(0, last - 1)
    until = rng.randint(begin + 1, last)
    names = [group.name for group in job.groups] + [f"job-{group.name}-0" for group in job.groups]
    workers = tuple(rng.sample(names, rng.randint(0, min(2, len(names)))))
    return rng.choice(
        [
            kinds.Jump(workers, rng.uniform(0.3, 4), begin, rng.choice([None, until])),
            kinds.Drift(workers, rng.uniform(0.4, 2.5), begin, until),
            kinds.Interference(
                workers, rng.uniform(1.2, 3), rng.randint(2, 60), begin=begin, until=until, scattered=True
            ),
            kinds.LimitChange(
                workers, rng.choice([0.2, 0.5, 2.0]), begin, rng.random() < 0.7, rng.choice([0.0, 0.5, 1.0])
            ),
            kinds.WarmUp(workers, rng.uniform(1, 4), rng.uniform(1, 20)),
            kinds.Preemption(workers or (names[0],), begin),
            kinds.Death(workers or (names[0],), begin, out_of_memory=rng.random() < 0.3),
            kinds.Unreadable(workers, begin, until, rng.uniform(0.1, 1)),
            kinds.LateMetrics(workers, rng.uniform(2, 30), begin, until),
            kinds.SourceDown(begin, until),
        ]
    )


def broken_rules(scenario: kinds.Scenario, *, forgetful: bool = False) -> list[str]:
    """Rules that the decisions about a scenario break, in words; raises whatever they raise."""
    result = simulate(scenario, forgetful=forgetful, own_seconds=False)
    return [*_unsound_plans(result), *_restless(result)]


def _unsound_plans(result: SimulationResult) -> list[str]:
    job, broken = result.scenario.job, []
    bounds = {group.name: bounds_of(job, group) for group in job.groups}
    groups = dict(result.scenario.workers())
    has_memory = any(model.memory is not None for model in result.scenario.models.values()) or any(
        isinstance(event, kinds.Death) and event.out_of_memory for event in result.scenario.events
    )
    for plan in result.plans:
        if sum(plan.batches) != job.global_batch:
            broken.append(f"plan {plan.version} adds up to {sum(plan.batches)}, not to {job.global_batch}")
        allowed = in_passes(job.global_batch, [bounds[groups[name]] for name in plan.workers])
        if has_memory:  # which bounds what is computed at once, so that there may be more passes
            allowed = [(low, job.global_batch) for low, _ in allowed]
        for name, batch, (low, high) in zip(plan.workers, plan.batches, allowed, strict=True):
            if not low <= batch <= high:
                broken.append(f"plan {plan.version} gives {name} {batch} samples, its bounds are [{low}, {high}]")
    versions = [plan.version for plan in result.plans]
    if versions != sorted(set(versions)):
        broken.append(f"versions of plans do not grow: {versions}")
    return broken


def is_calm(scenario: kinds.Scenario) -> bool:
    """Whether its times are lines with moderate noise, each step's own: batches can come to rest then. `Proportional`
    does not promise it: as in the papers, it moves single samples between workers none of which ends the step.
    And workers without samples are tried again now and then.
    """
    fed = all(group.batch_min > 0 for group in scenario.job.groups)
    return (
        fed
        and scenario.job.policy != "Proportional"
        and all(
            isinstance(model.law, kinds.Affine)
            and isinstance(model.noise, kinds.NoNoise | kinds.Independent)
            and getattr(model.noise, "variation", 0.0) <= CALM_VARIATION
            and model.memory is None
            for model in scenario.models.values()
        )
    )


def _restless(result: SimulationResult) -> list[str]:
    scenario = result.scenario
    if not is_calm(scenario) or result.phase != "Running":
        return []
    begin = (INTERVALS - QUIET_INTERVALS) * scenario.job.interval
    late = [plan for plan in result.adjustments if plan.step >= begin]
    if len(late) <= QUIET_PLANS:
        return []
    return [f"{len(late)} plans in the last {QUIET_INTERVALS} intervals, when nothing happens: {late[-1].reason}"]


def main(arguments: Sequence[str]) -> int:
    """Simulate many seeds and print what is broken."""
    parser = argparse.ArgumentParser(description="Simulate random jobs on random clusters and check their plans.")
    parser.add_argument("--seeds", type=int, default=2000, help="how many (2000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.first < 0:
        parser.error("--seeds must be at least 1 and --first at least 0")
    found: collections.Counter[str] = collections.Counter()
    for seed in range(options.first, options.first + options.seeds):
        try:
            broken = broken_rules(random_scenario(seed), forgetful=seed % 4 == 0)
        except Exception:  # noqa: BLE001  # whatever is raised is what this looks for
            broken = [traceback.format_exc(limit=-2)]
            found["raises"] += 1
        else:
            found["unsound or restless" if broken else "sound"] += 1
        for words in broken:
            print(f"seed {seed}: {words}")
    print(", ".join(f"{count} {kind}" for kind, count in found.items()))
    return 0 if found["sound"] == options.seeds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
