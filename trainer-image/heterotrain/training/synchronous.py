"""A synchronous step, top to bottom: begin, share, exchange, commit.

* **begin**: the position and the active plan say which samples the step has, and which of them are this worker's. They
  are the same on all workers, so none needs a vote.
* **share**: the script computes the loss of its own samples, and `scale` weights it, so that the sum over the workers
  is the loss of the global batch.
* **exchange**: backward sums each bucket of gradients over the workers as soon as it is complete (`passes.py`,
  `gradient_sum.py`, `reduction.py`), and waits for all sums at its end. About once a second messages travel beside them
  (`exchange.py`).
* **commit**: if all of a step's buckets completed on one worker, every worker contributed. So a worker commits when its
  own buckets completed. A step that failed changes nothing, and is done again with new groups (`membership.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from itertools import islice

from heterotrain.data.sampler import Share, coming_shares
from heterotrain.gradients.reduction import StepReduction
from heterotrain.groups.control import Signals
from heterotrain.state.buffers import KeptBuffers
from heterotrain.state.randomness import StepRandomness
from heterotrain.training.accounts import SMALLER, Committed
from heterotrain.training.computing import Computing
from heterotrain.training.running_step import RunningStep
from heterotrain.training.step_parts import StepParts

log = logging.getLogger(__name__)


class Synchronous(Computing):
    """One worker's side of a synchronous step; a `StepProtocol`."""

    def __init__(self, parts: StepParts) -> None:
        context, subject, group = parts.context, parts.subject, parts.group
        super().__init__(subject, parts.state, group.losses)
        self._rules = parts.rules
        self._group = group
        self._accounts = parts.accounts
        self._plans = context.plans
        self._metrics = context.metrics
        self._exchange = group.exchange
        self._clock = group.clock
        self._buffers = KeptBuffers(subject.module)
        self._randomness = StepRandomness(context.config.seed, context.name, subject.device)

    def start(self) -> None:
        """The job begins, or goes on, at the position that it has come to."""
        self._randomness.start(self._state.position.step)

    # --- begin --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Choose the samples of the step at this position, and this worker's first micro-batch of it."""
        position, plans, subject, group = self._state.position, self._plans, self._subject, self._group
        if position.begins:
            subject.hyperparameters.saw(subject.order.checksum(position.epoch))
        split = plans.split
        step = RunningStep.at(position, split, plans.rank, self._rules)
        if step.samples != self._rules.usual_samples(split.global_batch_size):
            self._accounts.mark(SMALLER)
        self._open(step)
        self._randomness.begin(position.step)
        self._losses.begin()
        if group.generation is None or group.reduction is None:
            return
        group.reduction.begin(watched=step.source == plans.rank)
        group.contributes()
        self._buffers.keep()
        if self._exchange.is_due(position.step):  # messages travel while the script computes
            self._accounts.settle()
            group.begin_exchange(self._metrics.counters.mean_seconds)

    def coming(self) -> Iterator[Share]:
        """This worker's shares from the micro-batch under way on, provided that the plan stays as it is."""
        split, rank = self._plans.split, self._plans.rank
        most = split.plan.members[rank].micro_batch_size
        shares = coming_shares(self._rules, self._state.position, split.batch_sizes, rank, most)
        return islice(shares, self._step.opened - 1, None)

    # --- share --------------------------------------------------------------------------------------------------

    def _counted(self, step: RunningStep, number: float) -> float:
        if step.is_last_part:
            self._group.send_count(step.count, step.samples)
        return number if self._group.generation is None else step.samples

    # --- exchange -----------------------------------------------------------------------------------------------

    def exchange_alone(self) -> None:
        """Exchange messages with the others between two steps, which waits for all of them."""
        self._group.begin_exchange(0.0)
        self._receive()

    def compute_nothing(self) -> None:
        """Do what the script's forward and backward do, on a worker that has no samples in this step."""
        subject, step = self._subject, self._step
        subject.check_frozen()
        if subject.loss.counted:
            self._group.send_count(0, step.samples)
        step.scaled = True
        subject.passes.without_samples()

    def _gradients_are_summed(self, step: RunningStep, reduction: StepReduction) -> bool:
        """Whether the gradients of the global batch are there; if not, either the step has further micro-batches, or it
        failed and is dropped."""
        reduction.in_collective = False
        if not reduction.error:
            if not step.is_last_part:
                return False
            if not reduction.reduced:
                raise RuntimeError(
                    "the gradients are not complete, so none were summed over the workers: the loss does not reach all "
                    "parameters, and reached others in the first steps; say "
                    "session.prepare(..., find_unused_parameters=True)"
                )
        if step.source is not None:
            self._group.hand_on_changes(step.source, takes=step.share is None)
        if reduction.error or not self._group.may_commit():
            self.drop(reduction.error)
            return False
        return True

    # --- commit -------------------------------------------------------------------------------------------------

    def commit(self) -> bool:
        """Step the optimizer with the gradient of the global batch; False if that is not there (yet)."""
        subject, clock, reduction = self._subject, self._clock, self._group.reduction
        step = self._check_computed()
        if reduction is None:
            clock.bucket_ready()
            subject.give_unreached_zeros()
        elif not self._gradients_are_summed(step, reduction):
            return False
        subject.passes.close()
        clock.gradients_arrived()
        subject.hyperparameters.used(self._state.position.step, subject.hyperparameters.values())
        self._state.snapshots.before_change()
        subject.step_optimizer(self._plans.split.global_batch_size)
        subject.drop_gradients_of_lacking()
        epoch = self._state.position.epoch
        self._count(step)
        self._receive()
        if self._state.position.epoch != epoch:
            self._end_epoch()
        return True

    def _end_epoch(self) -> None:
        """The step was an epoch's last, whose losses all workers now know."""
        self._accounts.settle()
        began = time.perf_counter()
        self._group.share_epoch_loss()
        self._clock.leave_out(time.perf_counter() - began)
        self._losses.epoch.end()

    def _count(self, step: RunningStep) -> None:
        """The step is committed: the job has come further."""
        plans, before, samples = self._plans, self._state.position, step.own_samples
        counted, count = self._subject.loss.counted, self._group.total_count
        self._group.buffers.saw(samples)
        self._accounts.commit(
            Committed(
                time.time(),
                before.step,
                before.epoch,
                plans.active.version,
                plans.batch_size,
                samples,
                samples / step.samples,
                self._clock.finish(),
                self._losses.commit(self._group.loss_factor),
                self._accounts.take_mark(),
                step.count if counted else samples,
                (step.count if count is None else count) if counted else step.samples,
            )
        )
        after = self._rules.advance(before, step.samples, plans.split.global_batch_size)
        self._state.position = after
        self._subject.schedules.step(after.step, after.epoch, epochs=after.epoch - before.epoch)
        for function in self._subject.after_step:
            function()
        self._exchange.committed(samples, step.samples)
        self._group.committed()
        shown = self._metrics.state
        shown.step, shown.epoch = after.step, after.epoch

    def _receive(self) -> None:
        """Take in the workers' messages, if this step carried an exchange."""
        signals: Signals | None
        if self._group.generation is None:
            signals = self._losses.alone()
        else:
            signals = self._group.receive() if self._exchange.under_way else None
        if signals is None:
            return
        state = self._metrics.state
        if signals.nonfinite:
            state.steps_nonfinite += int(signals.nonfinite)
            if self._plans.rank == 0:
                log.warning("the loss was no finite number lately, by step %d", self._state.position.step)
        loss = self._losses.receive(signals)
        if loss is not None:
            state.loss = loss

    def drop(self, why: str) -> None:
        """Undo the running step, which will be done again."""
        log.warning("step %d failed and will be replayed: %s", self._state.position.step, why)
        self._forget()
        self._buffers.restore()
