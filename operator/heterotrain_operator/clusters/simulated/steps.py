"""Steps that were executed, and the mean time that members take for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heterotrain.contract import Plan
from heterotrain_operator.clusters.simulated.draws import Matrix
from heterotrain_operator.clusters.simulated.laws import Throttled
from heterotrain_operator.clusters.simulated.pod import SimulatedPod


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps that were executed under one plan, by members in its order.

    `first` is the number of the first, from 0; `began` when it began, on the simulation's clock. `seconds` are whole
    steps, communication included, of shape (n,). `own_seconds` are of shape (n, K). `factors` are the noise and all
    that events did, of shape (n, K), and `known_factors` what the oracle knows of the latter (None: nothing happened).
    """

    first: int
    began: float
    plan: Plan
    pods: Sequence[SimulatedPod]
    seconds: Matrix
    own_seconds: Matrix
    factors: Matrix
    known_factors: Matrix | None
    communication_seconds: float


def mean_seconds(pods: Sequence[SimulatedPod], batches: Sequence[int]) -> Matrix:
    """Mean own seconds of workers at these batches, without noise and events."""
    means, throttled = unheld_seconds(pods, batches)
    return means if throttled is None else means * throttled


def unheld_seconds(pods: Sequence[SimulatedPod], batches: Sequence[int]) -> tuple[Matrix, Matrix | None]:
    """The same if all could wait for others, and by what factor the CPU limit holds those back that cannot; None where
    it holds nobody back.
    """
    means = np.array([pod.scale * pod.law.seconds(batch) for pod, batch in zip(pods, batches, strict=True)])
    if not any(isinstance(pod.law, Throttled) for pod in pods):
        return means, None
    throttled, order = np.ones(len(means)), np.sort(means)
    for rank, pod in enumerate(pods):
        others = order[-2] if means[rank] == order[-1] and len(pods) > 1 else order[-1]
        if isinstance(pod.law, Throttled) and (len(pods) == 1 or means[rank] >= others):
            throttled[rank] = pod.law.penalty
    return means, throttled
