"""Where a model holds its parameters: one that is put in another's place is trained by nobody.

The optimizer, and what sums gradients, hold the parameters themselves. After `load_state_dict(..., assign=True)`, or
with another layer in a layer's place, backward reaches parameters that none of them knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import getitem, is_
from typing import Any

import torch
from torch import nn

_NAMED = 5
_CURE = (
    "the optimizer holds those before, and would train them. Load weights and replace layers before the optimizer is "
    "made, or copy into the parameters that are there: load_state_dict() does without assign=True"
)


class Places:
    """The places in a module and its children that hold a parameter, or a child with parameters, and what they hold."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._holders: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._held: list[object] = []
        for each in module.modules():
            self._take(each._parameters, each._parameters.items())
            children = ((name, child) for name, child in each._modules.items() if child is not None)
            self._take(
                each._modules, ((name, child) for name, child in children if any(True for _ in child.parameters()))
            )

    def _take(self, holder: Any, items: Iterable[tuple[str, object]]) -> None:
        if not isinstance(holder, dict):
            return  # TorchScript's give another object each time
        for name, held in items:
            if held is not None:
                self._holders.append(holder)
                self._names.append(name)
                self._held.append(held)

    def check(self) -> None:
        """Raises RuntimeError if a place holds something else than before."""
        # Every step does this, for up to hundreds of places, so `all` does the looping.
        try:
            if all(map(is_, map(getitem, self._holders, self._names), self._held)):
                return
        except KeyError:
            pass
        places = zip(self._holders, self._names, self._held, strict=True)
        changed = [name for holder, name, held in places if holder.get(name) is not held]
        raise RuntimeError(f"{_listed(changed)} of the model: replaced in the loop over the batches; {_CURE}")


def check_held(optimizer: torch.optim.Optimizer, module: nn.Module, names: dict[nn.Parameter, str]) -> None:
    """Raises RuntimeError if the optimizer holds parameters that the module has no more; `names` are those that it had
    when the optimizer was checked."""
    present = set(module.parameters())
    lost = [each for group in optimizer.param_groups for each in group["params"] if each not in present]
    if lost:
        raise RuntimeError(
            f"{_listed([names.get(each, 'a parameter') for each in lost])} of the model: replaced after "
            f"session.prepare(); {_CURE}"
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
