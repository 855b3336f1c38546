"""Hand-made histories of a job: records as workers would write them, in round figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heterotrain.contract import StepRecord
from heterotrain_operator.experiments.figures.history import TrialHistory
from heterotrain_operator.experiments.figures.series import align
from heterotrain_operator.experiments.figures.steps import Step

FAST, SLOW = "job-fast-0", "job-slow-0"
BEGAN = 1000.0


def record(step: int, time: float, batch: int = 32, **fields: object) -> StepRecord:
    """One account of a step; all samples of the batch, own 1 s, wait 0 s, loss 1 unless said otherwise."""
    values: dict[str, object] = {
        "epoch": 0,
        "version": 1,
        "samples": batch,
        "own": 1.0,
        "wait": 0.0,
        "loss": 1.0,
        "mark": "",
        **fields,
    }
    return StepRecord(time=time, step=step, batch=batch, **values)  # type: ignore[arg-type]  # test data


def history(
    count: int,
    batches: tuple[int, int],
    own: tuple[float, float],
    *,
    allreduce: float = 0.5,
    first: int = 0,
    began: float = BEGAN,
    loss: float = 1.0,
    marks: Mapping[int, str] | None = None,
) -> dict[str, list[StepRecord]]:
    """Two workers for `count` steps: an iteration lasts the longer own time and the all-reduce."""
    iteration = max(own) + allreduce
    marks = marks or {}
    series: dict[str, list[StepRecord]] = {FAST: [], SLOW: []}
    for index in range(count):
        step = first + index
        for name, batch, seconds in zip(series, batches, own, strict=True):
            series[name].append(
                record(
                    step,
                    began + index * iteration,
                    batch,
                    own=seconds,
                    wait=iteration - seconds,
                    loss=loss * batch / sum(batches),
                    mark=marks.get(step, ""),
                )
            )
    return series


def joined(*parts: Mapping[str, Sequence[StepRecord]]) -> tuple[Step, ...]:
    """Histories one after the other."""
    return align({name: [entry for part in parts for entry in part[name]] for name in parts[0]})


def trial(
    policy: str, steps: tuple[Step, ...], number: int = 1, phase: str = "Succeeded", adjustments: int = 0
) -> TrialHistory:
    """A trial of these steps."""
    return TrialHistory(policy, number, steps, adjustments, phase)
