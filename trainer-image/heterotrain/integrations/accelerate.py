"""Accelerate's loop in a session: `accelerator = Accelerator(session)`, and the loop stays as it was.

For what counts steps and samples a job is one process with the global batch, whatever its workers do: workers come and
go, and their batches are unequal. So `num_processes` is 1, and learning-rate schedules are stepped once per step.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NoReturn

import accelerate
import torch
from accelerate.state import PartialState
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from heterotrain.integrations import refuse_options
from heterotrain.job.launched import hide_from_frameworks
from heterotrain.session import Session
from heterotrain.training.schedules import Every

hide_from_frameworks()


def _refused(name: str, instead: str) -> Callable[..., NoReturn]:
    def method(self: Accelerator, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"accelerator.{name}() does nothing in a session; {instead}")

    return method


class Accelerator(accelerate.Accelerator):  # type: ignore[misc]  # its types are not looked at
    """Accelerate's Accelerator, whose workers are the session's."""

    def __init__(self, session: Session, **options: Any) -> None:
        """Options are accelerate's, except those that are the job's.

        Raises ValueError for an option that the manifest has instead, RuntimeError if accelerate has made a process
        group already.
        """
        # `accelerate launch` and its configuration file say the same by variables.
        precision = options.get("mixed_precision") or os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        passes = os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
        refuse_options(
            {
                "mixed_precision": (
                    precision != "no",
                    "set `precision` of the worker group in the manifest, or put the forward under torch.autocast(..., "
                    "torch.bfloat16); the gradient scaler of fp16 would be each worker's own",
                ),
                "gradient_accumulation_steps": (
                    options.get("gradient_accumulation_steps", 1) != 1 or passes != "1",
                    "give the global batch size; the session makes the passes that memory asks for",
                ),
            }
        )
        # A process group that is already there may be the script's own.
        if accelerate.PartialState._shared_state.get("num_processes", 1) != 1 or any(
            os.environ.get(name, "") not in ("", "-1") for name in ("LOCAL_RANK", "WORLD_SIZE")
        ):
            raise RuntimeError(
                "accelerate makes a process group of its own from what `accelerate launch` or torchrun has set; "
                "import heterotrain.integrations.accelerate before anything of accelerate's is made, and start several "
                "workers by torchrun"
            )
        super().__init__(cpu=session.device.type == "cpu", **{k: v for k, v in options.items() if k != "cpu"})
        self.session = session
        self._modules: dict[int, nn.Module] = {}

    def prepare(self, *given: Any, device_placement: Any = None, **options: Any) -> Any:
        """`session.prepare()` with what is given in any order: models, one optimizer, one DataLoader, and schedules.

        Options are those of `session.prepare()`. A schedule is stepped by the session, once per step, or once per epoch
        with `Accelerator(..., step_scheduler_with_optimizer=False)`; its `step()` in the loop does nothing.

        Raises ValueError for anything but one optimizer and one loader.
        """
        models = [each for each in given if isinstance(each, nn.Module)]
        optimizers = [each for each in given if isinstance(each, torch.optim.Optimizer)]
        loaders = [each for each in given if isinstance(each, DataLoader)]
        if not models or len(optimizers) != 1 or len(loaders) != 1:
            raise ValueError(
                "accelerator.prepare() takes everything at once in a session: models, one optimizer, one DataLoader to "
                "train on; session.evaluate() takes the one to evaluate on"
            )
        one = models[0] if len(models) == 1 else models  # as functions that measure it are to get it
        prepared, optimizer, batches = self.session.prepare(one, optimizers[0], loaders[0], **options)
        prepared = [prepared] if len(models) == 1 else prepared
        self._modules = {id(new): old for new, old in zip(prepared, models, strict=True)}
        self.session.after_step(self._tell_accelerate_who_leads)
        replaced: dict[int, Any] = {id(optimizers[0]): optimizer, id(loaders[0]): batches}
        replaced |= {id(old): new for new, old in zip(prepared, models, strict=True)}
        every: Every = "step" if self.step_scheduler_with_optimizer else "epoch"
        for number, schedule in enumerate(each for each in given if isinstance(each, LRScheduler)):
            self.session.register(**{f"schedule_{number}": schedule}, every=every)
            replaced[id(schedule)] = _Stepped(schedule)
        results = tuple(replaced.get(id(each), each) for each in given)
        return results if len(results) > 1 else results[0]

    def backward(self, loss: torch.Tensor, count: float | torch.Tensor | None = None, **options: Any) -> None:
        """Backward through `session.scale(loss, count)`."""
        super().backward(self.session.scale(loss, count), **options)

    def unwrap_model(self, model: nn.Module, *_: Any, **__: Any) -> nn.Module:
        """The model as it was given to `prepare()`."""
        return self._modules.get(id(model), model)

    @property
    def is_main_process(self) -> bool:
        """Whether this worker leads. Raises RuntimeError in a job before the loop, since no worker leads yet."""
        return self.session.leader

    @property
    def process_index(self) -> NoReturn:
        """Raises NotImplementedError."""
        raise NotImplementedError("workers have no lasting number in a session; ask accelerator.is_main_process")

    is_last_process = process_index

    def _tell_accelerate_who_leads(self) -> None:
        # Loggers, trackers and save() look there.
        PartialState().process_index = 0 if self.session.leader else 1

    gather = _refused("gather", "session.evaluate() measures on all workers, and session.loss is the loss of them all")
    gather_for_metrics = _refused("gather_for_metrics", "session.evaluate() measures on all workers")
    reduce = _refused("reduce", "session.evaluate() measures on all workers, and session.loss is the loss of them all")
    pad_across_processes = _refused("pad_across_processes", "session.evaluate() measures on all workers")
    split_between_processes = _refused("split_between_processes", "session.evaluate() divides a data set")
    join_uneven_inputs = _refused("join_uneven_inputs", "workers may have any number of samples; leave it out")
    set_trigger = _refused("set_trigger", "session.stop(why) ends the job on all workers")
    check_trigger = _refused("check_trigger", "session.stop(why) ends the job on all workers")
    skip_first_batches = _refused("skip_first_batches", "the session resumes where the job was; leave it out")
    save_state = _refused("save_state", "the session writes the job's checkpoints, of session.register(...) too")
    load_state = _refused("load_state", "the session resumes from the job's checkpoints")
    register_for_checkpointing = _refused("register_for_checkpointing", "write session.register(name=object)")


class _Stepped:
    """A schedule that the session steps; all else is its own."""

    def __init__(self, schedule: LRScheduler) -> None:
        self._schedule = schedule

    def step(self, *_: Any, **__: Any) -> None:
        """Do nothing: the session has stepped it, or will."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._schedule, name)
