"""The protocol of a step: what any way of training together offers to the life of a worker.

A worker's is `Synchronous` or, with a parameter server, `Asynchronous`, and the server's is `Serving`. Whatever it is,
the life of a worker (`life.py`) decides at the boundary between two steps whether there is a next one, and the script
computes and calls `scale`, `backward` and `step`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch

from heterotrain.data.sampler import Share


class BatchProtocol(Protocol):
    """What the script does with the batch that it has; that of a warm-up is no part of a step."""

    @property
    def share(self) -> Share | None:
        """The samples that the script computes on now; None if this worker has none in the running step."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether the script has a batch that it has not committed yet."""
        ...

    def coming(self) -> Iterator[Share]:
        """This worker's shares from the micro-batch under way on, provided that the plan stays as it is."""
        ...

    def scale(self, loss: torch.Tensor, count: float | torch.Tensor | None) -> torch.Tensor:
        """See `Session.scale`."""
        ...

    def commit(self) -> bool:
        """Commit the batch that the script has; whether that committed the step. See `ElasticOptimizer.step`."""
        ...


class StepProtocol(BatchProtocol, Protocol):
    """One worker's side of a step, in the order in which it happens."""

    def start(self) -> None:
        """The job begins, or goes on, at the position that it has come to."""
        ...

    def begin(self) -> None:
        """Begin the step at the position that the job has come to."""
        ...

    def next_part(self) -> bool:
        """Go to this worker's next micro-batch of the running step; False if there is none.

        Raises RuntimeError if the script has not committed the batch that it has.
        """
        ...

    def exchange_alone(self) -> None:
        """Exchange messages with the others between two steps, which waits for all of them."""
        ...

    def compute_nothing(self) -> None:
        """Do what the script's forward and backward do, on a worker that has no samples in this step."""
        ...

    def drop(self, why: str) -> None:
        """Undo the running step, which will be done again."""
        ...
