"""The parameter server's side of asynchronous training: a worker that never has samples, and applies those of others.

Its script is the workers' own, so model, optimizer, schedules, evaluation and checkpoints are what the script has made.
Its loop yields nothing. Each update that is accepted is a step of the job: `begin` waits for it, `compute_nothing` puts
its gradient where the script's backward would, and `commit` steps the optimizer. Parameters go out in `begin`, so
whatever is due between two steps (an evaluation, a checkpoint, the script's own code between epochs) lets the workers
wait. Who may go on, and what is applied, is decided in `heterotrain/asynchronous`.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import time
from collections.abc import Iterator
from typing import Any

import torch

from heterotrain import contract
from heterotrain.asynchronous import service as rules_of_service
from heterotrain.asynchronous.ledger import Ledger, LedgerError
from heterotrain.asynchronous.service import Accepted, Bound, Refused, Service
from heterotrain.contract import Plan, Server
from heterotrain.data.evaluation import Evaluation
from heterotrain.data.sampler import Position, Share
from heterotrain.groups.generation import STOP_SECONDS
from heterotrain.groups.peering.messages import EndJob, Enter, Grant, Update
from heterotrain.groups.peering.own_sockets import split_address
from heterotrain.groups.peering.server import PeerServer
from heterotrain.job.plans import served_view
from heterotrain.job.worker import Worker
from heterotrain.peers import PeerError, parse_traits
from heterotrain.state.checkpoint import CheckpointError
from heterotrain.training.applying import Applying
from heterotrain.training.layout import Layout, are_finite
from heterotrain.training.leaving import Leaving
from heterotrain.training.server_port import DIFFERENT, LEASE, Caller, ServerPort
from heterotrain.training.step_parts import StepParts
from heterotrain.training.traits import traits_of

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2  # between two looks at the plan, and at whether this process is to stop
_MOST_NONFINITE = 5  # updates in a row that are no numbers
_CLOSING_SECONDS = 1.0
LATE, NONFINITE = "late", "nonfinite"


class Serving:
    """The server's side of each update; a `StepProtocol`, its group's `Link`, and its state's `KeptLedger`."""

    serves = True
    share: Share | None = None

    def __init__(self, parts: StepParts, leaving: Leaving, evaluation: Evaluation) -> None:
        context, config, rules = parts.context, parts.context.config, parts.rules
        self.in_collective = False
        self.is_open = False
        parts.state.ledger = self
        self._context = context
        self._subject = parts.subject
        self._state = parts.state
        self._rules = rules
        self._leaving = leaving
        self._evaluation = evaluation
        self._plans = context.plans
        self._metrics = context.metrics
        self._exchange = parts.group.exchange
        self._bound = Bound(config.max_staleness, config.late)
        self._ledger = Ledger(rules)
        self._service = Service(self._ledger, self._bound, "")
        self._applying = Applying(parts)
        self._traits: dict[str, str] = {}
        self._port: ServerPort | None = None
        self._newest: Plan | None = None  # that this server has seen
        self._callers: dict[str, Caller] = {}  # who has entered, by UID
        self._knocking: dict[str, Caller] = {}  # whom the plan does not name yet
        self._looked = -math.inf
        self._begins_by = math.inf  # with those who have entered
        self._accepted: tuple[Accepted, Caller, Update] | None = None
        self._frozen: list[tuple[int, int]] = []  # by which changes of what is not trained show
        self._frozen_version = 0
        self._nonfinite = 0  # in a row
        self._is_over = False

    # --- the job ------------------------------------------------------------------------------------------------

    def join(self, worker: Worker) -> None:
        """Wait until a plan names this server, begin with the newest checkpoint, and listen. Raises OSError if the
        address cannot be had, CheckpointError; SystemExit(143) if asked to stop meanwhile."""
        shown, config = self._metrics.state, self._context.config
        shown.phase = contract.PHASE_WAITING
        while (server := self._look(worker.uid)) is None:
            if self._context.stop.requested:
                self._leaving.leave_on_request()
            time.sleep(_LOOK_SECONDS)
        shown.phase = contract.PHASE_STARTING
        self._state.resume()
        self._applying.layout = layout = Layout(self._subject.module, self._subject.trained)
        self._frozen = self._subject.marks_of_frozen()
        self._traits = traits_of(self._subject, self._state, self._evaluation)
        self._service = Service(self._ledger, self._bound, secrets.token_hex(8), self._state.position.step)
        host, port = split_address(server.address)
        host = host if host.startswith("127.") else ""
        job = worker.job_uid or worker.job
        peers = PeerServer(job, worker.name, worker.uid, secret=worker.secret, host=host, port=port)
        self._port = ServerPort(peers, layout, config.heartbeat_timeout_seconds, self._metrics.server.refused)
        self._follow()
        self._begins_by = time.monotonic() + config.startup_deadline_seconds

    def start(self) -> None:
        """The job begins, or goes on; what this process draws at random changes nothing."""

    def exchange_alone(self) -> None:
        """While the plan holds: look for another one."""
        self._look()

    def job_is_over(self) -> None:
        """The job's last update is applied."""
        self._is_over = True

    def end_job(self) -> None:
        """The script has ended the job, which is over by that."""

    def close(self) -> None:
        """Listen no more; or, if the job is over, give all workers the final parameters, and from then on, as long as
        this process runs, say to those who come too late that it is over."""
        port, self._port = self._port, None
        if port is None:
            return
        if self._is_over:
            self._say_goodbye(port)
            port.say_that_all_is_over(self._knocking.values())
        else:
            port.close(_CLOSING_SECONDS)

    def _say_goodbye(self, port: ServerPort) -> None:
        self._service.finish()
        config, stop, now = self._context.config, self._context.stop, time.monotonic()
        deadline, redials_by = now + config.progress_timeout_seconds, now + config.heartbeat_timeout_seconds
        absent = {each.uid for each in self._published.members}  # and perhaps about to connect again
        while stop.seconds <= STOP_SECONDS:  # the script has something to do afterwards
            self._grant_to_all(port)
            absent -= self._callers.keys()
            until = deadline if self._callers else redials_by if absent else -math.inf
            seconds = min(until - time.monotonic(), _LOOK_SECONDS)
            event = port.next(seconds) if seconds > 0 else None
            if event is not None:
                self._receive(port, *event)
            elif until <= time.monotonic():
                break
        if self._callers:
            log.warning(
                "%s did not take the final parameters in time", ", ".join(each.name for each in self._callers.values())
            )

    # --- the ledger in checkpoints ------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """What a checkpoint keeps of the ledger."""
        return self._ledger.document()

    def load(self, document: object, position: Position) -> None:
        """Go on with a checkpoint's ledger, or after a position up to which all samples were applied, without one.
        Raises CheckpointError."""
        try:
            self._ledger = Ledger(self._rules, position) if document is None else Ledger.of(document, self._rules)
        except LedgerError as error:
            raise CheckpointError(str(error)) from error

    # --- plans --------------------------------------------------------------------------------------------------

    def _look(self, uid: str = "") -> Server | None:
        """Look for a newer plan, and note that it is to be followed. Returns this server as a new plan names it; its
        UID is needed at first alone. Raises SystemExit(0) if another server has taken its place."""
        self._looked = time.monotonic()
        plan, newest = self._plans.in_volume(), self._newest
        if plan is None or plan.server is None or (newest is not None and plan.version <= newest.version):
            return None
        if newest is None:
            if plan.server.uid != uid:
                return None
            self._newest = self._plans.published = plan
            self._plans.adopt(served_view(plan), 0)
            return plan.server
        assert newest.server is not None
        if plan.server.uid != newest.server.uid:
            self._leaving.leave_the_others("another parameter server has taken this one's place")
        same = [each.uid for each in plan.members] == [each.uid for each in newest.members]
        self._newest = plan
        self._plans.propose(served_view(plan, at_once=not same))
        return plan.server

    def _follow(self) -> None:
        """The newest plan is active: give by it from here on."""
        plan = self._newest
        assert plan is not None and self._port is not None
        self._plans.published = plan
        now = time.monotonic()
        self._service.follow({each.uid: each.batch_size for each in plan.members})
        step, taken = self._state.position.step, (len(plan.members), plan.global_batch_size)
        log.info("step %d: following plan %d: %d workers with %d samples together", step, plan.version, *taken)
        for uid in [uid for uid in self._callers if uid not in self._service.workers]:
            self._port.let_go(self._callers.pop(uid), f"plan {plan.version} goes on without this worker")
        for uid in [uid for uid in self._knocking if plan.names(uid)]:
            self._enter(self._knocking.pop(uid), now)

    @property
    def _published(self) -> Plan:
        assert self._plans.published is not None
        return self._plans.published

    # --- what workers send --------------------------------------------------------------------------------------

    def _receive(self, port: ServerPort, caller: Caller, message: Enter | Update | EndJob | None) -> None:
        now = time.monotonic()
        caller.since = now
        match message:
            case None:
                if self._callers.get(caller.uid) is caller:
                    del self._callers[caller.uid]
                    self._service.leave(caller.uid)
                if self._knocking.get(caller.uid) is caller:
                    del self._knocking[caller.uid]
            case Enter():
                self._admit(port, caller, message, now)
            case Update():
                self._judge(port, caller, message, now)
            case EndJob():
                self._exchange.done_agreed = True
                if self._callers.get(caller.uid) is caller:
                    self._service.enter(caller.uid, now)

    def _admit(self, port: ServerPort, caller: Caller, message: Enter, now: float) -> None:
        own = self._traits
        try:
            theirs = parse_traits(message.traits.encode())
        except PeerError as error:
            theirs = {"traits": str(error)}
        differ = next((name for name in [*own, *theirs] if own.get(name) != theirs.get(name)), None)
        if differ is not None:
            what = f"{differ}: {theirs.get(differ, 'none')} there, {own.get(differ, 'none')} at the parameter server"
            port.turn_away(caller, DIFFERENT, f"its script is not the server's: {what}", again=False)
        elif self._published.names(caller.uid):
            self._enter(caller, now)
        else:
            self._knocking[caller.uid] = caller

    def _enter(self, caller: Caller, now: float) -> None:
        self._service.enter(caller.uid, now)
        caller.applied, caller.plan_version, caller.frozen_version = False, -1, -1
        self._callers[caller.uid] = caller
        log.info("step %d: %s has entered", self._state.position.step, caller.name)

    def _judge(self, port: ServerPort, caller: Caller, update: Update, now: float) -> None:
        caller.applied = False
        self._exchange.done_agreed |= update.ends
        asked = rules_of_service.Update(caller.uid, update.incarnation, update.lease, update.version)
        verdict: Accepted | Refused = Refused("another connection of this worker has taken its place")
        if self._callers.get(caller.uid) is caller:
            verdict = self._service.judge(asked, now)
        if isinstance(verdict, Accepted) and verdict.lease.samples != update.samples:
            verdict = Refused(f"lease {update.lease} has {verdict.lease.samples} samples, not {update.samples}")
        figures = self._metrics.server
        if isinstance(verdict, Refused) and verdict.late:
            if not self._service.is_over:
                figures.discarded(caller.name, LATE)
        elif isinstance(verdict, Refused):
            if self._callers.get(caller.uid) is caller:
                del self._callers[caller.uid]
                self._service.leave(caller.uid)
            port.turn_away(caller, LEASE, verdict.why, again=True)
        elif not are_finite(self._applying.layout.gradients(caller.room)):
            figures.discarded(caller.name, NONFINITE)
            self._drop_nonfinite(caller, verdict, now)
        else:
            self._accepted = verdict, caller, update

    def _drop_nonfinite(self, caller: Caller, verdict: Accepted, now: float) -> None:
        """Its samples go out again. Raises RuntimeError if such updates are all that comes."""
        self._nonfinite += 1
        self._metrics.state.steps_nonfinite += 1
        log.warning(
            "%s's gradient of samples %s is no finite number, and is dropped", caller.name, tuple(verdict.lease.share)
        )
        if self._nonfinite >= _MOST_NONFINITE:
            raise RuntimeError(
                f"{self._nonfinite} updates in a row were no finite numbers, the newest of samples "
                f"{tuple(verdict.lease.share)}: the training has diverged"
            )
        self._service.enter(caller.uid, now)

    # --- what they get ------------------------------------------------------------------------------------------

    def _grant_to_all(self, port: ServerPort) -> None:
        """Give the newest parameters to those who may go on."""
        now = time.monotonic()
        for grant in self._service.grants(now):
            caller = self._callers[grant.worker]
            plan = self._published
            step, epoch, cursor, _ = self._state.position
            self._metrics.server.waited(caller.name, max(0.0, now - caller.since))
            message = Grant(
                self._service.incarnation,
                0 if grant.lease is None else grant.lease.number,
                () if grant.lease is None else tuple(grant.lease.share),
                () if grant.ahead is None else tuple(grant.ahead.share),
                (step, epoch, cursor),
                caller.frozen_version != self._frozen_version,
                caller.applied,
                "" if caller.plan_version == plan.version else plan.to_json(),
                self._news(),
            )
            caller.plan_version, caller.frozen_version = plan.version, self._frozen_version
            port.grant(caller, message)

    def _news(self) -> str:
        evaluation = {key: value for key, value in self._evaluation.facts().items() if key != "target_reached"}
        losses = {"loss": self._metrics.state.loss, "epoch_loss": self._state.epoch_loss.last}
        return json.dumps(losses | {"evaluation": evaluation})

    # --- a step -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Wait for the next update that is accepted, but no longer than until something else may be due."""
        assert self._port is not None
        self._accepted, self.is_open = None, True
        if self._newest is not self._plans.published and self._plans.active.version == self._newest_version:
            self._follow()
        until = time.monotonic() + _LOOK_SECONDS
        if until > self._begins_by:
            self._begin_without_some()
        self.in_collective = True
        while self._accepted is None and (seconds := until - time.monotonic()) > 0:
            if time.monotonic() - self._looked >= _LOOK_SECONDS:
                self._look()
            self._grant_to_all(self._port)
            event = self._port.next(seconds)
            if event is not None:
                self._receive(self._port, *event)
            if self._exchange.done_agreed:
                break
        self.in_collective = False

    def _begin_without_some(self) -> None:
        missing, self._begins_by = self._service.missing(), math.inf
        if missing:
            names = [each.name for each in self._published.members if each.uid in missing]
            log.warning(
                "%s did not enter within runPolicy.startupDeadlineSeconds; the others begin without", ", ".join(names)
            )
            self._service.begin()

    @property
    def _newest_version(self) -> int:
        return -1 if self._newest is None else self._newest.version

    def next_part(self) -> bool:
        """An update is applied at once."""
        return False

    def coming(self) -> Iterator[Share]:
        """No samples are loaded here."""
        return iter(())

    def scale(self, loss: torch.Tensor, count: float | torch.Tensor | None) -> torch.Tensor:
        """Raises RuntimeError: no batch is computed here."""
        raise RuntimeError("session.scale() was called outside the loop over the batches")

    def compute_nothing(self) -> None:
        """Put the gradient that has come where the script's backward would have put its own."""
        if self._accepted is not None:
            _, caller, _ = self._accepted
            self._applying.put(caller.room)

    def commit(self) -> bool:
        """Apply the update; False if none has come."""
        self.is_open = False
        if self._accepted is None:
            return False
        accepted, caller, update = self._accepted
        share = self._service.share_of(caller.uid, accepted.lease.samples)
        self._applying.apply(accepted, caller.room, update, share)
        self._service.applied(accepted, time.monotonic())
        caller.applied, self._nonfinite = True, 0
        self._applying.book(accepted, caller.name, update)
        frozen = self._subject.marks_of_frozen()
        if frozen != self._frozen:
            self._frozen, self._frozen_version = frozen, self._frozen_version + 1
        return True

    def drop(self, why: str) -> None:
        """There is never a step under way that could be undone."""
