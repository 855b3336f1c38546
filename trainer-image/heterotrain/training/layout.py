"""What of a model travels between a worker and its parameter server, and where in the bytes that travel.

Both sides have the same model, which their traits say before anything else, so both know the size and the places by
themselves, and no length that comes from the other side is believed. Up travel the gradients of what is trained (or the
parameters) and the model's buffers; down the parameters and the buffers, and for a worker that has just come also what
is frozen.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch
from torch import nn

from heterotrain.state.batch_norm import RunningStatistics

_ALIGNMENT = 64


class Layout:
    """The places of a model's tensors. A *room* is memory on the CPU for what travels in one direction, once. A *plain*
    tensor lies in the CPU's memory as it would in a room, and needs none."""

    def __init__(self, module: nn.Module, trained: Sequence[nn.Parameter]) -> None:
        """`trained` are the parameters whose gradients travel."""
        self.trained = trained
        # A module may put another tensor in a buffer's place, so buffers are looked up where they are.
        places = {
            id(each): (owner, name)
            for owner in module.modules()
            for name, each in owner._buffers.items()
            if each is not None
        }
        self._places = list(places.values())
        known = {id(each) for each in trained}
        self._frozen = [each for each in module.parameters() if id(each) not in known]
        statistics = {id(each) for each in RunningStatistics(module).moments()}
        self._averaged = [id(each) in statistics for each in self.buffers]
        self._starts = list(accumulate(map(_aligned, self._tensors(whole=True)), initial=0))
        self.size = self._starts[len(self._tensors(whole=False))]
        """Bytes of what always travels."""
        self.whole_size = self._starts[-1]
        """Bytes, with what is frozen."""

    @property
    def buffers(self) -> list[torch.Tensor]:
        """The model's."""
        return [owner._buffers[name] for owner, name in self._places]  # type: ignore[misc]  # none of these is None

    def room(self, *, whole: bool = False) -> torch.Tensor:
        """New memory, uint8 of shape (size,), or (whole_size,); what of it is never used takes up none."""
        size = self.whole_size if whole else self.size
        memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return torch.frombuffer(memory, dtype=torch.uint8)[:size]

    def gradients(self, room: torch.Tensor) -> list[torch.Tensor]:
        """Those of `trained` in a room, in place."""
        return self._views(room, self.trained)

    @torch.no_grad()
    def write(self, room: torch.Tensor, *, whole: bool = False) -> None:
        """Write the parameters and the buffers into a room."""
        for own, view in self._pairs(room, whole=whole):
            view.copy_(own)

    @torch.no_grad()
    def read(self, room: torch.Tensor) -> None:
        """Take over the trained parameters in a room."""
        for own, view in zip(self.trained, self.gradients(room), strict=True):
            own.copy_(view)

    @torch.no_grad()
    def outgoing(self, room: torch.Tensor, trained: Iterable[torch.Tensor | None]) -> list[memoryview]:
        """What is sent of gradients, or parameters, and the buffers, in parts: the memory of plain tensors, and the
        room's, into which all others are written; zeros for what is None."""
        values = [*trained, *self.buffers]
        for value, (_, view) in zip(values, self._pairs(room, whole=False), strict=True):
            if value is None:
                view.zero_()
            elif not _is_plain(value, view):
                view.copy_(value)
        return self._parts(room, values, whole=False)

    def incoming(self, room: torch.Tensor, *, whole: bool, apart: bool = False) -> list[memoryview]:
        """Where parameters and buffers are received, in parts: the memory of plain ones, and the room's, which takes
        all if they are to be kept `apart` from the model until `settle`."""
        return self._parts(room, () if apart else self._tensors(whole=whole), whole=whole)

    @torch.no_grad()
    def settle(self, room: torch.Tensor, *, whole: bool, apart: bool = False) -> None:
        """Take over what was received in the room."""
        for own, view in self._pairs(room, whole=whole):
            if apart or not _is_plain(own, view):
                own.copy_(view)

    @torch.no_grad()
    def move_buffers(self, room: torch.Tensor, share: float) -> None:
        """Move BatchNorm's running statistics by this share, 0 to 1, of the way to a worker's, which they are at 1, and
        take over its other buffers."""
        pairs = self._pairs(room, whole=False)[len(self.trained) :]
        for (own, view), averaged in zip(pairs, self._averaged, strict=True):
            theirs = view.to(own.device)
            own.copy_(own.lerp(theirs, share) if averaged else theirs)

    def _tensors(self, *, whole: bool) -> list[torch.Tensor]:
        return [*self.trained, *self.buffers, *(self._frozen if whole else ())]

    def _pairs(self, room: torch.Tensor, *, whole: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
        tensors = self._tensors(whole=whole)
        return list(zip(tensors, self._views(room, tensors), strict=True))

    def _parts(self, room: torch.Tensor, values: Sequence[torch.Tensor | None], *, whole: bool) -> list[memoryview]:
        memory, at, parts = memory_of(room), 0, []
        for start, value, (_, view) in zip(self._starts, values, self._pairs(room, whole=whole), strict=False):
            if value is not None and _is_plain(value, view):
                own = memory_of(value.detach().view(-1).view(torch.uint8))
                parts += [memory[at:start], own]
                at = start + len(own)
        return [each for each in (*parts, memory[at : self.whole_size if whole else self.size]) if each]

    def _views(self, room: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [
            room[start : start + each.numel() * each.element_size()].view(each.dtype).view(each.shape)
            for start, each in zip(self._starts, tensors, strict=False)  # the first of them
        ]


def memory_of(room: torch.Tensor) -> memoryview:
    """The bytes of a room, as a socket reads and writes them."""
    return memoryview(room.numpy())  # type: ignore[arg-type]  # its stub lacks the buffer protocol


def _is_plain(tensor: torch.Tensor, view: torch.Tensor) -> bool:
    """Whether the bytes of a tensor are those of its view in a room."""
    is_dense = tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.dtype is view.dtype
    return is_dense and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def are_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether all numbers in them are numbers, as their sums show at the least cost."""
    sums = [each.sum(dtype=_wide(each.dtype)) for each in tensors if each.numel()]
    return bool(torch.stack([each.isfinite() for each in sums]).all()) if sums else True


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype is torch.float64 else torch.float32


def _aligned(tensor: torch.Tensor) -> int:
    return -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
