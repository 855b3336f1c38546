"""A worker that is to join others warms up alone first: its loop runs for a few batches, and nothing of it counts.

What is compiled, allocated and loaded in a process's first steps would hold all others up if they were steps of the
job. The script's own loop is what has to run, for nothing else knows what it will need. So it gets real batches of an
epoch's beginning, sized as those of its group; `optimizer.step()` only ends a batch, and afterwards model, optimizer,
registered objects and random numbers are as they were. How long a step took is a first measurement of this worker.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

import torch

from heterotrain import contract
from heterotrain.contract import Plan
from heterotrain.data.sampler import Rules, Share, micro_batches
from heterotrain.data.split import Portion
from heterotrain.gradients.counting import checked_count, sample_weight
from heterotrain.gradients.gradient_sum import touch
from heterotrain.state.kept_state import KeptState
from heterotrain.training.running_step import RunningStep
from heterotrain.training.step_parts import StepParts

log = logging.getLogger(__name__)

STEPS, STEPS_WITH_HALF = 3, 2
"""The first step of each size is the one in which things are compiled and allocated; the others show its time."""


class UnknownMetrics(dict[str, float]):
    """What a script that takes its evaluations' metrics for known sees of those that are not."""

    def __missing__(self, name: str) -> float:
        """No number."""
        return math.nan


class Size(NamedTuple):
    """Samples of a step, and of which it takes at most so many at once (0: all)."""

    batch: int
    micro: int = 0


