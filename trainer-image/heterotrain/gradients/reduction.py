"""The sum of a step's gradients over the workers, bucket by bucket, while backward goes on."""

# No postponed annotations here: DistributedDataParallel looks at those of its communication hook.

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from heterotrain.gradients.accumulation import Accumulator
from heterotrain.gradients.counting import GlobalCount
from heterotrain.gradients.wire import Sum, Wire
from heterotrain.groups.generation import CPU, Generation
from heterotrain.reporting.timing import StepClock

_TRAVEL_AS_FLOAT32 = (torch.bfloat16, torch.float16)


class Witness:
    """Notes what gradients were when they arrived, to find out whether the script has changed them since."""

    def __init__(self) -> None:
        self._traits: dict[torch.Tensor, torch.Tensor] = {}

    def saw(self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """These gradients have arrived."""
        for parameter, gradient in zip(parameters, gradients, strict=True):
            self._traits[parameter] = _traits(gradient)

    @property
    def changed(self) -> bool:
        """Whether a gradient has changed since. One that is NaN may seem to have changed although it has not."""
        return any(
            parameter.grad is None or not torch.equal(_traits(parameter.grad), traits)
            for parameter, traits in self._traits.items()
        )


def _traits(gradient: torch.Tensor) -> torch.Tensor:
    """Its sum and its norm. A change of sign keeps the norm, but not the sum; other changes keep the sum, but not the
    norm."""
    return torch.stack([gradient.sum(), torch.linalg.vector_norm(gradient).to(gradient.dtype)])


class StepReduction:
    """The state of the running step's gradient collectives, from which the commit sees whether all of them
    completed."""

    def __init__(self, generation: Generation, clock: StepClock, wire: Wire, accumulator: Accumulator) -> None:
        self.generation = generation
        self.clock = clock
        self.wire = wire
        self.accumulator = accumulator
        self.error = ""  # in words: the exception itself would keep this step's groups and tensors alive
        self.in_collective = False
        self.reduced = False  # the running step's last bucket was launched
        self.count: GlobalCount | None = None  # of what the running step's loss is a mean over, if not of samples
        self.witness: Witness | None = None
        self._under_way: list[_Bucket] = []

    def begin(self, *, watched: bool) -> None:
        """A step begins, or begins again; if it is `watched` there is a witness of the gradients as they arrive."""
        self.reduced = False
        self.count = None
        self.witness = Witness() if watched else None
        self._under_way = []

    def launch(self, bucket: dist.GradBucket, buffer: torch.Tensor) -> None:
        """Begin to sum a bucket over the workers, while backward goes on."""
        parameters: Sequence[torch.Tensor] = ()
        gradients: Sequence[torch.Tensor] = ()
        if self.accumulator.holds_gradients or self.witness is not None:
            # Made at every call, one view for each parameter: most steps need none.
            parameters, gradients = bucket.parameters(), bucket.gradients()
            self.accumulator.add_to(parameters, gradients)
        self.clock.bucket_ready()
        if self.error:
            return
        self.in_collective = self.reduced = bucket.is_last()
        travels = buffer.float() if buffer.dtype in _TRAVEL_AS_FLOAT32 else buffer
        try:
            self._under_way.append(_Bucket(self.wire.sum(travels), travels, buffer, parameters, gradients))
        except RuntimeError as error:
            self.fail(error)

    def finish(self) -> None:
        """Wait for all buckets, at the end of backward: from here on gradients are sums. Never raises."""
        under_way, self._under_way = self._under_way, []
        try:
            for bucket in under_way:
                bucket.end.wait()
                if self.count is not None:
                    bucket.sum.mul_(self.count.factor())
                if bucket.sum is not bucket.buffer:
                    bucket.buffer.copy_(bucket.sum)
                if self.witness is not None:
                    self.witness.saw(bucket.parameters, bucket.gradients)
        except RuntimeError as error:
            self.fail(error)
            return
        self.clock.bucket_done()

    def fail(self, error: Exception) -> None:
        """Record the first error, and let no other rank wait for this one's part."""
        self.error = self.error or str(error) or type(error).__name__
        self.generation.break_up(self.error)


class _Bucket(NamedTuple):
    """A bucket whose `sum` is under way until `end`; DistributedDataParallel looks for it in `buffer`."""

    end: Sum
    sum: torch.Tensor
    buffer: torch.Tensor
    parameters: Sequence[torch.Tensor]
    gradients: Sequence[torch.Tensor]


class Reducing:
    """Holds what sums at the moment; None before the workers have met, and once this one has left."""

    def __init__(self) -> None:
        self.now: StepReduction | None = None

    def finish(self) -> None:
        """See `StepReduction.finish`."""
        if self.now is not None:
            self.now.finish()


def reduce_bucket(reducing: Reducing, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Communication hook: begin to sum a bucket over the ranks.

    What it returns has ended already: DistributedDataParallel would raise an error of the sum in the middle of the
    script's `backward()`, and a sum that is taken over in gloo's thread costs twice as much.
    """
    buffer = bucket.buffer()
    if reducing.now is not None:
        reducing.now.launch(bucket, buffer)
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
        devices=None if buffer.device == CPU else [buffer.device]
    )
    future.set_result(buffer)
    return future
