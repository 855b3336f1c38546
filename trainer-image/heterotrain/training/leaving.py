"""How a worker's part in a job ends: with the job, or in order while the others go on, or because it was asked to.

Which of these it was is a part of its last words, by which the operator knows whether the job goes on.
"""

from __future__ import annotations

import logging
from typing import NoReturn

from heterotrain import contract
from heterotrain.contract import Termination
from heterotrain.job.worker import StopRequest
from heterotrain.reporting.metrics import WorkerState
from heterotrain.state.training_state import TrainingState
from heterotrain.training.accounts import Accounts
from heterotrain.training.context import Context
from heterotrain.training.exchange import Exchange
from heterotrain.training.group import Group
from heterotrain.training.saving import Saving

log = logging.getLogger(__name__)


class Leaving:
    """The end of one worker's part, and which it was."""

    def __init__(
        self,
        context: Context,
        state: TrainingState,
        *,
        group: Group,
        exchange: Exchange,
        accounts: Accounts,
        saving: Saving,
    ) -> None:
        self.finished = False
        self.stopped = False
        self.left = False  # in order, while the others go on
        self.leader = False  # whether this worker led the job as its last step was committed
        self.left_loop = ""  # why the script left the loop over the batches before the job's end
        self._farewell = context.farewell
        self._plans = context.plans
        self._metrics = context.metrics
        self._stop = context.stop
        self._state = state
        self._group = group
        self._exchange = exchange
        self._accounts = accounts
        self._saving = saving

    @property
    def over(self) -> bool:
        """Whether this worker's part has ended."""
        return self.finished or self.stopped or self.left

    def finish(self, *, alone: bool = False) -> None:
        """The job's last step is committed: save, and leave the group. `alone`: the others do not answer any more. Then
        whoever is left writes, for nobody else may have; all who come so far write the same."""
        self._accounts.settle()
        writes = self._saving.may_write_alone if alone else self._saving.may_write
        self._group.job_is_over()
        self._group.drain_barrier()
        self._saving.save(writes=writes)
        if writes:
            self._state.release()
        self._group.leave()
        self.finished, self.leader = True, self._plans.leads
        self._stop.deferred = False
        if self._farewell is not None:
            self._farewell.write()  # who is killed from now on has no other chance to say so
        self._metrics.state.phase = contract.PHASE_FINISHED

    def leave_the_others(self, why: str) -> NoReturn:
        """This worker is not needed any more. Raises SystemExit(0)."""
        self.left = True
        self._group.leave()
        log.info("step %d: %s", self._state.position.step, why)
        raise SystemExit(0)

    def stop_or_let_go(self) -> bool:
        """Some workers were asked to stop, which all know: those leave in order, and the others go on without them. The
        job stops if there are no others, or if its members stay the same. True: others have left, and those who stay
        are to meet again."""
        group = self._group
        if (
            group.generation is None
            or not self._saving.others_go_on
            or self._exchange.stopping >= group.generation.world_size
        ):
            self.leave_on_request()
        if not group.share_buffers():
            return False
        group.drain_barrier()
        if self._exchange.leaves:
            self.stopped = True
            self._accounts.settle()
            group.leave()  # first, for the others meet as soon as nobody answers for this worker
            self._saving.await_written()
            log.info("asked to stop: leaving after step %d, and the others go on", self._state.position.step)
            raise SystemExit(contract.EXIT_PREEMPTED)
        group.await_release()
        group.give_up("members were asked to stop, and have left")
        return True

    def leave_on_request(self) -> NoReturn:
        """Save what is committed and leave in order. Raises SystemExit(143)."""
        self.stopped = True
        self._accounts.settle()
        self._group.unite()
        if self._group.may_lack_sums:
            log.warning(
                "no checkpoint of step %d: the groups broke, and over nccl sums may be missing in it",
                self._state.position.step,
            )
        writes = self._saving.may_write
        self._group.drain_barrier()
        self._saving.save(writes=writes)
        if writes:
            self._state.release()
        self._group.leave()
        log.info("asked to stop: leaving after step %d", self._state.position.step)
        raise SystemExit(contract.EXIT_PREEMPTED)


def last_words(error: str, leaving: Leaving | None, stop: StopRequest, shown: WorkerState, step: int) -> Termination:
    """How this worker ended after that many steps of the job: with an `error`, or if that is empty as `leaving` says,
    which is None if the script has prepared nothing. `shown` is what the worker's metrics show."""
    finished = leaving is not None and leaving.finished
    message = error
    # A request to stop may itself end the loop, wherever in it the script is.
    left_loop = "" if error or finished or leaving is None or stop.requested else leaving.left_loop
    stopped = not error and leaving is not None and leaving.stopped
    if stopped:
        why = "asked to stop" if stop.requested else "another worker was asked to stop"
        message = f"{why}; left after step {step}"
    elif not error and leaving is not None and leaving.left:
        message = f"the job goes on without this worker, which left after step {step}"
    elif left_loop:
        message = left_loop
    elif not error and not finished:
        total = shown.total_steps
        message = f"the script ended before the job's last step (step {step} of {total or 'unknown'})"
    return Termination(
        finished=finished,
        step=step,
        message=message,
        asked_to_stop=stopped,
        evaluated=shown.evaluated,
        left=not error and leaving is not None and leaving.left,
        script_error=bool(left_loop) and not stopped,
        leader=leaving.leader if leaving is not None and finished else None,
    )
