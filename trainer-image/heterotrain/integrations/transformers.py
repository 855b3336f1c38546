"""What a transformers.Trainer holds, trained in a session: `train(session, trainer)` in place of `trainer.train()`.

Trainer's own loop counts steps on each worker, and asks how many batches there will be: both fail where batches change
size and a worker may have none. So this is a short loop of its own around what is the Trainer's: model, data, collator,
loss, optimizer, schedule and clipping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import find_batch_size
from torch import nn
from torch.utils.data import DataLoader

from heterotrain.integrations import refuse_options
from heterotrain.session import Session

if TYPE_CHECKING:
    from transformers import Trainer


def train(session: Session, trainer: Trainer) -> None:
    """Train until the job's end. Of the arguments, those of steps, epochs, batches, saving and logging are the job's.

    The loss is a mean over what Trainer counts, tokens that have a label mostly, of the global batch. With an
    `eval_strategy`, `session.metrics["eval_loss"]` is measured on the `eval_dataset`.

    Raises ValueError for what was asked for and is without effect here: other precision, callbacks, metrics.
    """
    arguments = trainer.args
    batch_size = arguments.train_batch_size * arguments.gradient_accumulation_steps
    _check(trainer)
    model, optimizer, batches = session.prepare(
        trainer.model, trainer.create_optimizer(), _plain(trainer.get_train_dataloader(), batch_size), counted=True
    )
    session.register(schedule=trainer.create_scheduler(session.total_steps))
    _evaluate(session, trainer)
    model.train()
    for batch in batches:
        loss, count = _loss(trainer, model, batch)
        session.scale(loss, count).backward()  # type: ignore[no-untyped-call]
        if arguments.max_grad_norm:
            nn.utils.clip_grad_norm_(model.parameters(), arguments.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
    trainer.state.global_step = session.step


def _check(trainer: Trainer) -> None:
    arguments = trainer.args
    usual = ("transformers.trainer_callback", "transformers.integrations", "transformers.utils.notebook")
    callbacks = [
        type(each).__name__
        for each in trainer.callback_handler.callbacks
        if not type(each).__module__.startswith(usual) or type(each).__name__ == "EarlyStoppingCallback"
    ]
    precision = "set `precision` of the worker group in the manifest"
    leave_out = "leave it out"
    refuse_options(
        {
            "bf16": (arguments.bf16, precision),
            "fp16": (arguments.fp16, precision),
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
                "write a loop with session.prepare() and session.evaluate(), or set eval_strategy='no' and call "
                "trainer.evaluate() after training",
            ),
            f"callbacks ({', '.join(callbacks)})": (callbacks, "session.after_step() calls a function after each step"),
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
