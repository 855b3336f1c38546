"""What a user should know about how the job's samples are divided, before the first step; pure."""

from __future__ import annotations

from collections.abc import Iterator

from heterotrain.contract import Plan
from heterotrain.data import sampler
from heterotrain.data.sampler import Rules
from heterotrain.state.batch_norm import WARNING

_FEW_STEPS = 5  # of an epoch, below which a smaller one among them is worth a remark


def remarks_on_division(rules: Rules, plan: Plan) -> Iterator[str]:
    """The remarks, which are the same on all workers, so the leader alone logs them."""
    length, batch = rules.length, plan.global_batch_size
    carries = "training.lastStep: Carry fills each step from the next epoch"
    if rules.last_step == sampler.PARTIAL:
        if length < batch:
            yield f"the data set has {length} samples, fewer than the global batch of {batch}; {carries}"
        elif length % batch and rules.steps_per_epoch(batch) <= _FEW_STEPS:
            yield (
                f"one of {rules.steps_per_epoch(batch)} steps of each epoch has {length % batch} samples "
                f"instead of {batch} and is not measured, which slows the balancing down; {carries}"
            )
    if rules.least > 1 and len(plan.members) > 1:
        yield WARNING
