"""OmniLearn's dynamic batching as it is printed, for comparison: proportional control at the boundaries of epochs.

Source: Tyagi and Sharma, "OmniLearn: A Framework for Distributed Deep Learning over Heterogeneous Clusters" (Alg. 1 and
eq. 8; dead-band and bounds of its section on the implementation). A changed CPU limit is not fed forward.
"""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain_operator.core.batching.policies.papers_proportional import controlled
from heterotrain_operator.core.batching.policy import Policy, Proposal, Seat
from heterotrain_operator.core.batching.words import moved, percent, slowest
from heterotrain_operator.core.memory.batching import Batching
from heterotrain_operator.core.model import Job

DEAD_BAND = 0.10
LEAST_BATCH, GREATEST_BATCH = 4, 96
"""The paper's, for 32 samples per worker."""


def propose(job: Job, seats: Sequence[Seat], batching: Batching) -> Proposal:
    """Control once in each epoch, when the next one has begun."""
    epoch = 1 + max(seat.epoch for seat in seats)  # 0 stands for a job that was not looked at yet
    looked = max(seat.memory.noted for seat in seats)
    if epoch <= looked:
        return Proposal(None, f"OmniLearn keeps the batches until epoch {looked} ends: {slowest(seats)}")
    if looked == 0:
        memories = tuple(seat.memory._replace(noted=epoch) for seat in seats)
        return Proposal(None, f"OmniLearn keeps the batches until epoch {epoch} ends: {slowest(seats)}", memories)
    control = controlled(job, seats, [(LEAST_BATCH, GREATEST_BATCH)] * len(seats), DEAD_BAND)
    memories = tuple(memory._replace(noted=epoch) for memory in control.memories)
    if control.batches is None:
        why = f"a change of {percent(control.change, 1)} is within the dead-band of {percent(DEAD_BAND)}"
        return Proposal(None, f"OmniLearn keeps the batches: {slowest(seats)}; {why}", memories)
    return Proposal(control.batches, moved(seats, control.batches, None), memories)


POLICY = Policy(
    "OmniLearn's Alg. 1 and eq. 8, at boundaries of epochs",
    propose,
    internal=True,
    whole_intervals=True,
    watches_throughput=True,
)
