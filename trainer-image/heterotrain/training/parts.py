"""The parts of a worker's life, and how they are put together: each is given those before it that it uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from heterotrain import contract
from heterotrain.data.evaluation import Evaluation
from heterotrain.data.sampler import Rules
from heterotrain.gradients.losses import Losses
from heterotrain.reporting.timing import StepClock, clock_for
from heterotrain.state.batch_norm import (
    GOOD_SAMPLES_WITH_BATCH_NORM,
    LEAST_SAMPLES_WITH_BATCH_NORM,
    has_batch_norm,
)
from heterotrain.state.replica_check import ReplicaChecksum
from heterotrain.state.replica_watch import ReplicaWatch
from heterotrain.state.snapshot import Snapshots, Written
from heterotrain.state.training_state import TrainingState
from heterotrain.training.accounts import Accounts
from heterotrain.training.asynchronous import Asynchronous
from heterotrain.training.context import Context
from heterotrain.training.exchange import Exchange
from heterotrain.training.group import Group
from heterotrain.training.leaving import Leaving
from heterotrain.training.progress import TrainingProgress
from heterotrain.training.protocol import StepProtocol
from heterotrain.training.saving import Saving
from heterotrain.training.served_group import ServedGroup
from heterotrain.training.serving import Serving
from heterotrain.training.step_parts import StepParts
from heterotrain.training.subject import Subject
from heterotrain.training.synchronous import Synchronous
from heterotrain.training.warming import WarmUp


@dataclass(frozen=True, slots=True)
class Parts:
    """One of each; `clock` times the steps, and `step` is the protocol that the workers follow in them."""

    context: Context
    subject: Subject
    state: TrainingState
    evaluation: Evaluation
    clock: StepClock
    accounts: Accounts
    exchange: Exchange
    group: Group
    saving: Saving
    leaving: Leaving
    step: StepProtocol
    warm_up: WarmUp
    progress: TrainingProgress
    join: Callable[[], None] | None
    """How it joins its job, if not by meeting the other workers."""


def put_together(context: Context, subject: Subject) -> Parts:
    """The parts of a worker that has not joined its job yet. What the operator is to know of it is exported by then."""
    config, worker, plans = context.config, context.worker, context.plans
    normalises = has_batch_norm(subject.module)
    _export(context, normalises=normalises)
    state = _state_of(context, subject)
    evaluation = Evaluation(config)
    least = LEAST_SAMPLES_WITH_BATCH_NORM if normalises else 1
    rules = Rules(subject.order.length, least, config.last_step, config.epochs, config.steps, config.endless)
    clock = clock_for(subject.device)
    losses = Losses(config.reaches_target_loss, config.target_every_steps, state.epoch_loss)
    on_gpu = subject.device.type == "cuda"
    accounts = Accounts(losses, context.metrics, context.series, config.smoothing, one_later=on_gpu)
    checksum = ReplicaChecksum(subject.module, subject.optimizer)
    exchange = Exchange(plans, losses, context.stop, ReplicaWatch(subject.hyperparameters, checksum, state))
    is_asynchronous = worker is not None and config.mode == contract.ASP
    group = (ServedGroup if is_asynchronous else Group)(
        subject=subject,
        state=state,
        plans=plans,
        losses=losses,
        exchange=exchange,
        clock=clock,
        evaluation=evaluation,
    )
    saving = Saving(context, state, group, accounts)
    leaving = Leaving(context, state, group=group, exchange=exchange, accounts=accounts, saving=saving)
    shared = StepParts(context, subject, state, rules, group, accounts)
    step: StepProtocol
    join = None
    if worker is not None and isinstance(group, ServedGroup):
        plans.is_served = evaluation.is_elsewhere = not worker.serves
        step = group.link = made = (Serving if worker.serves else Asynchronous)(shared, leaving, evaluation)
        join = partial(made.join, worker)
    else:
        step = Synchronous(shared)
    return Parts(
        context=context,
        subject=subject,
        state=state,
        evaluation=evaluation,
        clock=clock,
        accounts=accounts,
        exchange=exchange,
        group=group,
        saving=saving,
        leaving=leaving,
        step=step,
        warm_up=WarmUp(shared),
        # An asynchronous step has the samples of one worker, however many those are by the plan that is to come.
        progress=TrainingProgress(
            shared, evaluation, None if worker is None or is_asynchronous else worker.global_batch_size
        ),
        join=join,
    )


def _export(context: Context, *, normalises: bool) -> None:
    """What plans for this worker rest on: whether its members may end, and how many samples suit what it trains."""
    shown = context.metrics.state
    if context.worker is not None and context.worker.elastic:
        shown.protocol = contract.MEMBERS_MAY_END
    shown.least_batch_size = GOOD_SAMPLES_WITH_BATCH_NORM if normalises else 1


def _state_of(context: Context, subject: Subject) -> TrainingState:
    metrics = context.metrics

    def wrote(written: Written) -> None:
        metrics.state.checkpoint = written

    return TrainingState(
        subject.module,
        subject.optimizer,
        subject.order.length,
        context.config,
        "" if context.worker is None else context.worker.job_uid,
        snapshots=Snapshots(metrics.memory, wrote),
        order=subject.order,
    )
