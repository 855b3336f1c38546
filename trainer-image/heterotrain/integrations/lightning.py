"""A LightningModule, trained in a session: `fit(session, module, loader)` in place of `trainer.fit(module, loader)`.

Lightning's own loop counts batches on each worker, and asks how many there will be: both fail where batches change
size and a worker may have none. So this is a short loop of its own around `configure_optimizers()` and
`training_step()`. Lightning itself is not imported: its two packages would be two different ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from heterotrain.integrations import refuse_options
from heterotrain.integrations.lightning_callbacks import EarlyStopper, check_callbacks, kind_of, learning_rates
from heterotrain.session import Session
from heterotrain.sinks import Run
from heterotrain.training.schedules import Every

_HOOKS = (
    "backward",
    "configure_gradient_clipping",
    "configure_model",
    "lr_scheduler_step",
    "on_after_backward",
    "on_after_batch_transfer",
    "on_before_backward",
    "on_before_batch_transfer",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "on_fit_end",
    "on_fit_start",
    "on_load_checkpoint",
    "on_save_checkpoint",
    "on_train_batch_end",
    "on_train_batch_start",
    "on_train_end",
    "on_train_epoch_end",
    "on_train_epoch_start",
    "on_train_start",
    "on_validation_batch_end",
    "on_validation_batch_start",
    "on_validation_end",
    "on_validation_epoch_end",
    "on_validation_epoch_start",
    "on_validation_start",
    "optimizer_step",
    "optimizer_zero_grad",
    "prepare_data",
    "setup",
    "teardown",
    "transfer_batch_to_device",
)
"""Hooks of a module that Trainer.fit() calls, and `fit()` does not."""


def fit(
    session: Session,
    module: Any,
    loader: DataLoader[Any],
    validation: DataLoader[Any] | None = None,
    *,
    gradient_clip_val: float = 0,
    precision: str | int = 32,
    logger: Any = (),
    callbacks: Any = (),
) -> None:
    """Train a LightningModule until the job's end, with automatic optimization by one optimizer.

    Called are `configure_optimizers()`, `training_step()` and, after each epoch with a `validation` loader,
    `validation_step()`: the means of what that logs are in `session.metrics`. A `logger` of Lightning's, or a list of
    them, gets what the job's run of other sinks gets (`heterotrain.sinks`), and the leader's numbers that
    `training_step()` logs. With `precision="bf16-mixed"` both steps run under autocast.
    Of the `callbacks` EarlyStopping is asked after each evaluation, and LearningRateMonitor gives the loggers the
    learning rates. Of `module.trainer` there are `current_epoch`, `global_step`, `is_global_zero` and
    `estimated_stepping_batches`, the last but not in `configure_optimizers()`.

    Raises ValueError for hooks that nobody would call, other callbacks or precisions, manual optimization, or more
    than one optimizer.
    """
    _check(module)
    callbacks = check_callbacks(callbacks, validates=validation is not None)
    refuse_options(
        {
            f"precision={precision!r}": (
                precision not in (32, "32", "32-true", "bf16-mixed"),
                "weights and gradients that travel are float32, and a gradient scaler would be each worker's own; say "
                "'bf16-mixed', or set `precision` of the worker group in the manifest",
            ),
        }
    )
    module.trainer = _Trainer(session)
    steps = _Steps(module, session.device.type if precision == "bf16-mixed" else "")
    sinks = [_Logger(each) for each in (logger if isinstance(logger, Sequence) else [logger])]
    optimizer, schedules = _configured(module.configure_optimizers())
    kind = type(optimizer).__name__
    model, optimizer, batches = session.prepare(steps, optimizer, loader, sinks=sinks)
    for number, (schedule, every) in enumerate(schedules):
        session.register(**{f"schedule_{number}": schedule}, every=every)
    if validation is not None:
        session.evaluate(validation, steps.logged_by_validation)
    for number, each in enumerate(callbacks):
        if kind_of(each) == "EarlyStopping":
            stopper = EarlyStopper(session, each, module)
            session.register(every="step", **{f"callback_{number}": stopper})
            session.after_step(stopper.after_step)
    tells_rates = any(kind_of(each) == "LearningRateMonitor" for each in callbacks)
    model.train()
    for batch in batches:
        result = model("training_step", batch)
        session.log(steps.take_logged() | (learning_rates(optimizer, kind) if tells_rates else {}))
        session.scale(result["loss"] if isinstance(result, Mapping) else result).backward()  # type: ignore[no-untyped-call]
        if gradient_clip_val:
            nn.utils.clip_grad_norm_(model.parameters(), gradient_clip_val)
        optimizer.step()
        optimizer.zero_grad()


class _Trainer:
    """What a module may ask its trainer."""

    def __init__(self, session: Session) -> None:
        self._session = session

    current_epoch = property(lambda self: self._session.epoch)
    global_step = property(lambda self: self._session.step)
    is_global_zero = property(lambda self: self._session.leader)
    estimated_stepping_batches = property(lambda self: self._session.total_steps)


class _Steps(nn.Module):
    """The module, whose forward is one of its steps; it takes what the module logs."""

    def __init__(self, module: Any, autocast_on: str = "") -> None:
        super().__init__()
        self.module = module
        self._autocast_on = autocast_on
        self._logged: dict[str, Any] = {}

    def forward(self, step: str, batch: Any) -> Any:
        """A step on a batch. Its number is 0: each worker has batches of its own."""
        module, method = self.module, getattr(self.module, step)
        module.log, module.log_dict = self._log, self._log_dict
        device = self._autocast_on or "cpu"
        try:
            with torch.autocast(device, torch.bfloat16, enabled=bool(self._autocast_on)):
                return method(batch) if len(signature(method).parameters) == 1 else method(batch, 0)
        finally:
            del module.log, module.log_dict  # what the script saves of its module is to hold nothing of ours

    def take_logged(self) -> dict[str, Any]:
        """What training_step() has logged of a batch."""
        logged, self._logged = self._logged, {}
        return logged

    def logged_by_validation(self, model: nn.Module, batch: Any) -> dict[str, tuple[Any, int]]:
        """What validation_step() logs of a batch, as sums over its samples and their number."""
        self._logged.clear()
        model("validation_step", batch)
        samples = _samples(batch)
        return {name: (value * samples, samples) for name, value in self._logged.items()}

    def _log(self, name: str, value: Any, *_: Any, **__: Any) -> None:
        if not isinstance(value, (int, float, torch.Tensor)):
            raise TypeError(f"{name}: log a number in a session, the mean over the batch; not a {type(value).__name__}")
        self._logged[name] = value

    def _log_dict(self, values: Mapping[str, Any], *_: Any, **__: Any) -> None:
        for name, value in values.items():
            self._log(name, value)


class _Logger:
    """A sink that is a logger of Lightning's, which has one run: the job's."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def open(self, worker: str | None, step: int) -> Run:
        """See `Sink`."""
        return _LoggerRun(self._logger if worker is None else None)


