"""What a step is expected to take, where the workers' noise makes it end with another worker each time."""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain_operator.core.prediction.variation import together, variations_of
from heterotrain_operator.core.split.expected import alike, expected_step
from heterotrain_operator.core.worker_memory import WorkerMemory


def noise_of(workers: Sequence[WorkerMemory]) -> tuple[list[float], bool]:
    """Each worker's coefficient of variation, rounded to a few classes, and whether workers differ in it for sure."""
    variations, differ = variations_of([together(worker.variation, worker.step_time) for worker in workers])
    return alike(variations), differ


def measured_step(workers: Sequence[WorkerMemory]) -> float:
    """Expected seconds of a step under the active plan, of those workers that were measured under it."""
    variations, _ = noise_of(workers)
    measured = [worker.step_time.estimate for worker in workers]
    return expected_step([0.0 if each is None else each.mean_seconds for each in measured], variations)
