"""What a transformers.Trainer holds, trained in a session: `train(session, trainer)` in place of `trainer.train()`.

Trainer's own loop counts steps on each worker, and asks how many batches there will be: both fail where batches change
size and a worker may have none. So this is a short loop of its own around what is the Trainer's: model, data, collator,
loss, optimizer, schedule, clipping and callbacks, among which are its loggers (`report_to`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import find_batch_size
from torch import nn
from torch.utils.data import DataLoader
from transformers import TrainerCallback

from heterotrain.integrations import refuse_options
from heterotrain.job.launched import hide_from_frameworks
from heterotrain.session import Session

if TYPE_CHECKING:
    from transformers import Trainer

hide_from_frameworks()


def train(session: Session, trainer: Trainer) -> None:
    """Train until the job's end. Of the arguments, those of steps, epochs, batches, saving and logging are the job's.

    The loss is a mean over what Trainer counts, tokens that have a label mostly, of the global batch. With an
    `eval_strategy`, `session.metrics["eval_loss"]` is measured on the `eval_dataset`. Callbacks are called on every
    worker after each step, and where they write something only if `state.is_world_process_zero`, which follows the
    leader.

    Raises ValueError for what was asked for and is without effect here, such as fp16 and `compute_metrics`.
    """
    arguments = trainer.args
    batch_size = arguments.train_batch_size * arguments.gradient_accumulation_steps
    _check(trainer)
    model, optimizer, batches = session.prepare(
        trainer.model, trainer.create_optimizer(), _plain(trainer.get_train_dataloader(), batch_size), counted=True
    )
    session.register(schedule=trainer.create_scheduler(session.total_steps))
    _evaluate(session, trainer)
    events = _Events(session, trainer)
    session.after_step(events.after_step)
    model.train()
    for batch in batches:
        loss, count = _loss(trainer, model, batch)
        session.scale(loss, count).backward()  # type: ignore[no-untyped-call]
        if arguments.max_grad_norm:
            nn.utils.clip_grad_norm_(model.parameters(), arguments.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
    events.end()


_NOBODY_CALLS = (
    "on_step_begin",
    "on_substep_end",
    "on_pre_optimizer_step",
    "on_optimizer_step",
    "on_prediction_step",
    "on_save",
    "on_push_begin",
)
"""Events of callbacks that `Trainer.train()` has, and `train()` has not."""


class _Events:
    """Calls the Trainer's callbacks as its own loop would, after committed steps."""

    def __init__(self, session: Session, trainer: Trainer) -> None:
        self._session = session
        self._trainer = trainer
        trainer.callback_handler.optimizer = trainer.optimizer
        trainer.callback_handler.lr_scheduler = trainer.lr_scheduler
        self._begun = False
        self._epoch = session.epoch
        self._evaluated_step = -1

    def after_step(self) -> None:
        """A step is committed, on every worker."""
        session, trainer = self._session, self._trainer
        arguments, state, handler = trainer.args, trainer.state, trainer.callback_handler
        # Who leads may change, and is known only by now.
        state.is_world_process_zero = state.is_local_process_zero = session.leader
        if not self._begun:
            self._begun = True
            self._epoch = session.epoch
            state.max_steps, state.num_train_epochs = session.total_steps, math.ceil(arguments.num_train_epochs)
            state.compute_steps(arguments, state.max_steps)
            trainer.control = handler.on_train_begin(arguments, state, trainer.control)
            trainer.control = handler.on_epoch_begin(arguments, state, trainer.control)
        self._evaluated()
        state.global_step, state.epoch = session.step, session.step / session.steps_per_epoch
        trainer.control = handler.on_step_end(arguments, state, trainer.control)
        if session.epoch != self._epoch:
            self._epoch = session.epoch
            trainer.control = handler.on_epoch_end(arguments, state, trainer.control)
            trainer.control = handler.on_epoch_begin(arguments, state, trainer.control)
        if trainer.control.should_log:
            loss = {} if math.isnan(session.loss) else {"loss": session.loss}
            trainer.log({**loss, "learning_rate": trainer._get_learning_rate()})
        self._stop_if_asked()

    def end(self) -> None:
        """The job is over."""
        self._evaluated()
        trainer = self._trainer
        trainer.state.global_step = self._session.step
        trainer.control = trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)

    def _evaluated(self) -> None:
        trainer, measured = self._trainer, self._session.metrics
        if self._session.evaluated_step == self._evaluated_step:
            return
        self._evaluated_step = self._session.evaluated_step
        trainer.log(dict(measured))
        trainer.control = trainer.callback_handler.on_evaluate(
            trainer.args, trainer.state, trainer.control, {**measured}
        )
        trainer._determine_best_metric(dict(measured), None)

    def _stop_if_asked(self) -> None:
        state = self._trainer.state
        if self._trainer.control.should_training_stop and state.global_step < state.max_steps:
            self._session.stop("a callback of the Trainer asks for it")


