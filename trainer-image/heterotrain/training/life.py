"""The life of a worker in a job: what is due between two steps, and in which order; a step is in `protocol.py`.

All workers take every decision at the same boundary between two steps, from the same facts (position, plan, and what
the last exchange summed), so none needs a vote.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

from heterotrain import contract
from heterotrain.contract import Plan
from heterotrain.data import sampler
from heterotrain.data.sampler import Position, Rules, Share
from heterotrain.state.batch_norm import WARNING
from heterotrain.state.replica_watch import LoopChanges
from heterotrain.training.context import Context
from heterotrain.training.membership import Following, GoingOver, Joining, Reforming
from heterotrain.training.parts import put_together
from heterotrain.training.protocol import BatchProtocol
from heterotrain.training.subject import Subject

log = logging.getLogger(__name__)

# Between two exchanges of members that hold, which then go over to another plan within a second.
_HOLDING_SECONDS = 0.2


class WorkerLife:
    """The life of one worker; the script reaches it only through what the session returns."""

    def __init__(self, context: Context, subject: Subject) -> None:
        parts = put_together(context, subject)
        self.subject = subject
        self.state = parts.state
        self.evaluation = parts.evaluation
        self.accounts = parts.accounts
        self.leaving = parts.leaving
        self.step = parts.step
        self.warm_up = parts.warm_up
        self.progress = parts.progress
        self.loop_changes = LoopChanges(lambda: self.state.registered_modules)
        self.started = False  # the loop over the batches has begun
        self._ended = False  # this worker's script has ended the job
        self._context = context
        self._join = parts.join
        self._plans = context.plans
        self._metrics = context.metrics
        self._stop = context.stop
        self._clock = parts.clock
        self._exchange = parts.exchange
        self._group = parts.group
        self._saving = parts.saving
        self._following = Following(parts)
        self._joining = Joining(parts)
        self._going_over = GoingOver(parts, self._following)
        self._reforming = Reforming(parts, self._following)

    @property
    def batch(self) -> BatchProtocol:
        """The batch that the script has: one of a step, or of the warm-up before all steps."""
        return self.warm_up if self.warm_up.is_running else self.step

    def coming(self) -> Iterator[Share]:
        """What the script's loop will get, from the batch under way on."""
        return self.batch.coming()

    @property
    def seed(self) -> int:
        """The job's."""
        return self._context.config.seed

    @property
    def rank(self) -> int:
        """This worker's place in the plan; 0 leads."""
        return self._plans.rank

    @property
    def leads(self) -> bool:
        """Whether this worker does what one alone is to do."""
        return self._plans.leads

    @property
    def position(self) -> Position:
        """How far the job has come."""
        return self.state.position

    @property
    def in_collective(self) -> bool:
        """Whether this worker has done its own part of the step and only waits for the others."""
        return self._group.in_collective

    # --- the loop over the batches ------------------------------------------------------------------------------

    def settle(self) -> None:
        """The script has made everything, and its loop begins. Raises CheckpointError if a checkpoint of what it has
        made could not be read or loaded again."""
        self.started = True
        self.state.check_loads()
        self.subject.settle()

    def start(self) -> None:
        """Become a member, take over the newest checkpoint, and stand before the first step.

        Raises MembershipError, CheckpointError, ValueError if the workers' scripts differ; SystemExit(143) if asked to
        stop meanwhile.
        """
        self._stop.deferred = True
        if self._join is not None:
            self._join()
        elif self._context.worker is not None:
            self._joining.await_membership(self._context.worker)
        self._metrics.state.taken_over = self.state.taken_over
        if self.leads and self._join is None:
            for remark in remarks_on_division(self.progress.rules, self._plans.active):
                log.warning("%s", remark)
        lengths = (self.progress.total_steps, self._context.config.epochs)
        for remark in self.subject.schedules.remarks(*lengths, of_updates=self._join is not None):
            log.warning("%s", remark)
        self._following.follow()
        self.step.start()
        self._metrics.state.phase = contract.PHASE_TRAINING
        self._clock.restart()

    def begin_epoch(self) -> bool:
        """Whether there is another epoch; False when the job is done."""
        return not self.leaving.finished and self._boundary()

    def begin_warm_up(self) -> None:
        """The script's loop begins, whose batches are no part of the training; before it, the script may have changed
        what is trained, as between two epochs."""
        if self.subject.take_changes():
            self._group.make_ready()

    def end_warm_up(self) -> None:
        """Put everything back as it was before."""
        self.warm_up.end()
        if self.subject.take_changes():
            self._group.make_ready()

    def go_on(self) -> None:
        """Continue after what the script did between two loops over batches, which is no part of a step."""
        self._clock.restart()

    def begin_step(self, epoch: int | None = None) -> bool:
        """Go to the next batch that the script is to compute; False when the job is done, or if it is in another epoch.

        Raises RuntimeError if the script did not commit the batch that it got.
        """
        if self.step.next_part():
            return True
        if self.leaving.finished or not self._boundary() or (epoch is not None and self.position.epoch != epoch):
            return False
        self._saving.if_due()
        if epoch is not None and self.position.begins and self._group.take_changes():
            self.accounts.mark("first")
        self.step.begin()
        return True

    def step_without_samples(self) -> None:
        """Do a whole step in which this worker has no samples."""
        # Scripts clear gradients before backward or after the step; this step stands in for either kind.
        self.subject.optimizer.zero_grad()
        self.step.compute_nothing()
        self.commit()
        self.subject.optimizer.zero_grad()

    def commit(self) -> None:
        """Commit the running step, or drop it if its gradients did not arrive. See `ElasticOptimizer.step`."""
        in_loop = self.loop_changes.end()
        if self.batch.commit():
            self._reforming.committed()
            if self.progress.done:
                self._boundary()
        if in_loop:
            self.loop_changes.begin()

    def _boundary(self) -> bool:
        """Do whatever is due between two steps; whether there is a next one. The same on all workers."""
        while True:
            done = self.progress.done
            if self._group.broken:
                if not self._reforming.recovered():
                    return False
            elif not done and (self._exchange.stopping or (self._group.generation is None and self._stop.requested)):
                if self.leaving.stop_or_let_go():
                    self._reforming.reform(repeats=False)
            elif self.evaluation.is_due(self.position, at_the_end=done):
                self._evaluate()
            elif not done and self._exchange.transition.due:
                self._going_over.go_over()
            elif done:
                if self._group.unite():
                    self.leaving.finish()
                    return False
            elif self._plans.take_due(self.position.begins or self._plans.active.holds) or self._following.is_behind:
                self._following.follow()
            elif self._plans.active.holds:
                self._hold()
            else:
                return True

    def _hold(self) -> None:
        """Take no step for a moment, since the plan says so. By exchanges alone the members learn of other plans, and
        of those among them that are to stop; each boundary looks whether anything is due, as between two steps.
        """
        if self._metrics.state.phase != contract.PHASE_HOLDING:
            log.info("step %d: holding, for plan %d says so", self.position.step, self._plans.active.version)
            self.accounts.settle()
            self._metrics.state.phase = contract.PHASE_HOLDING
        self._saving.while_holding()
        time.sleep(_HOLDING_SECONDS)
        self.step.exchange_alone()

    @contextlib.contextmanager
    def pause(self, name: str) -> Iterator[None]:
        """See `Session.pause`."""
        if self.warm_up.is_running:
            yield  # nobody waits for this worker
            return
        log.info("step %d: paused for %s", self.position.step, name)
        with self._metrics.phase(contract.PHASE_PAUSED):
            yield
        self.accounts.mark("pause")
        if not self.step.is_open:
            self._clock.restart()

    # --- evaluations --------------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        """Measure the model as it is after the newest step, together; if a worker fails, it is done again later."""
        self._saving.if_due()  # an evaluation may take long, and be the last that a worker does
        if not self._group.unite():
            return
        self.accounts.settle()
        with self._metrics.phase(contract.PHASE_EVALUATING):
            record = self.evaluation.run(
                self.subject.module,
                self._plans.active.members,
                self.rank,
                self.position.step,
                self._group.gather,
                handle=self.subject.handle,
            )
        if record is not None and self.leads:
            self._context.series.write(record)
            self._metrics.state.evaluated = contract.Evaluated.of(record.step, record.metrics.items())
        self.accounts.mark("evaluation")
        self._clock.restart()

    # --- leaving --------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """See `Session.stop`."""
        if self.warm_up.is_running:
            return  # what it has seen says nothing of the job
        self._ended = True
        self._exchange.done = True
        if self._group.ends_by_itself:
            self._exchange.done_agreed = True

    def loop_left(self) -> None:
        """The script has left the loop over the batches. If it has not ended the job before, it is not at its end."""
        if self.leaving.over:
            return
        self.accounts.settle()
        if self._ended and self._group.repeats:
            if self.step.is_open:
                self.step.drop("the script left it")
            # The others are in the midst of a step that this worker will not finish; all meet once more to end it.
            self._group.give_up("the script has ended the job")
            self._boundary()
            return
        self.subject.passes.close()
        total = self.progress.total_steps
        why = (
            "over nccl a script that calls session.stop() has to go on until the loop ends by itself"
            if self._ended
            else "a script that wants to end the job calls session.stop()"
        )
        if self._ended:
            log.error("step %d: the script left the loop over the batches; %s", self.position.step, why)
        left = (
            f"script left the loop over the batches after step {self.position.step} of {total or 'unknown'}, by a "
            f"break, a return or an exception; {why}"
        )
        self.leaving.left_loop = f"the {left}"
        self._group.leave_early(f"its {left}")


