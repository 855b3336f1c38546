"""Gives workers that lag behind the state of those that do not: first its structure, then its tensors, so that no
worker holds the state a second time as bytes.

Where no more workers take the state than hold it, as when one joins, each of them takes what is the same on all from a
holder of its own, and nothing goes to anybody else; so nobody gets a mixture of what several hold. Where there are more
takers, one holder sends all to all, for then the others pass on what they have received.
docs/benchmarks/elasticity.md has how long both take.
"""

from __future__ import annotations

import platform
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

import torch

from heterotrain.groups.control import broadcast_document, broadcast_tensors, packs, sum_over_ranks
from heterotrain.groups.generation import Collective, Generation
from heterotrain.state import checkpoint
from heterotrain.state.checkpoint import CheckpointError

# How much larger than the receiver's own state the received one may be: an optimizer has no state before its first
# step.
_TIMES_LARGER = 8
_BYTES_MORE = 64 << 20

WINDOW_BYTES = 16 << 20
"""So much of the state travels at once, and as much waits to be sent behind it."""

Place = tuple[Any, ...]
"""Keys and places that lead to a tensor of a state."""

_NOTHING = torch.empty(0, dtype=torch.uint8)


def hand_over(
    own: dict[str, Any],
    source: int,
    generation: Generation,
    *,
    takes: bool,
    shared: Callable[[Place], bool],
    in_place: bool = False,
) -> dict[str, Any] | None:
    """The state of rank `source`, on the CPU, for the ranks that are to take it; None for all other ranks, which call
    this function too. `own` is this rank's state. `shared` says which tensors are the same on all ranks that do not
    take the state, but for rounding, such as parameters; all others come from the source. `in_place`: if this rank
    takes it, those of its own shared tensors that are alike are overwritten, also where it fails, and returned.

    Raises RuntimeError if the groups break, CheckpointError if what arrives is no state, or far larger than `own`.
    """
    roles = _roles(own, source, generation, takes=takes, shared=shared)
    here = own
    if generation.rank == source:
        broadcast_document(checkpoint.pack(_without_content(own)), source, generation)
    else:
        here = checkpoint.unpack(broadcast_document(None, source, generation))
        most = _TIMES_LARGER * sum(map(_bytes, _tensors(own))) + _BYTES_MORE
        coming = sum(map(_bytes, _tensors(here)))
        if coming > most:
            raise CheckpointError(f"the state of rank {source} has {coming} bytes, expected at most {most}")
        if takes:
            rooms = iter(_rooms_for(here, own if in_place else {}, shared))
            here = checkpoint.mapped(here, lambda value: next(rooms) if _has_content_apart(value) else value)
    in_pairs = by_pairs(len(roles.holders), len(roles.takers))
    if in_pairs:
        # Whoever neither holds nor takes it walks the source's layout, so that all meet in as many collectives.
        walked = own if generation.rank in roles.holders else here
        _pass_on([each for path, each in _named_tensors(walked) if shared(path)], roles, generation)
    rest = (each for path, each in _named_tensors(here) if not (in_pairs and shared(path)))
    # A frame has no content: what comes is forgotten.
    broadcast_tensors((_room_for(each, None) if each.is_meta else each for each in rest), source, generation)
    return here if takes else None


def _rooms_for(frames: dict[str, Any], own: dict[str, Any], shared: Callable[[Place], bool]) -> list[torch.Tensor]:
    """Where the tensors of a state are to come, in their order: in this rank's own shared ones, or else in new ones."""
    known = {path: each for path, each in _named_tensors(own) if shared(path)}
    return [_room_for(frame, known.get(path)) for path, frame in _named_tensors(frames)]


def _room_for(frame: torch.Tensor, own: torch.Tensor | None) -> torch.Tensor:
    if own is not None and _is_plain(own) and (own.shape, own.dtype) == (frame.shape, frame.dtype):
        return own.detach()
    return torch.empty(frame.shape, dtype=frame.dtype)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether pieces of it as a vector are pieces of itself; of others they would be copies."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def by_pairs(holders: int, takers: int) -> bool:
    """Whether so many takers each take the state from a holder of their own, or one holder sends all to all."""
    return takers <= holders


@dataclass(frozen=True, slots=True)
class _Roles:
    """Ranks that hold the same state, and those that take it."""

    holders: tuple[int, ...]
    takers: tuple[int, ...]

    def partner(self, rank: int) -> int | None:
        """Whom this rank sends the state to, or takes it from, where each taker has a holder of its own."""
        pairs = dict(zip(self.takers, self.holders, strict=False))
        return pairs.get(rank, {holder: taker for taker, holder in pairs.items()}.get(rank))


def _roles(
    own: dict[str, Any], source: int, generation: Generation, *, takes: bool, shared: Callable[[Place], bool]
) -> _Roles:
    """Only workers whose shared tensors are laid out as the source's, and which compute as it does, hold the same ones:
    the last bits depend on the processor."""
    said = torch.zeros(2, generation.world_size, dtype=torch.int64)
    said[:, generation.rank] = torch.tensor([takes, 0 if takes else _kind_of(own, shared)])
    sum_over_ranks(said, generation)
    lagging, kinds = said.tolist()
    ranks = range(generation.world_size)
    return _Roles(
        tuple(rank for rank in ranks if not lagging[rank] and kinds[rank] == kinds[source]),
        tuple(rank for rank in ranks if lagging[rank]),
    )


