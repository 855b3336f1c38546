"""How a worker joins its job, goes over to other members with the others, and meets them again after a failure.

All go over to the next generation at one boundary between two steps, or leave in order there. Its groups are made
beside training (`transition.py`), so going over takes no longer than asking whether all answer in them, and bringing
those that join to the same state.
"""

from __future__ import annotations

import logging
import time

import torch

from heterotrain import contract
from heterotrain.groups.assembly import JobOverError, MembershipError
from heterotrain.groups.control import sum_over_ranks
from heterotrain.groups.generation import STOP_SECONDS
from heterotrain.groups.succession import Succession
from heterotrain.job.worker import Worker
from heterotrain.training.gathering import Meeting
from heterotrain.training.parts import Parts

log = logging.getLogger(__name__)


class OvertakenPlanError(MembershipError):
    """This worker does not train yet, and the plan that it waits for is not the newest any more."""


class Joining:
    """One worker's way into its job, and whether it still has to wait, whenever it waits for the others."""

    def __init__(self, parts: Parts) -> None:
        self._context = parts.context
        self._plans = parts.context.plans
        self._stop = parts.context.stop
        self._group = parts.group
        self._saving = parts.saving
        self._leaving = parts.leaving

    def await_membership(self, worker: Worker) -> None:
        """Wait until a plan holds this very worker, then meet the others."""
        config, state = self._context.config, self._context.metrics.state
        meeting = Meeting(
            job=worker.job_uid or worker.job,
            spare_port=worker.metrics_port,
            backend=config.backend,
            elastic=worker.elastic,
            silence_seconds=config.heartbeat_timeout_seconds,
            held_seconds=config.progress_timeout_seconds,
            check_stop=self._check_wanted,
            is_asked_to_stop=lambda: self._stop.requested,
            secret=worker.secret,
        )
        while True:
            state.phase = contract.PHASE_WAITING
            self._plans.await_first(worker, self._check_stop)
            state.phase = contract.PHASE_STARTING
            try:
                self._group.join(meeting, config.startup_deadline_seconds)
                while self._group.broken and self._group.is_new and self._plans.active.continues:
                    self._group.form(config.startup_deadline_seconds)  # the others train, and may prepare once more
                return
            except OvertakenPlanError as error:
                log.info("%s", error)
            except JobOverError:
                self._leaving.leave_the_others("the job is done")

    def _check_wanted(self) -> None:
        """While this worker waits for others: whether it still has to. A member of those who go on without one another
        has to for some time, since whoever is left at last writes the checkpoint."""
        is_member = self._saving.is_elastic and not self._group.is_new
        if not is_member or self._stop.seconds > STOP_SECONDS:
            self._check_stop()
        if self._group.is_new and self._plans.overtaken:
            raise OvertakenPlanError(f"plan {self._plans.active.version} has been replaced; waiting for the next")

    def _check_stop(self) -> None:
        if self._stop.requested:
            self._group.leave_early("it was asked to stop before all had met")
            self._leaving.leave_on_request()


# A collective that keeps failing is no passing fault; the operator restarts the job from its checkpoint then.
_MOST_REPLAYS_OF_A_STEP = 5

# A peer may be in the middle of a step of its own when a collective fails.
_STEPS_TO_WAIT = 20

# For the others, once this worker has committed the job's last step.
_FINISHING_SECONDS = 10.0


class Reforming:
    """One worker's side of it, and how often the step under way has failed."""

    def __init__(self, parts: Parts, following: Following) -> None:
        self._config = parts.context.config
        self._plans = parts.context.plans
        self._metrics = parts.context.metrics
        self._subject = parts.subject
        self._state = parts.state
        self._group = parts.group
        self._accounts = parts.accounts
        self._clock = parts.clock
        self._saving = parts.saving
        self._leaving = parts.leaving
        self._progress = parts.progress
        self._following = following
        self._replays = 0

    def committed(self) -> None:
        """A step is committed, so that failures are those of the next one."""
        self._replays = 0

    def reform(self, *, repeats: bool = True) -> None:
        """Meet the members again after a failure, which may have cost a step that is repeated.

        Raises MembershipError if those who are needed do not come back in time: then a restart from the checkpoint is
        due.
        """
        step = self._state.position.step
        self._replays += repeats
        if self._replays > _MOST_REPLAYS_OF_A_STEP:
            raise MembershipError(f"step {step} failed {self._replays} times in a row: {self._group.broken}")
        config, state = self._config, self._metrics.state
        state.phase = contract.PHASE_REFORMING
        state.steps_replayed += repeats
        self._subject.optimizer.zero_grad()
        # It is not known yet how long the first step takes, with whatever is compiled in it.
        usual = self._accounts.slow_step_seconds * _STEPS_TO_WAIT or config.startup_deadline_seconds
        before = self._plans.active
        finishing = _FINISHING_SECONDS + (3 * config.heartbeat_timeout_seconds if self._saving.is_elastic else 0)
        self._group.form(finishing if self._progress.done else max(config.progress_timeout_seconds, usual))
        if self._group.broken:
            return
        members = self._plans.active.members
        log.info("group of %d workers formed again at step %d", len(members), self._state.position.step)
        if len(members) != len(before.members):
            self._replays = 0
        if self._following.is_behind:  # also behind a plan whose groups broke as this worker went over to them
            self._following.follow()
        if repeats:
            self._accounts.mark_as_replay()
        self._clock.restart()
        state.phase = contract.PHASE_TRAINING

    def recovered(self) -> bool:
        """Form the group again; False if the others are gone but this worker has committed the job's last step. Raises
        MembershipError, also if sums may be missing in that step."""
        try:
            self.reform(repeats=not self._plans.active.holds)
        except MembershipError:
            if not self._progress.done or self._group.may_lack_sums:
                if self._group.is_out and self._plans.is_left_out:
                    self._leaving.leave_the_others("the others have gone on without this worker, as it was to leave")
                raise
            self._leaving.finish(alone=True)
            return False
        return True


