"""The messages that workers exchange while they train, in one small collective about once a second.

It is launched before a step's forward and read after its backward, so no worker waits for it. It still costs every
worker some milliseconds of CPU time (two threads of gloo wake for it), which matters under a small CPU limit. So with
each exchange the leader says after how many steps the next one is due, and all workers follow.
"""

from __future__ import annotations

import logging

from heterotrain.gradients.losses import Losses
from heterotrain.groups.control import PendingSignals, Signals, broadcast_bytes
from heterotrain.groups.generation import Generation
from heterotrain.job.plans import Plans
from heterotrain.job.worker import StopRequest
from heterotrain.state.replica_watch import MOST_STEPS, ReplicaWatch
from heterotrain.training.transition import Transition

INTERVAL_SECONDS = 1.0

URGENT_SECONDS = 0.2
"""While members are about to change, for which three exchanges are needed, and in the first steps of a plan."""

FIRST_STEPS = 10
"""Steps of a plan in which the next one is urgent: two or three of them may have shown that batches are far off."""


class Pace:
    """After how many steps the next exchange is due; what the leader says counts for all."""

    def __init__(self) -> None:
        self._version = -1
        self._first_step = self._step = 0

    def at(self, step: int, plan_version: int) -> None:
        """This step, of all that the job ever takes, begins under this plan."""
        if plan_version != self._version:
            self._version, self._first_step = plan_version, step
        self._step = step

    def steps(self, step_seconds: float, *, changing: bool) -> int:
        """Between the exchange of the step that begins and the next one. `step_seconds` is how long a step takes, 0 if
        unknown; `changing`: members are about to change."""
        if step_seconds <= 0:
            return 1
        urgent = changing or self._step - self._first_step < FIRST_STEPS
        return min(MOST_STEPS, max(1, round((URGENT_SECONDS if urgent else INTERVAL_SECONDS) / step_seconds)))


log = logging.getLogger(__name__)


class Exchange:
    """One worker's side of the exchange; all workers draw the same conclusions at the same step."""

    def __init__(self, plans: Plans, losses: Losses, stop: StopRequest, watch: ReplicaWatch) -> None:
        self.stopping = 0
        """How many workers were asked to stop, as all know."""
        self.leaves = False
        """Whether this worker is one of them."""
        self.done = False  # this worker's script has ended the job
        self.done_agreed = False
        self.transition = Transition()
        self._watch = watch
        self._plans = plans
        self._losses = losses
        self._stop = stop
        self._pending: PendingSignals | None = None
        self._pace = Pace()
        self._next_step = 0
        self._steps_between = 1
        self._samples = (0, 0)  # this worker's and all workers' in the steps committed since the last exchange
        self._told_to_stop = False  # in the exchange under way
        self._announced_samples = 0  # all workers' samples, whose sum the exchange under way brings

    @property
    def under_way(self) -> bool:
        """Whether the running step carries one."""
        return self._pending is not None

    def is_due(self, step: int) -> bool:
        """Whether the step that begins carries one."""
        self._pending = None
        self._pace.at(step, self._plans.active.version)
        return step >= self._next_step

    def begin(self, step_seconds: float, generation: Generation) -> None:
        """Launch the exchange that is due. `step_seconds` is how long a step takes, 0 if unknown.

        Raises RuntimeError if the group is broken.
        """
        leads, transition = self._plans.rank == 0, self.transition
        if leads and transition.refused:
            log.warning("plan %d cannot be followed: %s", transition.version, transition.refused)
            transition.give_up("the plan cannot be followed")
            self._plans.refuse_successor()
        switches = leads and transition.may_switch
        if switches and transition.announce is not None and transition.succession is not None:
            transition.announce(transition.succession)
        plan_version, plan_bytes = (0, 0) if switches else self._plans.look()
        steps = self._pace.steps(step_seconds, changing=transition.succession is not None)
        loss, loss_weight, nonfinite = self._losses.signals()
        epoch_loss, epoch_weight = self._losses.epoch.send()
        signals = Signals(
            samples=self._samples[0],
            stop=float(self._stop.requested),
            done=float(self.done),
            loss=loss,
            loss_weight=loss_weight,
            nonfinite=nonfinite,
            plan_version=plan_version,
            plan_bytes=plan_bytes,
            prepared=float(transition.prepared),
            failed=float(transition.failed),
            refuses=float(transition.refuses),
            attempt=transition.next_attempt() if leads else 0,
            switch=float(switches),
            next_after=steps if leads else 0,
            epoch_loss=epoch_loss,
            epoch_weight=epoch_weight,
        )
        self._told_to_stop = signals.stop > 0
        self._announced_samples = self._samples[1]
        self._samples = (0, 0)
        self._pending = PendingSignals(signals, self._watch.checksums(self._steps_between), generation)

    def compare_all(self, generation: Generation) -> None:
        """All workers wait for one another and compare their whole replicas. Raises RuntimeError if the group breaks,
        ReplicaError if they differ."""
        _, checksums = PendingSignals(Signals(), self._watch.whole(), generation).read()
        self._watch.compare(checksums, self._plans.active.members)

    def committed(self, own: int, all_workers: int) -> None:
        """A step over this many samples is committed: this worker's own, and those of all workers."""
        self._samples = (self._samples[0] + own, self._samples[1] + all_workers)

    def receive(self, step: int, generation: Generation) -> Signals | None:
        """What the workers sent in the step that is just committed, and with it a plan that the leader announced. None
        if that step carried no exchange.

        `step` is the one after it. Raises RuntimeError if the group broke, ReplicaError if the replicas differ.
        """
        if self._pending is None:
            return None
        (signals, checksums), self._pending = self._pending.read(), None
        assert signals.samples == self._announced_samples, (
            f"ranks had {signals.samples:g} of {self._announced_samples} samples"
        )
        self._losses.epoch.receive(signals.epoch_loss, signals.epoch_weight)
        if signals.plan_bytes:
            document = self._plans.document() if self._plans.rank == 0 else None
            self._plans.receive(broadcast_bytes(document, int(signals.plan_bytes), 0, generation))
            if self._plans.successor is not None:
                self.transition.follow(self._plans.successor)
        else:
            self.transition.receive(signals, generation.world_size)
            if self.transition.succession is None:
                self._plans.successor = None  # given up by all
        self._watch.compare(checksums, self._plans.active.members)
        self._steps_between = int(signals.next_after)
        self._next_step = step - 1 + self._steps_between
        self.stopping, self.leaves = int(signals.stop), self._told_to_stop
        self.done_agreed = self.done_agreed or signals.done > 0
        return signals

    def compare_bits(self, exact: bool) -> None:
        """`exact`: all workers are machines of one kind, whose replicas must have the same bits."""
        self._watch.exact = exact

    def restart(self) -> None:
        """After a failure all begin together, with an exchange at the next step."""
        self._pending = None
        self._next_step, self._steps_between = 0, 1
        self._samples = (0, 0)
        self.transition.restart()
        self.stopping, self.leaves = 0, False  # a worker that was asked to stop sends that again
        self._watch.restart()
