"""What a job's script has measured last, of whom it is known from."""

from __future__ import annotations

from collections.abc import Iterable

from heterotrain.contract import Evaluated
from heterotrain_operator.core.model import WorkerSeen


def newest_evaluation(workers: Iterable[WorkerSeen]) -> Evaluated | None:
    """The evaluation of the most steps, from metrics or last words; None before the first.

    Workers that live count before those that ended: after a restart training is where they are.
    """
    seen = list(workers)
    living = [worker.metrics.evaluated for worker in seen if worker.metrics is not None]
    ended = [worker.evaluated for worker in seen if worker.finished or not any(living)]
    return max(filter(None, (*living, *ended)), key=lambda each: each.step, default=None)
