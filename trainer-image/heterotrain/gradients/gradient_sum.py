"""DistributedDataParallel, built once, summing over whatever workers there are at the moment.

It is built over a group of this process alone, so building it needs no other process; a communication hook sums its
buckets over the present generation. Bucketing and overlap are DistributedDataParallel's; that the sum over the workers
is the gradient of the global batch is the weights' doing (`counting.py`).

The script's forward does not go through it. DistributedDataParallel only has to know that a backward begins, and then
sees every parameter whose gradient is complete. So a step may have any number of forwards, through the prepared
model or the script's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from heterotrain.gradients.reduction import Reducing, reduce_bucket

# One bucket for small models: each collective costs a worker with a small CPU quota some CPU of its own.
BUCKET_MEGABYTES = 25.0

# Newer versions of torch have another name for it. In a group of one process there is nothing to synchronise.
_OWN_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers"
    if "forward_sync_buffers" in signature(DistributedDataParallel.__init__).parameters
    else "broadcast_buffers": False
}

# Making a group of one process takes no time at all.
_ALONE = timedelta(seconds=60)

# Steps with samples in which parameters that the loss does not reach are looked for.
_LOOKED_AT_STEPS = 2


class _Announced(nn.Module):
    """What DistributedDataParallel wraps: its forward only announces a backward. It has what is trained alone, for
    DistributedDataParallel cannot send whatever types a model may hold beside that."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.trained = nn.ParameterList(each for each in module.parameters() if each.requires_grad)

    def forward(self) -> None:
        """Nothing is computed."""


class _Touch(torch.autograd.Function):
    """A zero whose backward reaches parameters without giving them a gradient."""

    @staticmethod
    def forward(ctx: Any, zero: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        # A script's own hooks on a parameter expect a gradient.
        ctx.zeros = [torch.zeros_like(each) if _is_hooked(each) else None for each in parameters]
        return zero.clone()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        return (None, *ctx.zeros)


def _is_hooked(parameter: torch.Tensor) -> bool:
    """Whether the script has hooks on its gradient; the library's own take none."""
    after = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    theirs = (hook for hook in after.values() if not getattr(hook, "__module__", "").startswith("heterotrain."))
    return bool(parameter._backward_hooks) or any(True for _ in theirs)


def touch(parameters: Iterable[nn.Parameter], device: torch.device) -> torch.Tensor:
    """A scalar zero; in its backward these parameters count as complete, and their gradients as zero."""
    touched: torch.Tensor = _Touch.apply(torch.zeros((), device=device), *parameters)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return touched


def own_group(device: torch.device) -> dist.ProcessGroup:
    """A group of this process alone, for tensors on the CPU and on `device`.

    It is no part of torch.distributed's world, so the default process group stays the script's own.
    """
    store, gloo = dist.HashStore(), dist.ProcessGroup.BackendType.GLOO
    backend: Any = dist.ProcessGroupGloo(dist.PrefixStore("alone", store), 0, 1, _ALONE)
    # DistributedDataParallel takes a group of backends. It is made as torch.distributed.new_group makes one, without
    # entering it in torch's list of groups, which only the default process group opens.
    group = dist.ProcessGroup(store, 0, 1)
    group._set_default_backend(gloo)
    for each in {torch.device("cpu"), torch.device(device.type)}:
        group._register_backend(each, gloo, backend)
    return group


class GradientSum:
    """Sums the gradients of `module` over the workers, one backward a step."""

    def __init__(self, module: nn.Module, reducing: Reducing, device: torch.device, *, always_touch: bool) -> None:
        """`always_touch`: another forward may leave other parameters out each time."""
        # In the order in which backward will likely complete them.
        self._parameters = [each for each in reversed(list(module.parameters())) if each.requires_grad]
        self._device = device
        self._always_touch = always_touch
        self._untouched: dict[nn.Parameter, None] = dict.fromkeys(self._parameters)
        self._looked = 0
        self._summing = False
        self._reducing = reducing
        self._watching: list[RemovableHandle] = []
        self._parallel = DistributedDataParallel(
            _Announced(module),
            process_group=own_group(device),
            device_ids=[device] if device.type == "cuda" else None,
            **_OWN_BUFFERS,
            bucket_cap_mb=BUCKET_MEGABYTES,
            gradient_as_bucket_view=True,
        )
        self._parallel.register_comm_hook(reducing, reduce_bucket)
        # Buckets follow the order of the first backward. These are alike on all workers; the real ones might not be.
        for _ in range(2):
            with torch.enable_grad():
                self._parallel()
            self._touch_all()
        for each in self._parameters:
            each.grad = None
        # What else a forward of DistributedDataParallel does is of no use here, and takes 60 us.
        reducer = self._parallel.reducer
        self._announcing = (reducer.prepare_for_forward, partial(reducer.prepare_for_backward, []))

    def begin(self) -> None:
        """The backward that is about to begin is the one whose gradients are to be summed."""
        if self._watching:
            self._summing = True
            self._looked += 1
            # Zeros that the script has left there would look like gradients.
            for each in self._parameters:
                each.grad = None
        for announce in self._announcing:
            announce()

    def end(self) -> None:
        """The backward has ended: wait for the sums."""
        self._summing = False
        self._reducing.finish()

    def rest(self) -> torch.Tensor | None:
        """What to add to the loss so that parameters that it does not reach are complete too; None if it reaches all.

        The first steps show which parameters those are.
        """
        if self._looked < _LOOKED_AT_STEPS:
            self._look()
            return touch(self._parameters, self._device)
        if self._watching:
            self._stop_looking()
        if self._always_touch:
            return touch(self._parameters, self._device)
        return touch(self._untouched, self._device) if self._untouched else None

    def without_samples(self) -> None:
        """The whole backward of a worker that has nothing to add."""
        self.begin()
        self._touch_all()
        self.end()

    def _touch_all(self) -> None:
        with torch.enable_grad():
            touch(self._parameters, self._device).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def _look(self) -> None:
        if self._watching:
            return

        def reached(parameter: nn.Parameter) -> None:
            # Also called for a parameter that is only touched: without a gradient, or with zeros for a script's hooks.
            if self._summing and parameter.grad is not None and not _is_hooked(parameter):
                self._untouched.pop(parameter, None)

        for each in self._parameters:
            register: Callable[..., RemovableHandle] = each.register_post_accumulate_grad_hook
            self._watching.append(register(reached))

    def _stop_looking(self) -> None:
        for handle in self._watching:
            handle.remove()
        self._watching.clear()
