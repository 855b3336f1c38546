"""The model that the script holds: its own, in the worker's precision; a forward without gradients is noted.

Everything else (attributes, methods, state_dict, copies) is the wrapped module's, so that scripts and their checkpoints
look the same alone and in a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from heterotrain.gradients.precision import Arithmetic


class ElasticModel(nn.Module):
    """Wraps a module of the job; copies of it, and what `torch.save` writes, are those of the wrapped module, byte for
    byte."""

    module: nn.Module

    def __init__(self, module: nn.Module, arithmetic: Arithmetic, looked_at: Callable[[], None]) -> None:
        """`looked_at` is called when a forward without gradients happens: a part of the step that is no training."""
        super().__init__()
        self._arithmetic = arithmetic
        self._looked_at = looked_at
        self.module = module  # last: what is set from here on is set on it

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward."""
        if not torch.is_grad_enabled():
            self._looked_at()
        # Looked up as nn.Module keeps it, since its __getattr__ costs each forward more.
        return self._arithmetic.run(self._modules["module"], *args, **kwargs)  # type: ignore[arg-type]  # there is one

    # What Python looks for on the class alone: a prepared Sequential is indexed as the script's own.

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.module)  # type: ignore[arg-type]  # raises what the module's own would

    def __iter__(self) -> Iterator[Any]:
        return iter(self.module)  # type: ignore[call-overload,no-any-return]  # likewise

    def __getitem__(self, place: Any) -> Any:
        return self.module[place]  # type: ignore[index]  # likewise

    def __contains__(self, name: Any) -> bool:
        return name in self.module  # type: ignore[operator]  # likewise

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        return deepcopy(self.module, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # What is saved is the script's own module. Pickling asks whether its class is that of the wrapper.
        return self.module.__reduce_ex__(protocol)

    @property  # type: ignore[misc]  # it is never set
    def __class__(self) -> Any:
        """The wrapped module's, so that `isinstance` says of the wrapper what it says of that."""
        return type(self._modules["module"]) if "module" in self.__dict__.get("_modules", ()) else ElasticModel

    def __repr__(self) -> str:
        return repr(self.module)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped module's state, without a prefix."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """Load the wrapped module's state."""
        return self.module.load_state_dict(state_dict, *args, **kwargs)

    # What a script looks for, or filters by name, is called as in its own model.

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """The wrapped module's."""
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """The wrapped module's."""
        return self.module.named_buffers(*args, **kwargs)

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        """The wrapped module's."""
        return iter(self.module.named_modules(*args, **kwargs))

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """The wrapped module's."""
        return self.module.named_children()

    def train(self, mode: bool = True) -> ElasticModel:
        """Set the wrapped module's mode."""
        self.training = mode
        self.module.train(mode)
        return self

    def _apply(self, *args: Any, **kwargs: Any) -> ElasticModel:
        self.module._apply(*args, **kwargs)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        is_whole = "module" in self.__dict__.get("_modules", ())
        if is_whole and not (name == "module" or name in self.__dict__ or hasattr(type(self), name)):
            setattr(self.module, name, value)
        else:
            super().__setattr__(name, value)
