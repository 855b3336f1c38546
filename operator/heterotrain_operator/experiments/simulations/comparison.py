"""Simulated runs of one scenario side by side: what each policy came to, over all seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from heterotrain_operator.experiments.simulations.result import SimulationResult

STALLED = "Stalled"
"""The phase of a run in which no step was taken any more, although its job was neither over nor failed."""


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run in numbers. `ratio` is the time of all its steps over that of the oracle's under the same noise,
    `settled_ratio` the same after the first intervals; `seconds` is the time of its steps. None where it is not known,
    or never happened. `repeated_steps` were executed before, and `idle_seconds` are those between steps. Of an
    asynchronous job, whose steps are updates, `staleness` is their mean in versions, and `spread_of_rates` how often
    the fastest worker's came in the second half, over the slowest's.
    """

    policy: str
    seed: int
    phase: str
    message: str
    steps: int
    seconds: float
    ratio: float | None
    settled_ratio: float | None
    adjustments: int
    plans_per_100_intervals: float | None
    intervals_to_within: float | None
    steps_to_first_move: int | None
    batches: tuple[int, ...]
    repeated_steps: int = 0
    idle_seconds: float = 0.0
    staleness: float | None = None
    spread_of_rates: float | None = None

    @property
    def failed(self) -> bool:
        """Whether it did not go on to its end."""
        return self.phase in (STALLED, "Failed")


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over several runs: of those that have it, the mean, the least and the greatest."""

    mean: float
    least: float
    greatest: float


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """One policy over all seeds. `never_within` counts the runs that never came close to the oracle, `ended` how many
    runs ended in which phase.
    """

    policy: str
    runs: int
    ended: dict[str, int]
    ratio: Spread | None
    settled_ratio: Spread | None
    plans_per_100_intervals: Spread | None
    intervals_to_within: Spread | None
    never_within: int
    steps_to_first_move: Spread | None
    batches: tuple[int, ...]
    steps: Spread | None = None
    repeated_steps: Spread | None = None
    idle_seconds: Spread | None = None
    staleness: Spread | None = None
    spread_of_rates: Spread | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All runs of a scenario, and its policies in the order in which they were asked for."""

    scenario: str
    description: str
    job: str
    workers: int
    global_batch: int
    intervals: int
    interval_steps: int
    policies: tuple[PolicyFigures, ...]
    runs: tuple[RunFigures, ...]

    @property
    def failed(self) -> tuple[RunFigures, ...]:
        """The runs that did not go on to their end."""
        return tuple(run for run in self.runs if run.failed)

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it. `simulated` says that no figure was measured on a machine."""
        return {"simulated": True, **asdict(self)}


def figures_of(policy: str, result: SimulationResult) -> RunFigures:
    """One run in numbers."""
    stalled = result.phase not in ("Failed", "Succeeded") and result.steps < result.scenario.steps
    return RunFigures(
        policy=policy,
        seed=result.scenario.seed,
        phase=STALLED if stalled else result.phase,
        message=result.reason if stalled or result.phase == "Failed" else "",
        steps=result.steps,
        seconds=float(result.step_seconds.sum()),
        ratio=_known(result.ratio),
        settled_ratio=_known(result.settled_ratio),
        adjustments=len(result.adjustments),
        plans_per_100_intervals=_known(result.plans_per_100_intervals()),
        intervals_to_within=result.intervals_to_within(),
        steps_to_first_move=result.steps_to_first_move,
        batches=result.plans[-1].batches if result.plans else (),
        repeated_steps=result.repeated_steps,
        idle_seconds=result.idle_seconds,
        staleness=_known(result.staleness),
        spread_of_rates=_known(result.spread_of_rates),
    )


def compared(name: str, description: str, results: Sequence[RunFigures], like: SimulationResult) -> Comparison:
    """All runs side by side; `like` is the result of any of them."""
    scenario = like.scenario
    return Comparison(
        scenario=name,
        description=description,
        job=scenario.job.name,
        workers=sum(group.replicas for group in scenario.job.groups),
        global_batch=scenario.job.global_batch,
        intervals=scenario.intervals,
        interval_steps=scenario.job.interval,
        policies=tuple(
            _of_policy(policy, [run for run in results if run.policy == policy])
            for policy in dict.fromkeys(run.policy for run in results)
        ),
        runs=tuple(results),
    )


def _of_policy(policy: str, runs: Sequence[RunFigures]) -> PolicyFigures:
    return PolicyFigures(
        policy=policy,
        runs=len(runs),
        ended={phase: sum(run.phase == phase for run in runs) for phase in dict.fromkeys(run.phase for run in runs)},
        ratio=_spread(run.ratio for run in runs),
        settled_ratio=_spread(run.settled_ratio for run in runs),
        plans_per_100_intervals=_spread(run.plans_per_100_intervals for run in runs),
        intervals_to_within=_spread(run.intervals_to_within for run in runs),
        never_within=sum(run.intervals_to_within is None for run in runs),
        steps_to_first_move=_spread(run.steps_to_first_move for run in runs),
        batches=runs[0].batches,
        steps=_spread(run.steps for run in runs),
        repeated_steps=_spread(run.repeated_steps for run in runs),
        idle_seconds=_spread(run.idle_seconds for run in runs),
        staleness=_spread(run.staleness for run in runs),
        spread_of_rates=_spread(run.spread_of_rates for run in runs),
    )


def _spread(values: Iterable[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(fmean(known), min(known), max(known)) if known else None


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
