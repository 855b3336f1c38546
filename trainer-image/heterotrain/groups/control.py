"""Small collectives beside the gradients', on a gloo group of their own: signals, documents, tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import accumulate, pairwise

import torch

from heterotrain.groups.generation import Generation


@dataclass(frozen=True, slots=True)
class Signals:
    """What each rank contributes to an exchange, and, summed over the ranks, what all then know.

    Of the steps committed since the last exchange: `samples`, `loss` (contribution to the sum of their global losses),
    `loss_weight` (the share of their samples it stands for), `nonfinite` (those with a loss that is no number),
    `epoch_loss` and `epoch_weight` (see `EpochLoss`). `stop`:
    ranks that were asked to stop; `done`: ranks whose script has ended the job; `prepared`: ranks that can go over to
    the next generation, `failed`: those that could not make its groups, `refuses`: those that never can. Only the
    leader sets the other fields, so their sums are its values: `plan_version` and `plan_bytes`, its newest plan and the
    length of its document, 0 if there is nothing new, `attempt`, under which number groups of the next generation are
    to be made, 0 if there are none to make, `switch`, 1 if all are to go over to the next generation after this step,
    and `next_after`, in how many steps the next exchange is due.
    """

    samples: float = 0.0
    stop: float = 0.0
    done: float = 0.0
    loss: float = 0.0
    loss_weight: float = 0.0
    nonfinite: float = 0.0
    plan_version: float = 0.0
    plan_bytes: float = 0.0
    prepared: float = 0.0
    failed: float = 0.0
    refuses: float = 0.0
    attempt: float = 0.0
    switch: float = 0.0
    next_after: float = 0.0
    epoch_loss: float = 0.0
    epoch_weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Checksums:
    """One worker's figures that must be equal on all workers: whole numbers below 2**53, or sums. That of `registered`
    modules is 0 where they are not compared."""

    hyperparameters: float
    replica: float
    registered: float = 0.0


_SIGNALS = len(fields(Signals))
_CHECKSUMS = len(fields(Checksums))
_FRAME = 1 << 14  # bytes of the first collective of a document, of which as many as `_LENGTH` say how long it is
_LENGTH = 8


class PendingSignals:
    """An exchange under way."""

    def __init__(self, signals: Signals, checksums: Checksums, generation: Generation) -> None:
        """Launch it. Raises RuntimeError if the group is broken."""
        # float64 is exact for integers up to 2**53. Checksums have a place for each rank, so that every rank sees all
        # of them.
        own = [0.0] * (_CHECKSUMS * generation.world_size)
        place = _CHECKSUMS * generation.rank
        own[place : place + _CHECKSUMS] = astuple(checksums)
        self._tensor = torch.tensor([*astuple(signals), *own], dtype=torch.float64)
        self._end = generation.sum(self._tensor)

    def read(self) -> tuple[Signals, list[Checksums]]:
        """The sums over all ranks, and each rank's checksums. Raises RuntimeError if the group broke meanwhile."""
        self._end.wait()
        numbers = self._tensor.tolist()
        places = range(_SIGNALS, len(numbers), _CHECKSUMS)
        return Signals(*numbers[:_SIGNALS]), [Checksums(*numbers[place : place + _CHECKSUMS]) for place in places]


def sum_over_ranks(tensor: torch.Tensor, generation: Generation) -> None:
    """Sum a tensor over all ranks, in place. Raises RuntimeError."""
    generation.sum(tensor).wait()


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
    """Do as `broadcast_bytes` does, for receivers that do not know the length. A short document takes one collective.
    Raises RuntimeError."""
    frame = None if data is None else (len(data).to_bytes(_LENGTH, "little") + data)
    first = None if frame is None else frame[:_FRAME].ljust(_FRAME, b"\0")
    came = broadcast_bytes(first, _FRAME, source, generation)
    length = int.from_bytes(came[:_LENGTH], "little")
    rest = None if frame is None else frame[_FRAME:]
    return came[_LENGTH : _LENGTH + length] + broadcast_bytes(
        rest, max(0, _LENGTH + length - _FRAME), source, generation
    )


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


def broadcast_tensors(tensors: Iterable[torch.Tensor], source: int, generation: Generation) -> None:
    """Send the tensors of rank `source` to all, in place, small ones together; they must be alike. Raises
    RuntimeError."""
    sends = generation.rank == source
    room = torch.empty(0, dtype=torch.uint8)  # for all packs, since new memory costs more than what is copied into it
    with torch.no_grad():
        for pack in packs(tensors):
            # A tensor that is conjugated or negated lazily cannot be viewed as bytes.
            own = [each.detach().to("cpu").resolve_conj().resolve_neg().contiguous() for each in pack]
            parts = [each.reshape(-1).view(torch.uint8) for each in own]
            if len(parts) == 1:
                _broadcast(parts[0], source, generation)
            else:
                sizes = [len(part) for part in parts]
                room = room if len(room) >= sum(sizes) else torch.empty(sum(sizes), dtype=torch.uint8)
                together = torch.split(room[: sum(sizes)], sizes)
                if sends:
                    _copy(parts, together)
                _broadcast(room[: sum(sizes)], source, generation)
                if not sends:
                    _copy(together, parts)
            if not sends:
                _copy(own, pack)


def _copy(tensors: Sequence[torch.Tensor], places: Sequence[torch.Tensor]) -> None:
    for each, place in zip(tensors, places, strict=True):
        place.copy_(each)


def _broadcast(tensor: torch.Tensor, source: int, generation: Generation) -> None:
    generation.broadcast(tensor, source).wait()


PACK_BYTES = 16 << 20
"""Of tensors that travel together, which takes a copy of them."""

_ALONE_SHARE = 4  # of a pack; tensors of a quarter of it travel from where they are


def packs(tensors: Iterable[torch.Tensor], most_bytes: int = PACK_BYTES) -> Iterator[list[torch.Tensor]]:
    """All tensors but empty ones: large ones alone, small ones together, in packs of at most `most_bytes`. Where shapes
    and types are alike on all workers, so are the packs. `tensors` are asked for as they are needed."""
    pack: list[torch.Tensor] = []
    room = most_bytes
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if size * _ALONE_SHARE >= most_bytes:
            yield [tensor]
        elif size:
            if size > room:
                yield pack
                pack, room = [], most_bytes
            pack.append(tensor)
            room -= size
    if pack:
        yield pack
