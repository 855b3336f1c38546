"""How a parameter server changes its model by one worker's update, and books that as a step of the job."""

from __future__ import annotations

import time

import torch

from heterotrain import contract
from heterotrain.asynchronous.service import Accepted
from heterotrain.contract import UpdateRecord
from heterotrain.groups.peering.messages import Update
from heterotrain.training.accounts import Committed
from heterotrain.training.layout import Layout
from heterotrain.training.rate_scaling import rates
from heterotrain.training.step_parts import StepParts


class Applying:
    """`layout` says where in a room an update's numbers are."""

    def __init__(self, parts: StepParts) -> None:
        context, subject, group = parts.context, parts.subject, parts.group
        self.layout = Layout(subject.module, subject.trained)
        self._takes_models = context.config.push == contract.PUSH_MODEL
        self._subject = subject
        self._state = parts.state
        self._rules = parts.rules
        self._group = group
        self._accounts = parts.accounts
        self._losses = group.losses
        self._clock = group.clock
        self._plans = context.plans
        self._metrics = context.metrics
        self._series = context.series

    def put(self, room: torch.Tensor) -> None:
        """Give the model the gradients in a room; on the CPU these are the room's own memory, unless a parameter's
        numbers are in another order, as with channels_last: fused optimizers take its gradient's to be in the same."""
        if self._takes_models:
            return
        for parameter, gradient in zip(self.layout.trained, self.layout.gradients(room), strict=True):
            if parameter.stride() == gradient.stride():
                parameter.grad = gradient.to(parameter.device)
            else:
                parameter.grad = torch.empty_like(parameter).copy_(gradient)

    def apply(self, accepted: Accepted, room: torch.Tensor, update: Update, share: float) -> None:
        """Step the optimizer with them, at rates for that many samples; or, where workers push models, take over the
        one in the room. Running statistics move by the worker's `share` of the global batch."""
        samples, subject = accepted.lease.samples, self._subject
        self._losses.begin()
        self._losses.add(torch.tensor(update.loss))
        self._state.snapshots.before_change()
        if self._takes_models:
            self.layout.read(room)
        else:
            with rates(subject.optimizer, subject.rate_scaling.factor(samples)):
                subject.optimizer.step()
        for parameter in subject.trained:
            parameter.grad = None  # its memory is the connection's
        self.layout.move_buffers(room, share)

    def book(self, accepted: Accepted, worker: str, update: Update) -> None:
        """It is applied: the job has come further."""
        before, samples = self._state.position, accepted.lease.samples
        factor, now = self._subject.rate_scaling.factor(samples), time.time()
        staleness, share = accepted.staleness, accepted.lease.share
        self._series.write(
            UpdateRecord(now, before.step, worker, update.version, staleness, *share, factor, update.seconds)
        )
        self._metrics.server.applied(worker, staleness)
        self._clock.bucket_ready()
        self._accounts.commit(
            Committed(
                now,
                before.step,
                before.epoch,
                self._plans.active.version,
                samples,
                samples,
                1.0,
                self._clock.finish(),
                self._losses.commit(),
                self._accounts.take_mark(),
                update.weight,
                update.weight,
            )
        )
        after = self._rules.advance(before, samples, samples)
        self._state.position = after
        self._subject.schedules.step(after.step, after.epoch, epochs=after.epoch - before.epoch)
        for function in self._subject.after_step:
            function()
        shown = self._metrics.state
        shown.step, shown.epoch = after.step, after.epoch
        self._show_loss()
        if after.epoch != before.epoch:
            self._accounts.settle()
            self._group.share_epoch_loss()
            self._losses.epoch.end()

    def _show_loss(self) -> None:
        signals, shown = self._losses.alone(), self._metrics.state
        shown.steps_nonfinite += int(signals.nonfinite)
        loss = self._losses.receive(signals)
        if loss is not None:
            shown.loss = loss
