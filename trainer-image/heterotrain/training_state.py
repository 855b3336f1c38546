"""Everything that a job's training consists of, in one place: packed for checkpoints and for ranks that lag behind."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from heterotrain import checkpoint
from heterotrain.checkpoint import CheckpointError
from heterotrain.contract import TrainingConfig
from heterotrain.sampler import Position

log = logging.getLogger(__name__)


class TrainingState:
    """Position, model, optimizer and whatever else the user registered; nothing of a rank."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, dataset_length: int, config: TrainingConfig
    ) -> None:
        self.position = Position()
        self.registered: dict[str, Any] = {}
        self._kept: tuple[torch.Tensor, torch.Tensor | None, list[torch.Tensor]] | None = None
        self._model = model
        # A walk through all modules at each step would be felt; few have buffers.
        self._with_buffers = [module for module in model.modules() if list(module.buffers(recurse=False))]
        self._optimizer = optimizer
        self._dataset_length = dataset_length
        self._config = config
        self.saved_step = 0  # the newest step that needs no checkpoint; equal on all ranks at a boundary

    @property
    def learning_rate(self) -> float:
        """Sum over the optimizer's parameter groups."""
        return float(sum(float(group["lr"]) for group in self._optimizer.param_groups if "lr" in group))

    def keep(self) -> None:
        """Keep what a step changes before its gradients arrive: random state and the model's buffers."""
        has_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        on_gpu = torch.cuda.get_rng_state() if has_gpu else None
        self._kept = (torch.get_rng_state(), on_gpu, [buffer.clone() for buffer in self._buffers()])

    def restore(self) -> None:
        """A step is dropped: its next attempt is to draw the same random numbers, on the same buffers."""
        if self._kept is None:
            return
        random_state, on_gpu, buffers = self._kept
        torch.set_rng_state(random_state)
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu)
        with torch.no_grad():
            for buffer, kept in zip(self._buffers(), buffers, strict=True):
                buffer.copy_(kept)

    def _buffers(self) -> Iterator[torch.Tensor]:
        return (buffer for module in self._with_buffers for buffer in module.buffers(recurse=False))

    def step_schedules(self) -> None:
        """Learning-rate schedules among what is registered follow the committed steps, on every rank."""
        for each in self.registered.values():
            if isinstance(each, LRScheduler):
                each.step()

    def checked(self) -> dict[str, Any]:
        """What model, optimizer and all that is registered hold. Raises CheckpointError if a checkpoint of it could not
        be read again, naming what is in the way.
        """
        model, optimizer = self._model.state_dict(), self._optimizer.state_dict()
        registered = {name: each.state_dict() for name, each in self.registered.items()}
        checkpoint.check_readable("the model", model)
        checkpoint.check_readable("the optimizer", optimizer)
        for name, state in registered.items():
            checkpoint.check_readable(f"registered object {name!r}", state)
        return {"model": model, "optimizer": optimizer, "registered": registered}

    def pack(self) -> bytes:
        """All of it, as bytes. Raises CheckpointError as `checked`."""
        return checkpoint.pack(
            {
                "schema": checkpoint.SCHEMA,
                "step": self.position.step,
                "epoch": self.position.epoch,
                "cursor": self.position.cursor,
                "seed": self._config.seed,
                "dataset_length": self._dataset_length,
                **self.checked(),
            }
        )

    def load(self, data: bytes) -> None:
        """Take over what another rank, or a run before, has packed.

        Raises CheckpointError if it does not fit this job, model or optimizer.
        """
        state = checkpoint.unpack(data)
        position = checkpoint.check_fits(state, seed=self._config.seed, dataset_length=self._dataset_length)
        try:
            self._model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
            for name, each in self.registered.items():
                each.load_state_dict(state["registered"][name])
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(f"the checkpoint of step {position.step} does not fit: {error}") from error
        self.position = position

    @property
    def checkpoint_is_due(self) -> bool:
        """Whether this boundary is one for a checkpoint; the same on all ranks."""
        step = self.position.step
        due = step % self._config.checkpoint_every_steps == 0 and step != self.saved_step
        return self._config.checkpoint_path is not None and due

    def save(self, *, writes: bool) -> None:
        """Write a checkpoint of what is committed, unless there is one already. Raises CheckpointError.

        `writes` is true on the leader alone; the others only note that it is done.
        """
        folder = self._config.checkpoint_path
        if folder is None or self.position.step == self.saved_step:
            return
        if writes:
            checkpoint.write(Path(folder), self.position.step, self.pack(), self._config.checkpoint_keep)
            log.info("checkpoint of step %d written", self.position.step)
        self.saved_step = self.position.step

    def newest_checkpoint(self) -> bytes:
        """What the leader alone reads at a start; empty if there is nothing to resume from."""
        folder = self._config.checkpoint_path
        return (checkpoint.read_newest(Path(folder)) if folder else None) or b""

    def resume(self, data: bytes) -> None:
        """Start from a checkpoint's bytes, or from the beginning if they are empty. Raises CheckpointError."""
        if data:
            self.load(data)
            self.saved_step = self.position.step
            log.info("resumed at step %d, epoch %d", self.position.step, self.position.epoch)