_PROBE_SECONDS = 5.0  # for all members of the next generation to answer in its groups


class GoingOver:
    """One worker's side of it."""

    def __init__(self, parts: Parts, following: Following) -> None:
        self._plans = parts.context.plans
        self._metrics = parts.context.metrics
        self._state = parts.state
        self._group = parts.group
        self._transition = parts.exchange.transition
        self._accounts = parts.accounts
        self._clock = parts.clock
        self._leaving = parts.leaving
        self._following = following

    def go_over(self) -> None:
        """Go over to the next generation of members together with all that stay, or leave in order."""
        began = time.monotonic()
        self._accounts.settle()
        if self.part():
            self._enter(began)

    def part(self) -> bool:
        """All members are about to go over to the next generation, or to leave: make the buffers equal, and look
        whether all answer in the new groups. False if they stay as they are, or as `Group.share_buffers`.

        All else is equal, or the comparisons that ride on the exchange find it: whoever joins takes it from one member,
        so nobody gets a mixture.
        """
        group, succession = self._group, self._transition.succession
        assert succession is not None
        if not (group.share_buffers() and group.share_epoch_loss()):
            return False
        answers = torch.tensor([succession.rank is None or _all_answer(succession)], dtype=torch.float64)
        if not group.together(lambda generation: sum_over_ranks(answers, generation)):
            return False
        assert group.generation is not None
        if answers.item() < group.generation.world_size:
            self._transition.postpone("a member did not answer in its groups")
            return False
        if succession.rank is not None and succession.number is not None:
            group.assembly.switched(succession.number)
        group.drain_barrier()
        return True

    def _enter(self, began: float) -> None:
        """The next generation begins here; it is the same step on all workers."""
        succession = self._transition.succession
        assert succession is not None
        if succession.rank is None:
            self._leaving.leave_the_others("the others go on without this worker")
        with self._metrics.phase(contract.PHASE_STARTING):  # a joiner's state may take long on its way
            self._group.enter()
        if self._group.broken:
            return
        log.info(
            "step %d: generation %d of %d workers, after %.3f s",
            self._state.position.step,
            self._plans.active.generation,
            len(self._plans.active.members),
            time.monotonic() - began,
        )
        self._following.follow()
        self._clock.restart()


def _all_answer(succession: Succession) -> bool:
    generation = succession.generation
    if generation is None:
        return False
    try:
        generation.sum(torch.ones(1)).wait(_PROBE_SECONDS)
    except RuntimeError as error:
        log.warning("groups of the next generation do not work: %s", error)
        return False
    return True


class Following:
    """Keeps what one worker does, exports and says in step with the active plan."""

    def __init__(self, parts: Parts) -> None:
        self._plans = parts.context.plans
        self._metrics = parts.context.metrics
        self._worker = parts.context.worker
        self._rate_scaling = parts.subject.rate_scaling
        self._state = parts.state
        self._group = parts.group
        self._accounts = parts.accounts
        self._clock = parts.clock
        self._saving = parts.saving
        self._progress = parts.progress
        self._followed: contract.Plan | None = None

    @property
    def is_behind(self) -> bool:
        """Whether another plan is active than the one that this worker follows."""
        return self._plans.active != self._followed

    def follow(self) -> None:
        """Another plan is active than before."""
        self._saving.await_written()  # other batches may need the memory that its copy takes
        plan, state, position = self._plans.active, self._metrics.state, self._state.position
        self._followed = plan
        self._accounts.settle()
        self._metrics.follow(plan, self._plans.rank)
        self._state.lead(self._plans.leads)
        self._accounts.mark("first")
        if state.phase == contract.PHASE_HOLDING and not plan.holds:
            state.phase = contract.PHASE_TRAINING
            self._clock.restart()
        state.step, state.epoch = position.step, position.epoch
        if self._saving.is_elastic:
            state.protocol = self._group.protocol  # over nccl another one than before the members had met
        state.total_steps = self._progress.total_steps
        self._follow_rates(self._plans.batch_size if self._plans.is_served else plan.global_batch_size)
        is_server = self._plans.published is not None  # which says itself what it gives to others
        if self._worker is not None and not is_server:
            log.info(
                "step %d: following plan %d: %d of %d samples",
                position.step,
                plan.version,
                self._plans.batch_size,
                plan.global_batch_size,
            )

    def _follow_rates(self, global_batch_size: int) -> None:
        """Export by what learning rates are multiplied, and say so when that changes."""
        scaling, state = self._rate_scaling, self._metrics.state
        if not scaling.is_active:
            return
        factor = scaling.factor(global_batch_size)
        if factor != (1.0 if state.learning_rate_factor is None else state.learning_rate_factor):
            log.info(
                "step %d: learning rates are those of the script times %.4g, since the global batch is %d samples "
                "instead of %d (%s)",
                self._state.position.step,
                factor,
                global_batch_size,
                scaling.own_batch,
                scaling.rule,
            )
        state.learning_rate_factor = factor