def _check(trainer: Trainer) -> None:
    arguments = trainer.args
    usual = ("transformers.trainer_callback", "transformers.integrations", "transformers.utils.notebook")
    unheard = {
        f"{type(each).__name__}.{event}"
        for each in trainer.callback_handler.callbacks
        for event in _NOBODY_CALLS
        if not type(each).__module__.startswith(usual)
        and getattr(type(each), event, None) is not getattr(TrainerCallback, event, None)
    }
    leave_out = "leave it out"
    refuse_options(
        {
            "fp16": (
                arguments.fp16,
                "its gradient scaler would be each worker's own; say bf16, or set `precision` in the manifest",
            ),
            "load_best_model_at_end": (
                arguments.load_best_model_at_end,
                "the session writes the checkpoints, and ends with the newest model; spec.training.target ends a job "
                "at a metric",
            ),
            "torchrun": (
                arguments.world_size > 1,
                "TrainingArguments made a process group of its workers; import heterotrain.integrations.transformers "
                "before they are made",
            ),
            "activation_checkpointing": (
                getattr(arguments, "activation_checkpointing", False) or arguments.gradient_checkpointing,
                "call the model's own activation_checkpointing_enable() before train()",
            ),
            "torch_compile": (arguments.torch_compile, leave_out),
            "neftune_noise_alpha": (arguments.neftune_noise_alpha, leave_out),
            "deepspeed": (arguments.deepspeed, leave_out),
            "fsdp": (arguments.fsdp, leave_out),
            "train_sampling_strategy": (
                getattr(arguments, "train_sampling_strategy", "random") != "random",
                "the session's order is random; leave it out",
            ),
            "compute_metrics": (
                trainer.compute_metrics is not None and arguments.eval_strategy != "no",
                "it asks for the predictions of the whole set in one place, and workers send one another sums: write a "
                "loop with session.prepare() and session.evaluate(), or set eval_strategy='no' and call "
                "trainer.evaluate() after training",
            ),
            f"callbacks ({', '.join(sorted(unheard))})": (
                unheard,
                "workers may have no batch in a step, and the session writes the checkpoints; use on_step_end, on_log "
                "or on_evaluate, or session.after_step()",
            ),
        }
    )


def _plain(loader: DataLoader[Any], batch_size: int) -> DataLoader[Any]:
    """Trainer's loader without what accelerate made of it. The batch size is for a run alone."""
    return DataLoader(
        loader.dataset,
        batch_size=batch_size,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=loader.pin_memory,
    )


def _loss(trainer: Trainer, model: nn.Module, batch: dict[str, Any]) -> tuple[torch.Tensor, int | torch.Tensor]:
    """The mean loss over what Trainer counts in a batch, and that number: of samples if it counts none."""
    items = trainer._get_num_items_in_batch([batch], None)
    count = find_batch_size(batch) if items is None else items
    with torch.autocast(trainer.args.device.type, torch.bfloat16, enabled=trainer.args.bf16):
        return trainer.compute_loss(model, batch, num_items_in_batch=items), count


def _evaluate(session: Session, trainer: Trainer) -> None:
    arguments = trainer.args
    if arguments.eval_strategy == "no":
        return
    every_steps = None
    if arguments.eval_strategy == "steps":
        share = arguments.eval_steps
        every_steps = max(1, round(share if share >= 1 else share * session.total_steps))

    def measure(model: nn.Module, batch: dict[str, Any]) -> dict[str, Any]:
        loss, count = _loss(trainer, model, batch)
        return {"eval_loss": (loss * count, count)}

    session.evaluate(_plain(trainer.get_eval_dataloader(), arguments.eval_batch_size), measure, every_steps=every_steps)
