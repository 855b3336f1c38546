"""The sum of a step's gradients over the workers, bucket by bucket, while backward goes on."""

# No postponed annotations here: DistributedDataParallel looks at those of its communication hook.

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from heterotrain.accumulation import Accumulator
from heterotrain.counting import GlobalCount
from heterotrain.generation import CPU, Generation
from heterotrain.timing import StepClock
from heterotrain.wire import Wire

_TRAVEL_AS_FLOAT32 = (torch.bfloat16, torch.float16)


class Witness:
    """What gradients were when they arrived, so that one can tell whether the script has changed them since."""

    def __init__(self) -> None:
        self._traits: dict[torch.Tensor, torch.Tensor] = {}

    def saw(self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """These have arrived."""
        for parameter, gradient in zip(parameters, gradients, strict=True):
            self._traits[parameter] = _traits(gradient)

    @property
    def changed(self) -> bool:
        """Whether a gradient is another now. One that is no number may seem so without being it."""
        return any(
            parameter.grad is None or not torch.equal(_traits(parameter.grad), traits)
            for parameter, traits in self._traits.items()
        )


def _traits(gradient: torch.Tensor) -> torch.Tensor:
    """Its sum and its norm: what keeps one, as a change of sign does, changes the other."""
    return torch.stack([gradient.sum(), torch.linalg.vector_norm(gradient).to(gradient.dtype)])


class StepReduction:
    """The state of the running step's gradient collectives; tells the commit whether all of them completed."""

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

    def begin(self, *, watched: bool) -> None:
        """A step begins, or begins again; if it is `watched` there is a witness of the gradients as they arrive."""
        self.reduced = False
        self.count = None
        self.witness = Witness() if watched else None

    def fail(self, error: Exception) -> None:
        """Record the first error, and let no other rank wait for this one's part."""
        self.error = self.error or str(error) or type(error).__name__
        self.generation.break_up(self.error)


class Reducing:
    """What sums at the moment; None before the workers have met, and once they have parted."""

    def __init__(self) -> None:
        self.now: StepReduction | None = None


def reduce_bucket(reducing: Reducing, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Communication hook: sum a bucket over the ranks. Never raises, so that `backward()` never does."""
    buffer = bucket.buffer()
    reduction = reducing.now
    if reduction is None:
        return _completed(buffer)
    parameters: Sequence[torch.Tensor] = ()
    gradients: Sequence[torch.Tensor] = ()
    if reduction.accumulator.holds_gradients or reduction.witness is not None:
        # Made at every call, one view for each parameter: most steps need none.
        parameters, gradients = bucket.parameters(), bucket.gradients()
        reduction.accumulator.add_to(parameters, gradients)
    reduction.clock.bucket_ready()
    if reduction.error:
        return _completed(buffer)
    reduction.in_collective = reduction.reduced = bucket.is_last()

    def finish(outcome: Callable[[], list[torch.Tensor]]) -> torch.Tensor:
        try:
            reduced = outcome()[0]
            if reduction.count is not None:
                reduced.mul_(reduction.count.factor())
        except RuntimeError as error:
            reduction.fail(error)
            return buffer
        if reduced.dtype != buffer.dtype:
            reduced = buffer.copy_(reduced)
        if reduction.witness is not None:
            reduction.witness.saw(parameters, gradients)
        reduction.clock.bucket_done()
        return reduced

    try:
        return reduction.wire.sum(buffer.float() if buffer.dtype in _TRAVEL_AS_FLOAT32 else buffer, finish)
    except RuntimeError as error:
        reduction.fail(error)
        return _completed(buffer)


def _completed(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
        devices=None if tensor.device == CPU else [tensor.device]
    )
    future.set_result(tensor)
    return future
