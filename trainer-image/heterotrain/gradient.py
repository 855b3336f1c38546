"""The model that the script holds: stock DistributedDataParallel over whatever workers there are at the moment.

Bucketing and overlap are DistributedDataParallel's; that the sum over the workers is the gradient of the global batch
is the weights' doing (`counting.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from heterotrain import checkpoint
from heterotrain.accumulation import Accumulator
from heterotrain.checkpoint import CheckpointError
from heterotrain.membership import Generation, is_collective_error
from heterotrain.precision import Arithmetic
from heterotrain.reduction import StepReduction, reduce_bucket
from heterotrain.timing import StepClock
from heterotrain.wire import wire_for

# One bucket for small models: each collective costs a worker with a small CPU quota some CPU of its own.
BUCKET_MEGABYTES = 25.0

# Buffers stay each rank's own between checkpoints; newer versions of torch have another name for that.
_OWN_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers"
    if "forward_sync_buffers" in signature(DistributedDataParallel.__init__).parameters
    else "broadcast_buffers": False
}


class _Replica(nn.Module):
    """What DistributedDataParallel wraps: the user's module, and a way to take part without samples."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, without_samples: bool = False, **kwargs: Any) -> Any:
        if not without_samples:
            return self.module(*args, **kwargs)
        # No user code runs that could fail on an empty batch.
        return zero_of(self.module)


def zero_of(module: nn.Module) -> torch.Tensor:
    """A scalar zero in which every parameter takes part, with a gradient of exactly zero, even one that is NaN."""
    parts = [parameter.reshape(-1)[:0].sum() for parameter in module.parameters() if parameter.requires_grad]
    return torch.stack([part.to(parts[0].device, parts[0].dtype) for part in parts]).sum()


class ElasticModel(nn.Module):
    """The user's model; in training its gradients are summed over whatever workers there are at the moment.

    Everything else (attributes, methods, state_dict) is the wrapped module's, so that scripts and their checkpoints
    look the same alone and in a job.
    """

    module: nn.Module

    def __init__(self, module: nn.Module, arithmetic: Arithmetic) -> None:
        super().__init__()
        self.accumulator = Accumulator(module)
        self._arithmetic = arithmetic
        self._parallel: list[DistributedDataParallel] = []  # in a list: it must not be a submodule
        self._reduction: StepReduction | None = None
        self._trained: list[tuple[str, nn.Parameter, bool]] = []
        self.module = module  # last: what is set from here on is set on it

    def reduction_over(self, generation: Generation, clock: StepClock, device: torch.device) -> StepReduction:
        """What `attach` takes for sums over `generation`."""
        return StepReduction(generation, clock, wire_for(generation, device), self.accumulator)

    def attach(self, reduction: StepReduction, device: torch.device) -> None:
        """Sum gradients over the reduction's generation from now on. Rank 0's parameters become everybody's; buffers
        stay each rank's own.

        Raises RuntimeError if the group breaks meanwhile.
        """
        self._parallel.clear()  # drops the old wrapper's hooks
        # DistributedDataParallel spreads rank 0's buffers when it is made; some versions of torch do whatever is asked.
        own = [buffer.clone() for buffer in self.module.buffers()]
        parallel = DistributedDataParallel(
            _Replica(self.module),
            process_group=reduction.generation.gradients,
            device_ids=[device] if device.type == "cuda" else None,
            **_OWN_BUFFERS,
            bucket_cap_mb=BUCKET_MEGABYTES,
            gradient_as_bucket_view=True,
        )
        with torch.no_grad():
            for buffer, value in zip(self.module.buffers(), own, strict=True):
                buffer.copy_(value)
        parallel.register_comm_hook(reduction, reduce_bucket)
        self._trained = [(name, each, each.requires_grad) for name, each in self.module.named_parameters()]
        self._reduction = reduction
        self._parallel.append(parallel)

    def detach(self) -> None:
        """Stop summing: the wrapper and its hooks go."""
        self._parallel.clear()
        self._reduction = None

    def buffers_packed(self) -> bytes:
        """All buffers, also those that are in no state_dict, for workers that have never met this one."""
        return checkpoint.pack(dict(self.module.named_buffers()))

    def take_buffers(self, packed: bytes) -> None:
        """Take over what another worker has packed. Raises CheckpointError if it is of another model."""
        theirs = checkpoint.unpack(packed)
        with torch.no_grad():
            for name, buffer in self.module.named_buffers():
                if name not in theirs or theirs[name].shape != buffer.shape:
                    raise CheckpointError(f"buffer {name!r} is not the leader's; all workers must make the same model")
                buffer.copy_(theirs[name])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward. Raises RuntimeError if this step's gradients were summed already."""
        return self._arithmetic.run(lambda: self._forward(*args, **kwargs))

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        reduction = self._reduction
        if reduction is None or not self._parallel:
            return self.module(*args, **kwargs)
        if not torch.is_grad_enabled():
            reduction.evaluated = True
            return self.module(*args, **kwargs)
        self._check_trained()
        if self.accumulator.collecting:
            return self.module(*args, **kwargs)
        if reduction.reduced and not reduction.error:
            raise RuntimeError(
                "a second forward for training in one step, after its gradients were summed; "
                "evaluate under torch.no_grad()"
            )
        return self._in_parallel(lambda: self._parallel[0](*args, **kwargs), lambda: self.module(*args, **kwargs))

    def contribute_nothing(self) -> None:
        """Forward and backward of a rank that has no samples in this step."""
        if self._parallel:
            self._check_trained()
            zero = self._in_parallel(
                lambda: self._parallel[0](without_samples=True),
                lambda: None,
            )
            if zero is not None:
                zero.backward()

    def _check_trained(self) -> None:
        for name, parameter, trained in self._trained:
            if parameter.requires_grad != trained:
                raise RuntimeError(
                    f"parameter {name!r} was {'frozen' if trained else 'made trainable'} in the loop over the batches; "
                    "a worker without samples in this step would not know of it. Set requires_grad before the loop, "
                    "and change learning rates by a registered schedule in it"
                )

    def _in_parallel(self, run: Callable[[], Any], alone: Callable[[], Any]) -> Any:
        """Run a parallel forward; if a collective inside it fails (DistributedDataParallel agrees on its buckets
        there), record it and go on alone, for no collective error may reach the script."""
        reduction = self._reduction
        assert reduction is not None
        if reduction.error:
            return alone()
        try:
            return run()
        except RuntimeError as error:
            if not is_collective_error(error):
                raise
            reduction.fail(error)
            return alone()

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
