"""A simulated run as the pictures and tables of the report take it: a history of steps, and a journal of decisions."""

from __future__ import annotations

import math
from collections.abc import Iterator

from heterotrain.contract import StepRecord
from heterotrain_operator.clusters.simulated.events import ClusterEvent
from heterotrain_operator.clusters.simulated.influences import LimitChange
from heterotrain_operator.experiments.figures.history import TrialHistory
from heterotrain_operator.experiments.figures.limits import LimitChange as Change
from heterotrain_operator.experiments.figures.steps import Step
from heterotrain_operator.experiments.simulations.result import PublishedPlan, SimulationResult
from heterotrain_operator.experiments.trials.journal import Entry

DRAWN_STEPS = 3_000
"""Steps that are drawn at most; of a longer run every second one, or third, and so on."""

DRAWN_WORKERS = 16
"""Workers that are drawn at most, the first ones: more lines cannot be told apart."""


def history_of(policy: str, result: SimulationResult) -> TrialHistory:
    """The run's steps, with what happened to workers as the changes meanwhile."""
    began = result.began
    return TrialHistory(
        policy=policy,
        round=1,
        steps=tuple(_steps(result)),
        adjustments=len(result.adjustments),
        phase=result.phase,
        message=result.reason,
        changes=tuple(
            Change(float(began[step]) if step < len(began) else math.inf, step, 0, label, {})
            for step, label in _moments(result)
        ),
    )


def drawn_workers(result: SimulationResult) -> tuple[str, ...]:
    """The workers that are drawn."""
    return result.workers[:DRAWN_WORKERS]


def entries_of(result: SimulationResult) -> tuple[Entry, ...]:
    """What was decided, in order: plans, each with the events of its round, and rounds with events alone."""
    rounds: dict[float, tuple[int, PublishedPlan | None, list[object]]] = {}
    for plan in result.plans:
        rounds[plan.seconds] = (plan.step, plan, [])
    for happened in result.events:
        rounds.setdefault(happened.seconds, (happened.step, None, []))[2].append(happened.event)
    return tuple(
        Entry(
            seconds=seconds,
            step=step,
            version=None if plan is None else plan.version,
            batches=() if plan is None else plan.batches,
            reason="" if plan is None else plan.reason,
            events=tuple(events),  # type: ignore[arg-type]  # they are events of the job
        )
        for seconds, (step, plan, events) in sorted(rounds.items(), key=lambda entry: entry[0])
    )


def _steps(result: SimulationResult) -> Iterator[Step]:
    if not len(result.own_seconds):
        return  # there were too many to keep
    stride = max(math.ceil(result.steps / DRAWN_STEPS), 1)
    names = drawn_workers(result)
    followed = _followed(result)
    plan: PublishedPlan | None = None
    batches: dict[str, int] = {}
    for number in range(0, result.steps, stride):
        while followed and followed[0][0] <= number:
            plan = followed.pop(0)[1]
            batches = dict(zip(plan.workers, plan.batches, strict=True))
        if plan is None:
            continue
        began, seconds = float(result.began[number]), float(result.step_seconds[number])
        records = {}
        for column, name in enumerate(names):
            own = float(result.own_seconds[number, column])
            if name in batches and math.isfinite(own):
                batch = batches[name]
                wait = max(seconds - own, 0.0)
                records[name] = StepRecord(began + seconds, number, 0, plan.version, batch, batch, own, wait, None, "")
        yield Step(number, began, records)


def _followed(result: SimulationResult) -> list[tuple[int, PublishedPlan]]:
    """The steps with which plans were followed: those that change batches alone some steps after their publication."""
    found: list[tuple[int, PublishedPlan]] = []
    for plan in result.plans:
        same = bool(found) and found[-1][1].generation == plan.generation
        found.append((plan.step + (result.scenario.timing.switch_steps if same else 0), plan))
    return found


def _moments(result: SimulationResult) -> list[tuple[int, str]]:
    """When what happens to workers begins and ends, and what it is; several at one step are one moment."""
    moments: dict[int, list[str]] = {}
    for event in result.scenario.events:
        kind = "limits" if isinstance(event, LimitChange) else type(event).__name__.lower()
        until = getattr(event, "until", None)
        for step, words in ((_begin(event), kind), (until, f"end of {kind}")):
            if step is not None and 0 < step < result.steps and words not in moments.setdefault(step, []):
                moments[step].append(words)
    return [(step, ", ".join(words)) for step, words in sorted(moments.items())]


def _begin(event: ClusterEvent) -> int:
    begin = getattr(event, "begin", None)
    return int(getattr(event, "at", 0) if begin is None else begin)
