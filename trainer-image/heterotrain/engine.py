"""The protocol of a step: begin, compute, commit; and at the boundaries between steps, everything else.

All ranks take every decision at the same boundary from the same facts (position, plan, and what the control
collective summed), so none needs a vote. If all of a step's buckets completed on one rank, every rank contributed: so a
rank commits when its buckets completed. A failed step changes nothing and comes again, under new groups.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from heterotrain import checkpoint, contract, sampler
from heterotrain.checkpoint import CheckpointError
from heterotrain.contract import Plan, StepRecord, TrainingConfig, parse_plan
from heterotrain.control import PendingSignals, Signals, broadcast_bytes, broadcast_document
from heterotrain.gradient import ElasticModel, StepReduction, sample_weight
from heterotrain.membership import Generation, MembershipError, Rendezvous
from heterotrain.metrics import Series, WorkerMetrics
from heterotrain.planfile import PlanFile
from heterotrain.sampler import Position
from heterotrain.timing import clock_for
from heterotrain.worker import StopRequest, Worker

log = logging.getLogger(__name__)

_PLAN_POLL_SECONDS = 0.05
# A collective that keeps failing is no passing fault; the operator restarts the job from its checkpoint then.
_MOST_REPLAYS_OF_A_STEP = 5


class Engine:
    """One worker's side of the training; the script reaches it only through what the session returns."""

    def __init__(
        self,
        *,
        config: TrainingConfig,
        worker: Worker | None,
        plan: Plan | None,
        plan_file: PlanFile | None,
        model: ElasticModel,
        optimizer: torch.optim.Optimizer,
        dataset_length: int,
        loss_reduction: str,
        ddp_options: dict[str, Any],
        device: torch.device,
        metrics: WorkerMetrics,
        series: Series,
        stop: StopRequest,
    ) -> None:
        """`plan` is given for a run alone; in a job `worker` and `plan_file` are."""
        self.registered: dict[str, Any] = {}
        self.position = Position()
        self.rank = 0
        self.finished = False
        self.stopped = False
        self._config = config
        self._worker = worker
        self._plan = plan
        self._plan_file = plan_file
        self._model = model
        self._optimizer = optimizer
        self._dataset_length = dataset_length
        self._loss_reduction = loss_reduction
        self._ddp_options = ddp_options
        self._device = device
        self._metrics = metrics
        self._series = series
        self._stop = stop
        self._clock = clock_for(device)
        self._rendezvous: Rendezvous | None = None
        self._generation: Generation | None = None
        self._reduction: StepReduction | None = None
        self._pending_plan: Plan | None = None
        self._announced: Plan | None = None
        self._order: tuple[int, torch.Tensor] | None = None
        self._open = False  # a batch is out and not committed yet
        self._scaled = False
        self._samples = 0  # of the running step, all ranks
        self._slice = (0, 0)
        self._signals: PendingSignals | None = None
        self._loss: torch.Tensor | None = None
        self._previous: tuple[float, float] = (
            0.0,
            0.0,
        )  # the last committed step's loss contribution and weight
        self._recent_losses: deque[float] = deque(maxlen=config.target_every_steps)
        self._stop_agreed = False
        self._target_reached = False
        self._mark = "first"
        self._replays = 0
        self._saved_step = 0  # the newest step that needs no checkpoint; equal on all ranks at a boundary

    # --- what the session and the iterator ask ------------------------------------------------------------------

    @property
    def in_collective(self) -> bool:
        """Whether this worker has done its own part of the step and only waits for the others."""
        return self._reduction is not None and self._reduction.in_collective

    @property
    def has_samples(self) -> bool:
        """Whether the running step gives this worker any samples."""
        return self._slice[1] > self._slice[0]

    def indices(self) -> list[int]:
        """This worker's samples of the running step."""
        epoch, cursor = self.position.epoch, self.position.cursor
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, sampler.epoch_order(self._dataset_length, self._config.seed, epoch))
        start, stop = self._slice
        return [int(index) for index in self._order[1][cursor + start : cursor + stop]]

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """See `Session.scale`."""
        if not self._open:
            raise RuntimeError("session.scale() was called outside the loop over the batches")
        start, stop = self._slice
        scaled = loss * sample_weight(stop - start, self._samples, self._loss_reduction)
        contribution = scaled.detach()
        self._loss = contribution if self._loss is None else self._loss + contribution
        self._scaled = True
        return scaled

    # --- the life of a job --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Become a member, take over the newest checkpoint, and stand before the first step.

        Raises MembershipError, CheckpointError; SystemExit(143) if asked to stop meanwhile.
        """
        if self.finished or self._generation is not None:
            raise RuntimeError("the batches end with the job; they cannot be iterated twice")
        if self._worker is not None:
            self._await_membership(self._worker)
        self._follow(self._require_plan())
        self._metrics.state.phase = contract.PHASE_TRAINING
        self._clock.restart()

    def begin_step(self) -> bool:
        """Go to the next step that is to be computed; False when the job is done.

        Raises RuntimeError if the script did not commit the batch that it got.
        """
        if self._open:
            raise RuntimeError(
                "optimizer.step() was not called for the batch before; every batch must be committed once"
            )
        while True:
            if self._broken:
                self._reform()
            elif self._stop_agreed or (self._generation is None and self._stop.requested):
                self._leave_on_request()
            elif self._done:
                if self._leave_together():
                    return False
            else:
                self._switch_plan()
                self._checkpoint_if_due()
                self._open_step()
                return True

    def step_without_samples(self) -> None:
        """Do a whole step in which this worker has no samples."""
        # Scripts clear gradients before backward or after the step; this step stands in for either kind.
        self._optimizer.zero_grad()
        self._model.contribute_nothing()
        self._scaled = True
        self.commit()
        self._optimizer.zero_grad()

    def commit(self) -> None:
        """Commit the running step, or drop it if its gradients did not arrive. See `ElasticOptimizer.step`."""
        if not self._open:
            raise RuntimeError("optimizer.step() was called without a new batch")
        if not self._scaled:
            raise RuntimeError("the loss did not go through session.scale(); its gradient would be weighted wrongly")
        self._open = False
        reduction = self._reduction
        if reduction is None:
            self._clock.bucket_ready()
        else:
            reduction.in_collective = False
            if reduction.error is not None:
                log.warning("step %d failed and will be replayed: %s", self.position.step, reduction.error)
                self._optimizer.zero_grad()
                return
        if self.has_samples or self._generation is not None:
            self._optimizer.step()
        self._settle()

    # --- inside a step ------------------------------------------------------------------------------------------

    def _open_step(self) -> None:
        plan = self._require_plan()
        self._samples = sampler.step_samples(self._dataset_length, self.position.cursor, plan.global_batch_size)
        self._slice = sampler.rank_slice(plan.batch_sizes, self.rank, self._samples)
        if self._samples < plan.global_batch_size:
            self._mark = self._mark or "partial"
        self._open, self._scaled, self._loss = True, False, None
        self._announced = self._newer_plan()
        loss, weight = self._previous
        finite = math.isfinite(loss)
        signals = Signals(
            samples=self._slice[1] - self._slice[0],
            stop=float(self._stop.requested),
            loss=loss if finite else 0.0,
            loss_weight=weight if finite else 0.0,
            nonfinite=float(not finite),
            plan_version=self._announced.version if self._announced else 0,
            plan_bytes=len(self._announced.to_json()) if self._announced else 0,
        )
        try:
            self._signals = PendingSignals(signals, self._generation.control if self._generation else None)
        except RuntimeError as error:
            self._signals = None
            self._fail(error)

    def _settle(self) -> None:
        """The step is committed: count it, then learn what the others had to say."""
        times = self._clock.finish()
        start, stop = self._slice
        samples, weight = stop - start, (stop - start) / self._samples
        loss = math.nan if self._loss is None else float(self._loss)
        plan = self._require_plan()
        batch = plan.members[self.rank].batch_size
        if not self._mark:
            self._metrics.counters.add(samples, times.own, times.wait, self._config.smoothing)
        self._series.write(
            StepRecord(
                time=time.time(),
                step=self.position.step,
                epoch=self.position.epoch,
                version=plan.version,
                batch=batch,
                samples=samples,
                own=times.own,
                wait=times.wait,
                loss=loss if samples and math.isfinite(loss) else None,
                mark=self._mark,
            )
        )
        self._mark = ""
        self._replays = 0
        self._previous = (loss, weight) if samples else (0.0, 0.0)
        self.position = sampler.advance(self.position, self._samples, self._dataset_length)
        self._show_progress()
        self._hear()

    def _hear(self) -> None:
        """Read the control collective, and the plan that it announces."""
        if self._signals is None:
            return
        try:
            signals = self._signals.read()
            if signals.plan_bytes:
                self._receive_plan(int(signals.plan_bytes))
        except RuntimeError as error:
            self._fail(error)
            return
        assert signals.samples == self._samples, f"ranks share {signals.samples} of {self._samples} samples"
        self._stop_agreed = signals.stop > 0
        state = self._metrics.state
        if signals.nonfinite:
            state.steps_nonfinite += 1
            if self.rank == 0:
                log.warning("step %d: the loss is no finite number", self.position.step - 2)
        if signals.loss_weight > 0:
            state.loss = signals.loss / signals.loss_weight
            self._recent_losses.append(state.loss)
            target, recent = self._config.target_loss, self._recent_losses
            if target is not None and len(recent) == recent.maxlen and sum(recent) / len(recent) <= target:
                self._target_reached = True

    def _fail(self, error: RuntimeError) -> None:
        assert self._reduction is not None
        self._reduction.fail(error)

    @property
    def _broken(self) -> bool:
        return self._reduction is not None and self._reduction.error is not None

    @property
    def _done(self) -> bool:
        config = self._config
        by_steps = config.steps is not None and self.position.step >= config.steps
        by_epochs = config.epochs is not None and self.position.epoch >= config.epochs
        return by_steps or by_epochs or self._target_reached

    def _show_progress(self) -> None:
        state = self._metrics.state
        state.step, state.epoch = self.position.step, self.position.epoch
        config, batch = self._config, self._require_plan().global_batch_size
        if config.steps is not None:
            state.total_steps = config.steps
        elif config.epochs is not None:
            rest_of_epoch = math.ceil((self._dataset_length - self.position.cursor) / batch)
            epochs_after = config.epochs - self.position.epoch - 1
            rest = rest_of_epoch + epochs_after * math.ceil(self._dataset_length / batch)
            state.total_steps = self.position.step + max(0, rest)

    # --- plans --------------------------------------------------------------------------------------------------

    def _require_plan(self) -> Plan:
        assert self._plan is not None
        return self._plan

    def _newer_plan(self) -> Plan | None:
        """What only the leader looks for: a plan newer than what all have."""
        if self._plan_file is None or self.rank != 0:
            return None
        return self._plan_file.newest(self._pending_plan or self._plan)

    def _receive_plan(self, length: int) -> None:
        """All ranks: the plan's bytes from the leader; it applies at the next step, or the next epoch's first."""
        assert self._generation is not None
        data = None if self._announced is None else self._announced.to_json().encode()
        self._pending_plan = parse_plan(broadcast_bytes(data, length, 0, self._generation.control))

    def _switch_plan(self) -> None:
        plan = self._pending_plan
        if plan is not None and (plan.apply_at == "step" or self.position.cursor == 0):
            self._pending_plan = None
            self._follow(plan)

    def _follow(self, plan: Plan) -> None:
        self._plan = plan
        self._metrics.follow(plan, plan.members[self.rank].batch_size)
        self._mark = self._mark or "first"
        self._show_progress()
        if self._worker is not None:
            log.info(
                "step %d: following plan %d: %d of %d samples",
                self.position.step,
                plan.version,
                plan.members[self.rank].batch_size,
                plan.global_batch_size,
            )

    # --- membership ---------------------------------------------------------------------------------------------

    def _check_stop(self) -> None:
        if self._stop.requested:
            self._leave_on_request()

    def _await_membership(self, worker: Worker) -> None:
        """Wait until a plan holds this very worker, meet the others, and share the newest checkpoint."""
        assert self._plan_file is not None
        state = self._metrics.state
        state.phase = contract.PHASE_WAITING
        while True:
            self._check_stop()
            plan = self._plan_file.newest()
            rank = plan.rank_of(worker.name, worker.uid) if plan else None
            if plan is not None and rank is not None:
                break
            time.sleep(_PLAN_POLL_SECONDS)
        state.phase = contract.PHASE_STARTING
        self._plan, self.rank = plan, rank
        state.plan_version, state.generation = plan.version, plan.generation
        deadline = self._config.startup_deadline_seconds
        self._rendezvous = Rendezvous(
            plan,
            rank,
            self._device.type,
            deadline_seconds=deadline,
            spare_port=worker.metrics_port,
            check_stop=self._check_stop,
        )
        self._generation = self._rendezvous.meet(deadline)
        self._resume(self._generation)
        self._attach(self._generation)

    def _attach(self, generation: Generation) -> None:
        try:
            self._reduction = self._model.attach(generation, self._clock, self._device, self._ddp_options)
        except RuntimeError as error:
            # The groups broke while the wrapper was made: nothing is summed with them, they are to be made anew.
            self._reduction = StepReduction(generation, self._clock)
            self._reduction.fail(error)

    def _reform(self) -> None:
        """Meet the same members again after a failure; whoever committed most is right.

        Raises MembershipError if they do not all come back in time: then a restart from the checkpoint is due.
        """
        assert self._rendezvous is not None
        assert self._generation is not None
        assert self._reduction is not None
        self._replays += 1
        if self._replays > _MOST_REPLAYS_OF_A_STEP:
            raise MembershipError(
                f"step {self.position.step} failed {self._replays} times in a row: {self._reduction.error}"
            )
        state = self._metrics.state
        state.phase = contract.PHASE_REFORMING
        state.steps_replayed += 1
        self._optimizer.zero_grad()
        self._model.detach()
        self._generation.leave()
        self._generation = self._rendezvous.meet(self._config.progress_timeout_seconds)
        log.info("group %s formed at step %d", self._generation.number, self.position.step)
        self._reduction = StepReduction(self._generation, self._clock)
        try:
            self._agree(self._generation)
        except RuntimeError as error:
            self._fail(error)
            return
        self._attach(self._generation)
        self._mark = "replay"
        self._clock.restart()
        state.phase = contract.PHASE_TRAINING

    def _agree(self, generation: Generation) -> None:
        """After a failure: survivors may differ by one step; the highest committed one becomes everybody's."""
        steps = torch.zeros(generation.world_size, dtype=torch.int64)
        steps[self.rank] = self.position.step
        dist.all_reduce(steps, group=generation.control)
        newest = int(steps.max())
        source = int(steps.argmax())
        mine = self._shared_facts() if self.rank == source else None
        facts = json.loads(broadcast_document(mine, source, generation.control))
        self._plan = parse_plan(facts["plan"])
        self._pending_plan = parse_plan(facts["pending"]) if facts["pending"] else None
        self._recent_losses.extend(facts["losses"])
        self._target_reached = facts["target_reached"]
        if int(steps.min()) < newest:
            state = checkpoint.pack(self._state()) if self.rank == source else None
            received = broadcast_document(state, source, generation.control)
            if self.position.step < newest:
                self._load(checkpoint.unpack(received))
                self._previous = (0.0, 0.0)

    def _shared_facts(self) -> bytes:
        return json.dumps(
            {
                "plan": self._require_plan().to_json(),
                "pending": self._pending_plan.to_json() if self._pending_plan else None,
                "losses": list(self._recent_losses),
                "target_reached": self._target_reached,
            }
        ).encode()

    def _leave_together(self) -> bool:
        """At the job's end, wait for all to have committed the last step; False if that failed and is to be mended."""
        if self._generation is not None:
            try:
                dist.barrier(group=self._generation.control)
            except RuntimeError as error:
                self._fail(error)
                return False
            self._save()
            self._dissolve()
        self.finished = True
        self._metrics.state.phase = contract.PHASE_FINISHED
        return True

    def _dissolve(self) -> None:
        assert self._generation is not None
        self._model.detach()
        self._reduction = None
        self._generation.leave()

    def _leave_on_request(self) -> None:
        """Save what is committed and leave in order. Raises SystemExit(143)."""
        self.stopped = True
        self._save()
        log.info("asked to stop: leaving after step %d", self.position.step)
        raise SystemExit(contract.EXIT_PREEMPTED)

    # --- checkpoints --------------------------------------------------------------------------------------------

    def _checkpoint_if_due(self) -> None:
        every = self._config.checkpoint_every_steps
        step = self.position.step
        if self._config.checkpoint_path and step != self._saved_step and step % every == 0:
            self._save()
            self._saved_step = step
            # Everybody's next step holds the leader's writing, as own time there and as waiting elsewhere.
            self._mark = self._mark or "checkpoint"

    def _save(self) -> None:
        """The leader writes a checkpoint of what it has committed. Raises CheckpointError."""
        folder = self._config.checkpoint_path
        if self._worker is None or folder is None or self.rank != 0 or self.position.step == self._saved_step:
            return
        state, phase = self._metrics.state, self._metrics.state.phase
        state.phase = contract.PHASE_CHECKPOINTING
        data = checkpoint.pack(self._state())
        checkpoint.write(Path(folder), self.position.step, data, self._config.checkpoint_keep)
        self._saved_step = self.position.step
        log.info("checkpoint of step %d written", self.position.step)
        state.phase = phase

    def _state(self) -> dict[str, Any]:
        return {
            "schema": checkpoint.SCHEMA,
            "step": self.position.step,
            "epoch": self.position.epoch,
            "cursor": self.position.cursor,
            "seed": self._config.seed,
            "dataset_length": self._dataset_length,
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "registered": {name: each.state_dict() for name, each in self.registered.items()},
        }

    def _load(self, state: dict[str, Any]) -> None:
        """Raises CheckpointError if the state does not fit this job, model or optimizer."""
        position = checkpoint.check_fits(state, seed=self._config.seed, dataset_length=self._dataset_length)
        try:
            self._model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
            for name, each in self.registered.items():
                each.load_state_dict(state["registered"][name])
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(f"the checkpoint of step {position.step} does not fit: {error}") from error
        self.position = position

    def _resume(self, generation: Generation) -> None:
        """The leader alone reads; everybody gets the same bytes, or none if there is no checkpoint."""
        data = b""
        if self.rank == 0 and self._config.checkpoint_path:
            data = checkpoint.read_newest(Path(self._config.checkpoint_path)) or b""
        data = broadcast_document(data if self.rank == 0 else None, 0, generation.control)
        if data:
            self._load(checkpoint.unpack(data))
            self._saved_step = self.position.step
            log.info("resumed at step %d, epoch %d", self.position.step, self.position.epoch)