def _kind_of(state: dict[str, Any], shared: Callable[[Place], bool]) -> int:
    """A number that is the same for shared tensors that are laid out alike, on processors that compute alike."""
    layout = [
        (path, tuple(each.shape), str(each.dtype), _processor(each.device))
        for path, each in _named_tensors(state)
        if shared(path)
    ]
    return zlib.crc32(repr(layout).encode())


def _processor(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}" if device.type == "cpu" else device.type


def _pass_on(tensors: Iterable[torch.Tensor], roles: _Roles, generation: Generation) -> None:
    """Send each window to the taker that is this rank's partner, or receive it from the holder that is."""
    partner, takes = roles.partner(generation.rank), generation.rank in roles.takers
    under_way, rooms = None, _Rooms()
    for window in _windows(tensors):
        if partner is None:
            launched = _UnderWay.of(generation, _NOTHING, None, _NOTHING, None)
        elif takes:
            launched = _receive(window, partner, generation, rooms)
        else:
            launched = _send(window, partner, generation, rooms)
        if under_way is not None:
            under_way.finish()
        under_way = launched
    if under_way is not None:
        under_way.finish()


class _Rooms:
    """Two buffers that windows use in turn, for while one is under way the next is launched, and none is before the
    last but one has ended. New memory for each window costs twenty times as much as what is copied through it."""

    def __init__(self) -> None:
        self._next, self._other = torch.empty(0, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> torch.Tensor:
        """Room for so many bytes."""
        room, self._next = self._next, self._other
        if len(room) < size:
            room = torch.empty(size, dtype=torch.uint8)
        self._other = room
        return room[:size]


@dataclass(slots=True)
class _UnderWay:
    """One window's collective, and where its bytes go."""

    collective: Collective
    buffers: tuple[torch.Tensor, torch.Tensor]  # which gloo reads and writes meanwhile
    places: Sequence[torch.Tensor] = ()

    @classmethod
    def of(
        cls, generation: Generation, sent: torch.Tensor, to: int | None, came: torch.Tensor, by: int | None
    ) -> _UnderWay:
        """Begin to send these bytes `to` one rank, and to receive others from one."""
        ways_out, ways_in = [0] * generation.world_size, [0] * generation.world_size
        if to is not None:
            ways_out[to] = len(sent)
        if by is not None:
            ways_in[by] = len(came)
        return cls(generation.exchange(sent, ways_out, came, ways_in), (sent, came))

    def finish(self) -> None:
        """Wait for it, and put what has come into its places. Raises RuntimeError."""
        self.collective.wait()
        came = self.buffers[1]
        sizes = accumulate((_bytes(place) for place in self.places), initial=0)
        for place, (start, stop) in zip(self.places, pairwise(sizes), strict=True):
            part = came[start:stop]
            # The bytes of a tensor with wider elements may begin anywhere in the window, and are no view of it then.
            place.copy_((part.clone() if start % place.element_size() else part).view(place.dtype))


def _send(window: Sequence[torch.Tensor], to: int, generation: Generation, rooms: _Rooms) -> _UnderWay:
    if _may_travel_as_it_is(window):
        return _UnderWay.of(generation, window[0].view(torch.uint8), to, _NOTHING, None)
    sent = rooms.take(sum(map(_bytes, window)))
    start = 0
    for piece in window:
        stop = start + _bytes(piece)
        sent[start:stop].copy_(piece.contiguous().view(torch.uint8))
        start = stop
    return _UnderWay.of(generation, sent, to, _NOTHING, None)


def _receive(window: Sequence[torch.Tensor], by: int, generation: Generation, rooms: _Rooms) -> _UnderWay:
    if _may_travel_as_it_is(window):
        return _UnderWay.of(generation, _NOTHING, None, window[0].view(torch.uint8), by)
    under_way = _UnderWay.of(generation, _NOTHING, None, rooms.take(sum(map(_bytes, window))), by)
    under_way.places = window
    return under_way


def _may_travel_as_it_is(window: Sequence[torch.Tensor]) -> bool:
    """Whether gloo may read or write the window where it is."""
    return len(window) == 1 and window[0].device.type == "cpu" and window[0].is_contiguous()


def _windows(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """All elements as pieces that are vectors, in windows of at most `WINDOW_BYTES` (or one element)."""
    # A tensor that is conjugated or negated lazily cannot be viewed as bytes.
    flat = (each.detach().resolve_conj().resolve_neg().reshape(-1) for each in tensors)
    pieces = (torch.split(each, max(1, WINDOW_BYTES // each.itemsize)) for each in flat)
    return packs(chain.from_iterable(pieces), WINDOW_BYTES)


def _without_content(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = checkpoint.mapped(
        state, lambda value: value.detach().to("meta") if _has_content_apart(value) else value
    )
    return found


def _has_content_apart(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    return value.layout is torch.strided and not (value.is_nested or value.is_quantized)


def _tensors(state: dict[str, Any]) -> Iterator[torch.Tensor]:
    return (each for _, each in _named_tensors(state))


def _named_tensors(value: Any, path: Place = ()) -> Iterator[tuple[Place, torch.Tensor]]:
    """The tensors of a state, in the order of `checkpoint.mapped`, each with its keys and places."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _named_tensors(each, (*path, key))
    elif type(value) in (list, tuple):
        for place, each in enumerate(value):
            yield from _named_tensors(each, (*path, place))
    elif _has_content_apart(value):
        yield path, value


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
