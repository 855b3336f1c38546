"""Weighted gradients under stock DistributedDataParallel, and what the script holds instead of it.

With the loss of each rank scaled by its share of the global batch, `lambda_k = b_k / sum(b)`, a plain sum over the
ranks is the gradient of the mean over the global batch, whatever the split. Source: Taming, section III-A; OmniLearn,
section IV-B. (Taming's eq. 3 has a further 1/K, which would shrink the step.) Bucketing and overlap stay
DistributedDataParallel's.
"""

# No postponed annotations here: DistributedDataParallel looks at those of its communication hook.

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from heterotrain.membership import CPU, Generation, is_collective_error
from heterotrain.timing import StepClock

# One bucket for small models: each collective costs a worker with a small CPU quota some CPU of its own.
BUCKET_MEGABYTES = 25.0

# Buffers stay each rank's own between checkpoints; newer versions of torch have another name for that.
_OWN_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers"
    if "forward_sync_buffers" in signature(DistributedDataParallel.__init__).parameters
    else "broadcast_buffers": False
}


class StepReduction:
    """The state of the running step's gradient collectives; tells the commit whether all of them completed."""

    def __init__(self, generation: Generation, clock: StepClock) -> None:
        self.generation = generation
        self.clock = clock
        self.error = ""  # in words: the exception itself would keep this step's groups and tensors alive
        self.in_collective = False
        self.reduced = False  # the running step's last bucket was launched
        self.evaluated = False  # a forward without gradients happened since the last step

    def fail(self, error: Exception) -> None:
        """Record the first error, and let no other rank wait for this one's part."""
        self.error = self.error or str(error) or type(error).__name__
        self.generation.break_up(self.error)


def reduce_bucket(reduction: StepReduction, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Communication hook: sum a bucket over the ranks. Never raises, so that `backward()` never does."""
    reduction.clock.bucket_ready()
    local = bucket.buffer()
    if reduction.error:
        return _completed(local)
    reduction.in_collective = reduction.reduced = bucket.is_last()
    try:
        work = dist.all_reduce(local, group=reduction.generation.gradients, async_op=True)
        future = reduction.generation.watch(work, local.device)
    except RuntimeError as error:
        reduction.fail(error)
        return _completed(local)

    def finish(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        try:
            reduced = done.value()[0]
        except RuntimeError as error:
            reduction.fail(error)
            return local
        reduction.clock.bucket_done()
        return reduced

    summed: torch.futures.Future[torch.Tensor] = future.then(finish)
    return summed


def _completed(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
        devices=None if tensor.device == CPU else [tensor.device]
    )
    future.set_result(tensor)
    return future


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

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._parallel: list[DistributedDataParallel] = []  # in a list: it must not be a submodule
        self._reduction: StepReduction | None = None

    def attach(
        self,
        generation: Generation,
        clock: StepClock,
        device: torch.device,
    ) -> StepReduction:
        """Sum gradients over `generation` from now on. Rank 0's parameters become everybody's.

        Raises RuntimeError if the group breaks meanwhile.
        """
        self._parallel.clear()  # drops the old wrapper's hooks
        parallel = DistributedDataParallel(
            _Replica(self.module),
            process_group=generation.gradients,
            device_ids=[device] if device.type == "cuda" else None,
            **_OWN_BUFFERS,
            bucket_cap_mb=BUCKET_MEGABYTES,
            gradient_as_bucket_view=True,
        )
        self._reduction = StepReduction(generation, clock)
        parallel.register_comm_hook(self._reduction, reduce_bucket)
        self._parallel.append(parallel)
        return self._reduction

    def detach(self) -> None:
        """Stop summing: the wrapper and its hooks go."""
        self._parallel.clear()
        self._reduction = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward. Raises RuntimeError if this step's gradients were summed already."""
        reduction = self._reduction
        if reduction is None or not self._parallel:
            return self.module(*args, **kwargs)
        if not torch.is_grad_enabled():
            reduction.evaluated = True
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
            zero = self._in_parallel(
                lambda: self._parallel[0](without_samples=True),
                lambda: None,
            )
            if zero is not None:
                zero.backward()

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

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)


def sample_weight(samples: int, global_samples: int, reduction: str) -> float:
    """Factor on a rank's loss that makes the sum over ranks the mean over the global batch.

    `samples` are this rank's, `global_samples` the step's (both real counts). A loss that is the mean over the rank's
    samples is weighted with `lambda_k = b_k / sum(b)`, one that is their sum with `1 / sum(b)`.
    Source: Taming, section III-A; OmniLearn, section IV-B.
    """
    return samples / global_samples if reduction == "mean" else 1 / global_samples
