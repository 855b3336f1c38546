"""Lightning's callbacks in a session: which are honoured, and why the others are not."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from heterotrain.session import Session

_REFUSED = {
    "ModelCheckpoint": "the session writes the checkpoints, of the job's whole state (spec.checkpoint, or "
    "join(checkpoints=FOLDER)); examples/ported/best_checkpoint.py keeps the best model",
    "TQDMProgressBar": "leave it out: `heterotrain run` and `heterotrain watch` show how far the job is",
}
_REFUSED |= {"RichProgressBar": _REFUSED["TQDMProgressBar"], "OnExceptionCheckpoint": _REFUSED["ModelCheckpoint"]}
_OTHERS = (
    "it expects Lightning's Trainer, whose loop does not run here; session.after_step() calls a function after each "
    "step, and session.stop() ends the job"
)


def check_callbacks(callbacks: Any, *, validates: bool) -> list[Any]:
    """The callbacks, one or a sequence, if all of them are honoured. Raises ValueError that names another one, and says
    why it is not."""
    found = list(callbacks) if isinstance(callbacks, Sequence) else [callbacks]
    for each in found:
        name = kind_of(each)
        if name == "EarlyStopping":
            if not validates:
                raise ValueError(
                    "callbacks: EarlyStopping looks at what validation_step() logs, which is the same on all workers; "
                    "give fit() a loader to validate on"
                )
        elif name != "LearningRateMonitor":
            raise ValueError(f"callbacks: {type(each).__name__} is not called: {_REFUSED.get(name, _OTHERS)}")
        elif each.log_momentum or each.log_weight_decay:
            raise ValueError(
                "callbacks: LearningRateMonitor logs learning rates alone in a session, not momentum or decay"
            )
    return found


def kind_of(callback: Any) -> str:
    """The name of a callback of Lightning's own; empty for any other, also for one derived from those."""
    kind = type(callback)
    return kind.__name__ if kind.__module__.startswith(("lightning.", "pytorch_lightning.")) else ""


def learning_rates(optimizer: torch.optim.Optimizer, name: str) -> dict[str, float]:
    """The rates by the names of Lightning's LearningRateMonitor; `name` is the optimizer's class."""
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    return {f"lr-{name}" + (f"/pg{n}" if len(rates) > 1 else ""): rate for n, rate in enumerate(rates, 1)}


class EarlyStopper:
    """Asks an EarlyStopping after each evaluation, and ends the job if it says so. All workers have the same metrics,
    so they decide alike. Keep it in the checkpoints: it holds the callback's state."""

    def __init__(self, session: Session, callback: Any, module: Any) -> None:
        self._session, self._callback, self._module = session, callback, module
        self._evaluated_step = -1
        # What the callback asks its trainer.
        self._trainer = SimpleNamespace(
            state=SimpleNamespace(fn="fit"),
            strategy=SimpleNamespace(reduce_boolean_decision=lambda decision, **_: decision),
            fast_dev_run=False,
            sanity_checking=False,
            val_check_interval=1.0,
            check_val_every_n_epoch=1,
            world_size=1,
            should_stop=False,
        )
        callback.setup(self._trainer, module, "fit")

    def after_step(self) -> None:
        """A step is committed. Raises RuntimeError, by the callback, for a metric that nobody logs."""
        session, trainer, callback = self._session, self._trainer, self._callback
        if session.warming or session.evaluated_step == self._evaluated_step:
            return
        self._evaluated_step = session.evaluated_step
        trainer.callback_metrics = {name: torch.tensor(value) for name, value in session.metrics.items()}
        trainer.current_epoch = session.epoch
        callback.on_validation_end(trainer, self._module)
        callback.on_train_epoch_end(trainer, self._module)
        if trainer.should_stop and session.step < session.total_steps:
            session.stop("EarlyStopping asks for it")

    def state_dict(self) -> dict[str, Any]:
        """The callback's state, and when it was asked."""
        return {"callback": self._callback.state_dict(), "evaluated_step": self._evaluated_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up what `state_dict()` gave."""
        self._callback.load_state_dict(state["callback"])
        self._evaluated_step = state["evaluated_step"]
