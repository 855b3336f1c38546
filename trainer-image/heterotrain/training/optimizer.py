"""The optimizer that the script holds: its step happens only if the gradients of all workers arrived.

A subclass of torch's Optimizer, so that learning-rate schedulers accept it; it shares the state of the one it wraps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class ElasticOptimizer(torch.optim.Optimizer):
    """Everything but `step()` is the wrapped optimizer's."""

    def __init__(self, inner: torch.optim.Optimizer, commit: Callable[[], None]) -> None:
        # Optimizer.__init__ is not called: parameters, groups and state live in the wrapped optimizer.
        self._inner = inner
        self._commit = commit

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Commit the running step: apply the optimizer if all gradients arrived, drop them if not.

        A closure is run first, once, and what it returns is returned. Raises RuntimeError if there is no batch to
        commit, or its loss did not go through `session.scale()`.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._commit()
        return loss

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # The one thing that torch's GradScaler asks of an optimizer before it decides on its step by itself.
        raise TypeError(
            "GradScaler is not supported: a worker that skips a step would leave the others. Use precision: bfloat16 "
            "of the worker group, which needs no scaling, or GradScaler(enabled=False)"
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, between two epochs. One that the optimizer has already is passed over: a job that was resumed
        has it from its checkpoint, and its script adds it again."""
        given = param_group["params"]
        parameters = [given] if isinstance(given, torch.Tensor) else list(given)
        new = {id(each[1] if isinstance(each, tuple) else each) for each in parameters}
        if all({id(each) for each in group["params"]} != new for group in self._inner.param_groups):
            self._inner.add_param_group({**param_group, "params": parameters})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients, as the wrapped optimizer does."""
        self._inner.zero_grad(set_to_none)

    def state_dict(self) -> Any:
        """The wrapped optimizer's state."""
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """Load the wrapped optimizer's state."""
        self._inner.load_state_dict(state_dict)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # What is saved or copied is the script's own optimizer. Pickling asks whether its class is that of the wrapper.
        return self._inner.__reduce_ex__(protocol)

    @property  # type: ignore[misc]  # it is never set
    def __class__(self) -> Any:
        """The wrapped optimizer's."""
        return type(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name in ("_inner", "_commit"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        return repr(self._inner)
