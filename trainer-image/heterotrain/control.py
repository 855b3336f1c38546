"""Small collectives beside the gradients', on a gloo group of their own: signals, and documents from one to all."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist

from heterotrain.membership import Generation


@dataclass(frozen=True, slots=True)
class Signals:
    """What each rank contributes to an exchange, and, summed over the ranks, what all then know.

    Of the steps committed since the last exchange: `samples`, `loss` (contribution to the sum of their global losses),
    `loss_weight` (the share of their samples it stands for), `nonfinite` (those with a loss that is no number). `stop`:
    ranks that were asked to stop. `learning_rate`, of which all must have the same. Only the leader sets the others, so
    their sums are its word: `plan_version` and `plan_bytes`, its newest plan and the length of its document, 0 if there
    is nothing new, and `next_after`, in how many steps the next exchange is due.
    """

    samples: float = 0.0
    stop: float = 0.0
    loss: float = 0.0
    loss_weight: float = 0.0
    nonfinite: float = 0.0
    learning_rate: float = 0.0
    plan_version: float = 0.0
    plan_bytes: float = 0.0
    next_after: float = 0.0

    def to_tensor(self) -> torch.Tensor:
        """float64 of shape (9,): exact for integers up to 2**53."""
        return torch.tensor(astuple(self), dtype=torch.float64)


class PendingSignals:
    """An exchange under way."""

    def __init__(self, signals: Signals, generation: Generation) -> None:
        """Launch it. Raises RuntimeError if the group is broken."""
        self._tensor = signals.to_tensor()
        self._end = generation.watch(dist.all_reduce(self._tensor, group=generation.control, async_op=True))

    def read(self) -> Signals:
        """The sums over all ranks. Raises RuntimeError if the group broke meanwhile."""
        self._end.wait()
        return Signals(*self._tensor.tolist())


def sum_over_ranks(tensor: torch.Tensor, generation: Generation) -> None:
    """In place. Raises RuntimeError."""
    generation.watch(dist.all_reduce(tensor, group=generation.control, async_op=True)).wait()


def broadcast_bytes(data: bytes | None, length: int, source: int, generation: Generation) -> bytes:
    """Send `data` of `length` bytes from rank `source` to all; the others pass None. Raises RuntimeError."""
    if not length:
        return b""
    buffer = torch.empty(length, dtype=torch.uint8)
    if data is not None:
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    _broadcast(buffer, source, generation)
    return bytes(buffer.numpy().tobytes())


def broadcast_document(data: bytes | None, source: int, generation: Generation) -> bytes:
    """As `broadcast_bytes`, for receivers that do not know the length. Raises RuntimeError."""
    length = torch.tensor([0 if data is None else len(data)], dtype=torch.int64)
    _broadcast(length, source, generation)
    return broadcast_bytes(data, int(length.item()), source, generation)


def gather_documents(data: bytes, generation: Generation) -> list[bytes]:
    """Every rank's document, by rank, on all of them. Raises RuntimeError."""
    lengths = torch.zeros(generation.world_size, dtype=torch.int64)
    lengths[generation.rank] = len(data)
    sum_over_ranks(lengths, generation)
    parts = list(pairwise(accumulate(lengths.tolist(), initial=0)))
    start, stop = parts[generation.rank]
    whole = torch.zeros(parts[-1][1], dtype=torch.uint8)
    whole[start:stop] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    sum_over_ranks(whole, generation)  # zeros but for one rank's part
    received = whole.numpy().tobytes()
    return [received[start:stop] for start, stop in parts]


def _broadcast(tensor: torch.Tensor, source: int, generation: Generation) -> None:
    # Ranks of the control group are those of the whole, so the source is both its group's and the global one.
    generation.watch(dist.broadcast(tensor, src=source, group=generation.control, async_op=True)).wait()
