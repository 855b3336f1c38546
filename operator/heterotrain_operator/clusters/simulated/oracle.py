"""The oracle: the best split by workers' true means at each moment, under the very noise that the policy met."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from heterotrain_operator.clusters.simulated.laws import TimeLaw
from heterotrain_operator.clusters.simulated.noise import Matrix
from heterotrain_operator.clusters.simulated.pod import SimulatedPod
from heterotrain_operator.clusters.simulated.steps import Steps, mean_seconds
from heterotrain_operator.core.batching.bounds import bounded_below
from heterotrain_operator.core.facts import bounds_of, group_of, multiples_of
from heterotrain_operator.core.model import Job
from heterotrain_operator.core.split.allocation import split_min_max
from heterotrain_operator.core.split.multiples import Bounds, infeasible
from heterotrain_operator.core.split.passes import in_passes

STALE = 0.01
"""The split is found again once some worker's true speed has changed by more than this since; a drift changes it at
every step. It costs the oracle about as much of a step at most, which a sample of rounding does at batches of 100."""


class Oracle:
    """Knows every law, event and nature, and of the noise its mean alone. It minimises the greatest true mean.

    Where workers' noise differs, another split may have the less mean of the greatest; so a policy can be better.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._workers: list[tuple[str, TimeLaw]] = []
        self._total = 0
        self._speeds: Matrix = np.empty(0)
        self._means: Matrix = np.empty(0)
        self.batches: tuple[int, ...] = ()

    def seconds(self, steps: Steps) -> Matrix:
        """Seconds of the same steps, communication included, with the oracle's batches; of shape (n,).

        Raises ValueError, with figures, if no batches keep the bounds.
        """
        workers = [(pod.uid, pod.law) for pod in steps.pods]
        if workers != self._workers or steps.plan.global_batch_size != self._total:
            self._workers, self._total, self.batches = workers, steps.plan.global_batch_size, ()
        scales = np.array([pod.scale for pod in steps.pods])
        if steps.known_factors is None:
            means = self._at(scales, steps.pods)
        else:
            means = np.array([self._at(scales * known, steps.pods) for known in steps.known_factors])
        found: Matrix = (means * scales * steps.factors).max(axis=1) + steps.communication_seconds
        return found

    def _at(self, speeds: Matrix, pods: Sequence[SimulatedPod]) -> Matrix:
        """Mean own seconds with the best batches, by the laws alone, when times are so many times those."""
        if not self.batches or np.abs(speeds / self._speeds - 1).max() > STALE:
            bounds = bounds_of_pods(self._job, pods, self._total)
            times = [_time_of(pod.law, float(speed)) for pod, speed in zip(pods, speeds, strict=True)]
            multiples = multiples_of([group_of(self._job, pod.group) for pod in pods])
            if infeasible(self._total, bounds, multiples):
                multiples = ()  # memory or the models' least batches allow none
            self.batches = split_min_max(times, self._total, bounds, multiples=multiples)
            scales = np.array([pod.scale for pod in pods])
            self._speeds, self._means = speeds, mean_seconds(pods, self.batches) / scales
        return self._means


def bounds_of_pods(job: Job, pods: Sequence[SimulatedPod], total: int) -> list[Bounds]:
    """The batches that the job allows each worker and its memory holds; more of them in several passes, if need be."""
    bounds = []
    for pod in pods:
        low, high = bounds_of(job, group_of(job, pod.group))
        use = pod.memory
        if use is not None and use.limit_bytes is not None and use.per_sample_bytes > 0:
            high = max(low, min(high, int((use.limit_bytes - use.fixed_bytes) / use.per_sample_bytes)))
        bounds.append((low, high))
    # As for plans: where the global batch is too small for what all models need, it does not raise the lower bounds.
    return list(
        bounded_below(total, in_passes(total, bounds), [pod.least_batch if pod.least_batch > 1 else 0 for pod in pods])
    )


def _time_of(law: TimeLaw, speed: float) -> Callable[[int], float]:
    return lambda batch: speed * law.seconds(batch)
