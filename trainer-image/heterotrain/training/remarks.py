"""What a user should know about how the job's samples are divided, before the first step; pure."""

from __future__ import annotations

from collections.abc import Iterator

from heterotrain.contract import Plan
from heterotrain.data import sampler
from heterotrain.data.sampler import Rules
from heterotrain.state.batch_norm import WARNING

_FEW_STEPS = 5  # of an epoch, below which a smaller one among them is worth a remark

_CURE = "training.lastStep: Carry fills each step from the next epoch"


def sizes_of_steps(rules: Rules, global_batch_size: int) -> str:
    """How many steps an epoch has, and how many of them are smaller than the global batch, in words."""
    steps = rules.steps_per_epoch(global_batch_size)
    epoch = f"an epoch of {rules.length} samples has {steps} {'step' if steps == 1 else 'steps'}"
    if rules.last_step == sampler.CARRY:
        return f"{epoch} at most, all of them full"
    smaller = rules.smaller_steps(global_batch_size)
    return f"{epoch}, {len(smaller)} of them smaller, of {_listed(smaller)} samples" if smaller else epoch


def remarks_on_division(rules: Rules, plan: Plan) -> Iterator[str]:
    """The remarks, which are the same on all workers, so the leader alone logs them."""
    length, batch = rules.length, plan.global_batch_size
    steps, smaller = rules.steps_per_epoch(batch), rules.smaller_steps(batch)
    if rules.last_step == sampler.PARTIAL and smaller:
        if length < batch:
            yield (
                f"each epoch is one step of its {length} samples, which are fewer than the global batch of {batch}; "
                f"{_CURE}"
            )
        elif steps <= _FEW_STEPS:
            are = "is" if len(smaller) == 1 else "are"
            yield (
                f"{len(smaller)} of {steps} steps of each epoch {are} smaller, of {_listed(smaller)} samples instead "
                f"of {batch}, and balancing goes by the others mostly; {_CURE}"
            )
    if rules.least > 1 and len(plan.members) > 1:
        yield WARNING


def _listed(sizes: tuple[int, ...]) -> str:
    return " and ".join(map(str, sizes))