class _LoggerRun:
    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        if self._logger is not None:
            self._logger.log_metrics(dict(values), step)

    def marker(self, step: int, text: str) -> None:
        """Its loggers have none; the plan's version is among the scalars."""

    def close(self) -> None:
        if self._logger is not None:
            self._logger.save()
            self._logger.finalize("success")


def _check(module: Any) -> None:
    theirs = next((base for base in type(module).__mro__ if base.__name__ == "LightningModule"), object)
    hooks = [name for name in _HOOKS if getattr(type(module), name, None) is not getattr(theirs, name, None)]
    if hooks:
        raise ValueError(
            f"nobody calls {', '.join(hooks)} of {type(module).__name__} in a session; write a loop with "
            "session.prepare(), which takes a LightningModule as any module, and session.after_step()"
        )
    if not module.automatic_optimization:
        raise ValueError("manual optimization: write a loop with session.prepare(), which takes a LightningModule too")


def _configured(given: Any) -> tuple[torch.optim.Optimizer, list[tuple[Any, Every]]]:
    """The optimizer, and the schedules with their intervals, in what `configure_optimizers()` returns."""
    if isinstance(given, Mapping):
        optimizers, schedules = [given["optimizer"]], [given["lr_scheduler"]] if "lr_scheduler" in given else []
    elif isinstance(given, Sequence) and len(given) == 2 and isinstance(given[0], Sequence):
        optimizers, schedules = list(given[0]), list(given[1])
    else:
        optimizers, schedules = list(given) if isinstance(given, Sequence) else [given], []
    if len(optimizers) != 1 or not isinstance(optimizers[0], torch.optim.Optimizer):
        raise ValueError("configure_optimizers() returned no single optimizer; write a loop with session.prepare()")
    return optimizers[0], [_interval(each) for each in schedules]


def _interval(given: Any) -> tuple[Any, Every]:
    if not isinstance(given, Mapping):
        return given, "epoch"
    if given.get("frequency", 1) != 1:
        raise ValueError("lr_scheduler: a session steps schedules once per step or epoch; leave `frequency` out")
    return given["scheduler"], given.get("interval", "epoch")


def _samples(batch: Any) -> int:
    """Samples in a batch: rows of the first tensor in it. Raises ValueError if it has none."""
    if isinstance(batch, torch.Tensor):
        return len(batch)
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        for each in batch:
            return _samples(each)
    raise ValueError("no tensor in the batch shows how many samples it has")
