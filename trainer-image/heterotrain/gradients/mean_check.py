"""Looks in the graph of a loss whether what the script calls a mean over samples is a mean over something else.

Cross-entropy with class weights or with `ignore_index` divides by the weights, or by the targets that are left. So do
token losses over padded sequences, such as those that Hugging Face's models return. If such means are weighted by
numbers of samples, the gradient is another than that of one process; unless all samples have as many targets.
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
_HALF = 1 << 63  # of all whole numbers of 64 bits


class MeanCheck:
    """Looks at a worker's first losses, and warns once."""

    def __init__(self) -> None:
        self.looks_left = _LOOKS

    def look(self, loss: torch.Tensor, samples: int) -> None:
        """Look at a loss that is, as the script says, a mean over `samples` samples."""
        if not self.looks_left:
            return
        self.looks_left -= 1
        for mean in _means(loss):
            divisor, targets = float(mean._saved_total_weight), mean._saved_target.numel()
            if abs(divisor - targets) > 1e-6 * targets and not _is_even(mean, samples):
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


def _means(loss: torch.Tensor) -> Iterator[Any]:
    """The node of each cross-entropy in a loss that is a mean."""
    waiting = deque([loss.grad_fn])
    seen: set[Any] = set()
    while waiting and len(seen) < _DEEP:
        node: Any = waiting.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name().startswith("NllLoss") and node._saved_reduction == _MEAN:
            yield node
        waiting.extend(following for following, _ in node.next_functions)


def _is_even(mean: Any, samples: int) -> bool:
    """Whether each sample has as many targets that count, and each of them counts as one: then a mean over targets is
    one over samples."""
    targets = mean._saved_target
    if mean._saved_weight is not None or targets.numel() % samples:
        return False
    ignored = (mean._saved_ignore_index + _HALF) % (2 * _HALF) - _HALF  # torch shows it as if it had no sign
    counting = (targets.reshape(samples, -1) != ignored).sum(1)
    return bool((counting == counting[0]).all())
