"""An asynchronous step of one worker, top to bottom: a lease, the script's forward and backward, and one round trip.

* **begin**: the worker has been given samples and the parameters to compute on. They are its whole batch, and its
  gradient is the mean over them.
* **commit**: the gradients, after whatever the script has done to them, go to the parameter server; what comes back are
  the newest parameters and the next samples. Meanwhile this worker waits. If the server is lost, so is what was
  computed: whoever takes its place hands the samples out again, unless its model has seen them.

A worker knows no other worker, so it joins by entering at the server, and leaves by closing the connection.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator

import torch

from heterotrain import contract
from heterotrain.contract import Server, parse_plan
from heterotrain.data.evaluation import Evaluation
from heterotrain.data.sampler import Position, Share, micro_batches
from heterotrain.data.split import Portion
from heterotrain.groups.peering.messages import EndJob, Enter, Grant, Left, TurnedAway, Update
from heterotrain.groups.peering.server import PeerServer
from heterotrain.job.worker import Worker
from heterotrain.peers import PeerError, parse_news
from heterotrain.state.randomness import StepRandomness
from heterotrain.training.accounts import SMALLER, Committed
from heterotrain.training.computing import Computing
from heterotrain.training.layout import Layout
from heterotrain.training.leaving import Leaving
from heterotrain.training.running_step import RunningStep
from heterotrain.training.server_line import Reply, ServerLine
from heterotrain.training.step_parts import StepParts
from heterotrain.training.traits import traits_of

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 0.1  # before a worker that was turned away enters again


class Asynchronous(Computing):
    """One worker's side of an asynchronous step; a `StepProtocol`, and its group's `Link`."""

    serves = False

    def __init__(self, parts: StepParts, leaving: Leaving, evaluation: Evaluation) -> None:
        context, subject, group = parts.context, parts.subject, parts.group
        super().__init__(subject, parts.state, group.losses)
        self.in_collective = False
        self._config = context.config
        self._rules = parts.rules
        self._accounts = parts.accounts
        self._leaving = leaving
        self._evaluation = evaluation
        self._plans = context.plans
        self._metrics = context.metrics
        self._stop = context.stop
        self._exchange = group.exchange
        self._clock = group.clock
        self._randomness = StepRandomness(context.config.seed, context.name, subject.device)
        self._line: ServerLine | None = None
        self._worker: Worker | None = None
        self._grant: Grant | None = None
        self._scheduled = 0  # the step that schedules have come to

    # --- who trains ---------------------------------------------------------------------------------------------

    def join(self, worker: Worker) -> None:
        """Wait until a plan names this worker, and enter at its server. Raises ServerLostError, ValueError if the
        script is not the server's; SystemExit(143) if asked to stop meanwhile."""
        shown, config = self._metrics.state, self._config
        shown.phase = contract.PHASE_WAITING
        self._worker = worker
        self._plans.await_first(worker, self._check_stop)
        shown.phase = contract.PHASE_STARTING
        peers = PeerServer(
            worker.job_uid or worker.job, worker.name, worker.uid, secret=worker.secret, host="127.0.0.1"
        )
        self._line = ServerLine(
            peers,
            Layout(self._subject.module, self._subject.trained),
            find=self._server,
            gives_up=lambda: self._stop.requested,
            silence_seconds=config.heartbeat_timeout_seconds,
            patience_seconds=config.startup_deadline_seconds,
        )
        self._enter()
        self._check_stop()

    def start(self) -> None:
        """The job begins, or goes on, at the position that it has come to."""
        self._randomness.start(self._state.position.step)

    def exchange_alone(self) -> None:
        """A plan that holds is the server's affair, which gives nothing to compute meanwhile."""

    def job_is_over(self) -> None:
        """As the server has said."""

    def end_job(self) -> None:
        """The script has ended the job, and has no batch: have the server end it, and wait until it has."""
        with self._waiting():
            while not self._exchange.done_agreed and not self._stop.requested:
                assert self._line is not None
                if not self._follow(self._line.push(EndJob())):
                    self._enter()

    def close(self) -> None:
        """This worker's part has ended."""
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _server(self) -> Server | None:
        plan = self._plans.in_volume()
        return None if plan is None else plan.server

    def _check_stop(self) -> None:
        if self._stop.requested:
            self._leaving.leave_on_request()

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        self.in_collective = True
        try:
            yield
        finally:
            self.in_collective = False

    # --- a step -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin with the samples that were given to this worker."""
        share = self._given
        samples = share.stop - share.start
        most = self._plans.active.members[self._plans.rank].micro_batch_size
        parts = tuple(micro_batches(0, samples, most, self._rules.least))
        if samples != self._plans.batch_size:
            self._accounts.mark(SMALLER)
        self._open(RunningStep(share.epoch, share.start, Portion(samples, samples, parts, None)))
        self._randomness.begin(share.epoch * self._rules.length + share.start)
        self._losses.begin()

    def coming(self) -> Iterator[Share]:
        """This worker's shares from the micro-batch under way on, and those that the server has named for later."""
        yield from self._step.shares_to_come()
        if self._grant is not None and self._grant.ahead:
            yield Share(*self._grant.ahead)

    def _counted(self, step: RunningStep, number: float) -> float:
        if not step.is_last_part:
            return step.samples
        if step.opened > 1 and step.count:
            # The micro-batches before were scaled as if samples were counted.
            factor = step.samples / step.count
            self._subject.accumulator.scale(factor)
            self._losses.scale(factor)
        return step.count

    def compute_nothing(self) -> None:
        """Every lease has samples."""

    def commit(self) -> bool:
        """Send what was computed, and take over the newest parameters; False if the batch has further parts, or was not
        applied."""
        step = self._check_computed()
        subject = self._subject
        if not step.is_last_part:
            return False
        subject.give_unreached_zeros()
        subject.passes.close()
        if self._config.push == contract.PUSH_MODEL:
            subject.step_optimizer(step.samples)
        self._clock.bucket_ready()
        loss = self._losses.commit()
        with self._waiting():
            applied = self._push(step, loss)
        subject.drop_gradients_of_lacking()
        self._clock.bucket_done()
        if applied:
            self._book(step, loss)
        else:
            self._metrics.state.steps_replayed += 1
            self._accounts.mark_as_replay()
            self._clock.restart()
        return applied

    def _push(self, step: RunningStep, loss: torch.Tensor | None) -> bool:
        """Send it, and take over what comes back, if the job is not over; whether it was applied."""
        grant, line, trained = self._grant, self._line, self._subject.trained
        assert grant is not None and line is not None
        is_model = self._config.push == contract.PUSH_MODEL
        counted = self._subject.loss.counted
        reply = line.push(
            Update(
                grant.incarnation,
                grant.lease,
                grant.position[0],
                step.samples,
                self._clock.own_seconds,
                float("nan") if loss is None else float(loss),
                step.count if counted else step.samples,
                self._exchange.done,
            ),
            trained if is_model else [each.grad for each in trained],
            apart=bool(self._subject.after_step),
        )
        if self._follow(reply, books=True):
            return self._grant is not None and self._grant.applied
        if not self._stop.requested:
            log.warning("step %d: what was computed is lost with the connection", self._state.position.step)
            self._enter()
        return False

    def _book(self, step: RunningStep, loss: torch.Tensor | None) -> None:
        position, plans = self._state.position, self._plans
        weight = step.count if self._subject.loss.counted else step.samples
        self._accounts.commit(
            Committed(
                time.time(),
                position.step,
                step.epoch,
                plans.active.version,
                plans.batch_size,
                step.samples,
                1.0,
                self._clock.finish(),
                loss,
                self._accounts.take_mark(),
                weight,
                weight,
            )
        )
        self._losses.signals()  # nobody asks this worker for its part
        for function in self._subject.after_step:
            function()
        if self._subject.after_step and self._grant is not None:
            self._take_model(self._grant)  # last, for the server's model has been changed by these functions, too

    def drop(self, why: str) -> None:
        """Undo the running step; its samples are still this worker's."""
        log.warning("step %d is given up: %s", self._state.position.step, why)
        self._forget()

    # --- what the server says -----------------------------------------------------------------------------------

    @property
    def _given(self) -> Share:
        assert self._grant is not None and self._grant.share
        return Share(*self._grant.share)

    def _enter(self) -> None:
        """Enter at the server, also a new one, until it gives this worker something to compute, or the job is over, or
        this worker is asked to stop."""
        traits = json.dumps(traits_of(self._subject, self._state, self._evaluation))
        with self._waiting():
            while not self._stop.requested:
                assert self._line is not None
                if self._follow(self._line.enter(Enter(traits))):
                    return
                time.sleep(_AGAIN_SECONDS)

    def _follow(self, reply: Reply | None, *, books: bool = False) -> bool:
        """Do as the server says; False if this worker is to enter again. With `books` the model that comes with an
        update that was applied is taken over once that is booked, if the script has something to do then. Raises
        SystemExit(0) if the job goes on without it, ValueError if its script is not the server's."""
        match reply:
            case Grant():
                self._take(reply)
                if not (books and reply.applied and self._subject.after_step):
                    self._take_model(reply)
                return True
            case Left(why=why):
                self._leaving.leave_the_others(why)
            case TurnedAway(why=why, again=False):
                raise ValueError(why)
            case TurnedAway(why=why):
                log.warning("the parameter server has turned this worker away: %s", why)
        return False

    def _take(self, grant: Grant) -> None:
        """Take over what has changed beside the model. Raises PeerError for what no server would say."""
        state, shown = self._state, self._metrics.state
        step, epoch, cursor = _position(grant)
        self._grant = grant
        if grant.plan:
            self._adopt(grant.plan)
        before = state.position
        if grant.share:
            given = Share(*grant.share)
            # Samples that another worker gave back may be of an earlier epoch, to which no script goes back.
            epoch, cursor = max(before.epoch, given.epoch), given.start
        state.position = after = Position(step, epoch, cursor)
        # After the server's restart the job may be at an earlier step, whose schedules were stepped here.
        for number in range(self._scheduled + 1, after.step + 1):
            ended = after.epoch - before.epoch if number == after.step else 0
            self._subject.schedules.step(number, after.epoch, epochs=ended)
            self._scheduled = number
        news = parse_news(grant.news.encode())
        shown.step, shown.epoch, shown.loss = after.step, after.epoch, news.loss
        state.epoch_loss.last = news.epoch_loss
        self._evaluation.take_over(news.evaluation | {"target_reached": False})  # the server says when the job is over
        self._exchange.done_agreed = not grant.share

    def _take_model(self, grant: Grant) -> None:
        assert self._line is not None
        self._line.take(grant)

    def _adopt(self, document: str) -> None:
        assert self._worker is not None
        plan = parse_plan(document)
        rank = plan.rank_of(self._worker.name, self._worker.uid)
        if rank is None:
            raise PeerError(f"the server gives samples by plan {plan.version}, which does not name this worker")
        self._plans.adopt(plan, rank)


def _position(grant: Grant) -> tuple[int, int, int]:
    if len(grant.position) != 3 or len(grant.share) not in (0, 3) or len(grant.ahead) not in (0, 3):
        raise PeerError("a grant of the parameter server cannot be understood: expected three numbers of each place")
    step, epoch, cursor = grant.position
    return step, epoch, cursor
