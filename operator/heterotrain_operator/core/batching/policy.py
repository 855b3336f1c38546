"""What a batching policy is given and what it gives back; a policy never sees pods, plans or clocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from heterotrain_operator.core.columns import maker
from heterotrain_operator.core.facts import multiples_of
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.prediction import PREDICTORS, Prediction, Predictor
from heterotrain_operator.core.prediction.predictor import predict_with
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.remembered.batching import Batching
from heterotrain_operator.core.remembered_worker import RememberedWorker
from heterotrain_operator.core.split.allocation import Line
from heterotrain_operator.core.split.multiples import Bounds


class Seat(NamedTuple):
    """One member of a plan, by rank: who sits there, its batch (samples per step) and what is known of it.

    `estimate` is its own time under the active plan, None if there is none (always of a worker at 0
    samples); `window` that of the newest interval alone. One that is `held` is not read, or of no use: it keeps its
    batch, its bounds leave it no other, and it has no estimate. It exports `smoothed_seconds`, the moving average of
    its own time since the active plan began, and trains in this `epoch`. `smaller_steps` are the samples and own
    seconds of the plan's steps that had fewer. One that is taken `as_slow` is fast now; its estimate is that of when it
    is slow, as it often becomes (`likeness.py`). `predicted` is its prediction, where that was made before, perhaps
    with what the others in its group show (`likeness.py`).
    """

    name: str
    group: Group
    batch: int
    bounds: Bounds
    estimate: Estimate | None = None
    window: Estimate | None = None
    memory: RememberedWorker = RememberedWorker()
    predictor: Predictor = PREDICTORS["EMA"]
    held: bool = False
    smoothed_seconds: float | None = None
    epoch: int = 0
    smaller_steps: tuple[tuple[int, float], ...] = ()
    as_slow: bool = False
    predicted: Prediction | None = None

    @property
    def prediction(self) -> Prediction | None:
        """Its own time by batch; None if nothing is known of it."""
        if self.predicted is not None:
            return self.predicted
        known = self.memory.batch_cost
        prediction = self.predictor.predict(known, self.batch, self.estimate)
        if self.smaller_steps and self.estimate is not None and prediction is not None and not prediction.is_sure:
            return predict_with(self.smaller_steps, self.predictor, known, self.batch, self.estimate)
        return prediction

    def with_estimate(self, estimate: Estimate) -> Seat:
        """The same seat with another estimate, and what that predicts."""
        return _seat((*self[:4], estimate, *self[5:-1], None))

    def with_prediction(self, predicted: Prediction) -> Seat:
        """The same seat with this prediction."""
        return _seat((*self[:-1], predicted))

    def line(self) -> Line | None:
        """The line of its prediction."""
        prediction = self.prediction
        return None if prediction is None else prediction.line


_seat = maker(Seat)


def multiples_of_seats(seats: Sequence[Seat]) -> tuple[int, ...]:
    """The multiples that the seats' batches are, by rank; none where all are of single samples."""
    return multiples_of([seat.group for seat in seats])


@dataclass(frozen=True, slots=True)
class Promise:
    """The step's own seconds that batches promise, where the cost of every worker's batch is known well enough.

    `expected`: those that are expected with the workers' noise, not those of the slowest mean; such a split is on
    trial, too (`rollback.py`), and promises 0 seconds where nothing else is known well enough. `goes_back`: they are on
    the way back to the batches before, from ones that made the step slower.
    """

    seconds: float
    expected: bool = False
    goes_back: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """Batches by rank, or None to keep the present ones; why, in words and numbers; and what to remember.

    `memories` (by rank; empty: unchanged) hold whether or not the batches are published, `stage` only if they
    are. `saving` is the share of the step's own time that the batches are expected to save; 0: not said. `at_once`
    (by rank; empty: nobody) are samples to compute at once for one plan of the same batches; 0: as many as fit.
    `likely` is a split that is likely better than batches that stay, though noise might explain it (`rebalance.py`).
    """

    batches: tuple[int, ...] | None
    reason: str
    memories: tuple[RememberedWorker, ...] = ()
    stage: int | None = None
    saving: float = 0.0
    promise: Promise | None = None
    at_once: tuple[int, ...] = ()
    likely: Proposal | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """The batches of a first plan, by rank, and a remark on how they came about."""

    batches: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Policy:
    """A way to choose batches.

    `first(job, seats)` gives those of the first plan, None to leave that to the job's `initial`; it may raise
    ValueError if no split keeps the bounds. `propose(job, seats, batching)` is asked once per control interval,
    with an estimate of every worker that has samples, and what earlier plans have come to. `internal` policies are
    not for manifests. One that `watches_throughput` is given each worker's throughput before its batch was last raised,
    one that `weighs_noise` how much each worker's steps varied under earlier plans.
    One that decides by `whole_intervals` is never asked before these are over, however much the first steps show, nor
    by what a changed CPU limit lets expect. One that `rescales_steps` keeps the global batch only where workers step
    together, not in an asynchronous job. `looks_back(job)` is how many of each worker's last windows it reads.
    """

    summary: str
    propose: Callable[[Job, Sequence[Seat], Batching], Proposal]
    first: Callable[[Job, Sequence[Seat]], Split] | None = None
    keeps_global_batch: bool = True
    internal: bool = False
    watches_throughput: bool = False
    weighs_noise: bool = False
    whole_intervals: bool = False
    rescales_steps: bool = False
    looks_back: Callable[[Job], int] = lambda job: 0

    def keeps_sum(self, job: Job) -> bool:
        """Whether its batches add up to the job's global batch."""
        is_free = self.rescales_steps and job.server is not None
        return job.fixed_global_batch and self.keeps_global_batch and not is_free