_FEW_STEPS = 5  # of an epoch, below which a smaller one among them is worth a remark

_CURE = "training.lastStep: Carry fills each step from the next epoch"


def sizes_of_steps(rules: Rules, global_batch_size: int) -> str:
    """How many steps an epoch has, and how many of them are smaller than the global batch, in words."""
    steps = rules.steps_per_epoch(global_batch_size)
    epoch = f"an epoch of {rules.length} samples has {steps} {'step' if steps == 1 else 'steps'}"
    if rules.last_step == sampler.CARRY:
        return f"{epoch} at most, all of them full"
    smaller = rules.smaller_steps(global_batch_size)
    return f"{epoch}, {len(smaller)} of them smaller, of {_listed(smaller)} samples" if smaller else epoch


def remarks_on_division(rules: Rules, plan: Plan) -> Iterator[str]:
    """The remarks, which are the same on all workers, so the leader alone logs them."""
    length, batch = rules.length, plan.global_batch_size
    steps, smaller = rules.steps_per_epoch(batch), rules.smaller_steps(batch)
    if rules.last_step == sampler.PARTIAL and smaller:
        if length < batch:
            yield (
                f"each epoch is one step of its {length} samples, which are fewer than the global batch of {batch}; "
                f"{_CURE}"
            )
        elif steps <= _FEW_STEPS:
            are = "is" if len(smaller) == 1 else "are"
            yield (
                f"{len(smaller)} of {steps} steps of each epoch {are} smaller, of {_listed(smaller)} samples instead "
                f"of {batch}, and balancing goes by the others mostly; {_CURE}"
            )
    if rules.least > 1 and len(plan.members) > 1:
        yield WARNING


def _listed(sizes: tuple[int, ...]) -> str:
    return " and ".join(map(str, sizes))