def usual_size(plan: Plan, group: str) -> Size:
    """What a worker of this group computes in a step: the lower median of those that train; an equal share where none
    of them has samples."""
    alike = sorted(
        Size(member.batch_size, member.micro_batch_size)
        for member in plan.members
        if member.group == group and member.batch_size
    )
    if alike:
        return alike[(len(alike) - 1) // 2]
    return Size(max(1, plan.global_batch_size // (len(plan.members) + 1)))


def sizes_of_steps(usual: Size, rules: Rules) -> list[Size]:
    """The steps of a warm-up: some of the usual size, and some of half of it where that is another one, so that it is
    seen how time depends on the batch."""
    batch = min(max(usual.batch, rules.least), rules.length)
    half = max(batch // 2, rules.least)
    return [Size(batch, usual.micro)] * STEPS + ([Size(half, usual.micro)] * STEPS_WITH_HALF if half < batch else [])


class WarmUp:
    """The warm-up of one worker: a `BatchProtocol` for the script's loop between `begin` and `end`, in which it
    `is_running`."""

    def __init__(self, parts: StepParts) -> None:
        self.is_running = False
        self._context = parts.context
        self._subject = parts.subject
        self._state = parts.state
        self._group = parts.group
        self._rules = parts.rules
        self._kept: KeptState | None = None
        self._steps: Sequence[RunningStep] = ()
        self._number = -1  # of the step under way
        self._ended_at = 0.0  # when the step before was over
        self._seconds: dict[int, list[float]] = {}

    # --- the warm-up as a whole ---------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Begin, if this worker is to warm up; whether it does. What `Subject.settle` does is done by now."""
        context, subject = self._context, self._subject
        if context.worker is None or not context.worker.warms_up:
            return False
        plan = context.plans.show_others()
        if plan is None:
            log.info("no warm-up: there is no plan, so nobody trains")
            return False
        context.metrics.state.phase = contract.PHASE_WARMING
        self._group.make_ready()
        self._kept = KeptState(subject.module, subject.optimizer, self._state.registered, subject.device)
        sizes = sizes_of_steps(usual_size(plan, context.worker.group), self._rules)
        self._steps = list(self._running_steps(sizes))
        self.is_running = True
        self._ended_at = time.perf_counter()
        return True

    def _running_steps(self, sizes: Sequence[Size]) -> Iterator[RunningStep]:
        cursor = 0
        for batch, most in sizes:
            if cursor + batch > self._rules.length:
                cursor = 0
            parts = tuple(micro_batches(0, batch, most, self._rules.least))
            yield RunningStep(0, cursor, Portion(batch, batch, parts, None))
            cursor += batch

    def end(self) -> None:
        """Undo all that it did, and export how long its steps took."""
        context, subject = self._context, self._subject
        assert self._kept is not None
        self.is_running = False
        subject.passes.close()
        subject.accumulator.drop()
        subject.drop_gradients_of_lacking()
        self._kept.restore()
        self._kept = None
        context.plans.hide_others()
        measured = {batch: fmean(seconds[1:]) for batch, seconds in self._seconds.items() if len(seconds) > 1}
        context.metrics.state.warm_up = measured
        context.metrics.state.phase = contract.PHASE_PREPARING
        words = ", ".join(f"a step of {batch} samples takes {each:.3g} s" for batch, each in measured.items())
        log.info("warmed up: %s", words or "no step was measured")

    def advance(self) -> Share | None:
        """The next batch for the script's loop; None once it had all. Raises RuntimeError if the script did not commit
        the one before."""
        if not self.next_part():
            if self._number + 1 >= len(self._steps):
                return None
            self.begin_step()
        return self.share

    # --- a step, for the script's loop --------------------------------------------------------------------------

    @property
    def _step(self) -> RunningStep:
        return self._steps[self._number]

    @property
    def share(self) -> Share | None:
        """The samples that the script computes on now."""
        return self._step.share if self._number >= 0 else None

    @property
    def is_open(self) -> bool:
        """Whether the script has a batch that it has not committed yet."""
        return self._number >= 0 and self._step.is_open

    def begin_step(self) -> None:
        """Go to the next step's first micro-batch."""
        self._number += 1
        self._subject.accumulator.drop()
        self._step.open_part()
        self._subject.passes.open(first_part=True, last_part=self._step.is_last_part)

    def next_part(self) -> bool:
        """Go to the next micro-batch of the running step; False if there is none.

        Raises RuntimeError if the script has not committed the batch that it has.
        """
        if self.is_open:
            raise RuntimeError(
                "optimizer.step() was not called for the batch before; every batch must be committed once"
            )
        if self._number < 0 or not self._step.has_next_part:
            return False
        self._step.open_part()
        self._subject.passes.open(first_part=False, last_part=self._step.is_last_part)
        return True

    def coming(self) -> Iterator[Share]:
        """The shares from the micro-batch under way on."""
        for step in self._steps[max(self._number, 0) :]:
            yield from step.shares_to_come()

    def scale(self, loss: torch.Tensor, count: float | torch.Tensor | None) -> torch.Tensor:
        """See `Session.scale`; this worker's batch is the whole one."""
        subject, share = self._subject, self.share
        if not self.is_open or share is None:
            raise RuntimeError("session.scale() was called outside the loop over the batches")
        subject.check_frozen()
        reduction = subject.loss.reduction
        if not subject.loss.counted:
            if count is not None:
                raise ValueError("session.scale(): a count is of use only after session.prepare(..., counted=True)")
            scaled = loss * sample_weight(share.stop - share.start, self._step.samples, reduction)
        elif count is None:
            raise ValueError("session.scale() needs a count after session.prepare(..., counted=True)")
        else:
            number = checked_count(count)
            # The mean over nothing is no number, and its gradient would be none.
            scaled = (
                loss * sample_weight(number, number, reduction) if number else touch(subject.trained, subject.device)
            )
        self._step.scaled = True
        return subject.passes.through(scaled)

    def commit(self) -> bool:
        """End the batch that the script has, and leave model and optimizer as they are; no step is committed."""
        if not self.is_open:
            raise RuntimeError("optimizer.step() was called without a new batch")
        step, subject = self._step, self._subject
        if not step.scaled:
            raise RuntimeError("the loss did not go through session.scale(); its gradient would be weighted wrongly")
        subject.passes.check_done()
        step.is_open = False
        if step.is_last_part:
            subject.passes.close()
            if subject.device.type == "cuda":
                torch.cuda.synchronize(subject.device)
            before, self._ended_at = self._ended_at, time.perf_counter()
            self._seconds.setdefault(step.own_samples, []).append(self._ended_at - before)
        return False
