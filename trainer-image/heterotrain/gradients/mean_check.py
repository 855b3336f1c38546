"""Looks in the graph of a loss whether what the script calls a mean over samples is a mean over something else.

Cross-entropy with class weights or with `ignore_index` divides by the weights, or by the targets that are left. So do
token losses over padded sequences, such as those that Hugging Face's models return. If such means are weighted by
numbers of samples, the gradient is another than that of one process.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

log = logging.getLogger(__name__)

_LOOKS = 20  # batches that are looked at
_DEEP = 64  # nodes of a loss's graph that are looked at
_MEAN = 1  # torch's number for reduction="mean"


class MeanCheck:
    """Looks at a worker's first losses, and warns once."""

    def __init__(self) -> None:
        self.looks_left = _LOOKS

    def look(self, loss: torch.Tensor, samples: int) -> None:
        """Look at a loss that is, as the script says, a mean over `samples` samples."""
        if not self.looks_left:
            return
        self.looks_left -= 1
        for divisor, targets in _means(loss):
            if abs(divisor - targets) > 1e-6 * targets:
                self.looks_left = 0
                log.warning(
                    "the loss is no mean over samples: a cross-entropy in it divides by %g where it has %d targets of "
                    "%d samples, because of class weights, ignore_index or padding. How the batch is split then "
                    "changes the gradient. Say session.prepare(..., counted=True), and session.scale(loss, count=...) "
                    "with the sum of the weights, or the number of targets that count",
                    divisor,
                    targets,
                    samples,
                )
                return


def _means(loss: torch.Tensor) -> Iterator[tuple[float, int]]:
    """For each cross-entropy in a loss: what its sum was divided by, and how many targets it had."""
    waiting = deque([loss.grad_fn])
    seen: set[Any] = set()
    while waiting and len(seen) < _DEEP:
        node: Any = waiting.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name().startswith("NllLoss") and node._saved_reduction == _MEAN:
            yield float(node._saved_total_weight), node._saved_target.numel()
        waiting.extend(following for following, _ in node.next_functions)
