"""What of a model travels between a worker and its parameter server, and where in the bytes that travel.

Both sides have the same model, which their traits say before anything else, so both know the size and the places by
themselves, and no length that comes from the other side is believed. Up travel the gradients of what is trained (or the
parameters) and the model's buffers; down the parameters and the buffers, and for a worker that has just come also what
is frozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain

import torch
from torch import nn

from heterotrain.state.batch_norm import RunningStatistics

_ALIGNMENT = 64


class Layout:
    """The places of a model's tensors. A *room* is memory on the CPU for what travels in one direction, once."""

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
        """New memory, uint8 of shape (size,), or (whole_size,)."""
        return torch.zeros(self.whole_size if whole else self.size, dtype=torch.uint8)

    def gradients(self, room: torch.Tensor) -> list[torch.Tensor]:
        """Those of `trained` in a room, in place."""
        return self._views(room, self.trained)

    @torch.no_grad()
    def write(self, room: torch.Tensor, trained: Iterable[torch.Tensor | None], *, whole: bool = False) -> None:
        """Write gradients, or parameters, and the buffers into a room; zeros for what is None."""
        values = chain(trained, self.buffers, self._frozen if whole else ())
        for view, value in zip(self._views(room, self._tensors(whole=whole)), values, strict=True):
            if value is None:
                view.zero_()
            else:
                view.copy_(value)

    @torch.no_grad()
    def read(self, room: torch.Tensor, *, whole: bool = False, buffers: bool = True) -> None:
        """Take over the parameters, and the buffers, in a room."""
        tensors = self._tensors(whole=whole) if buffers else self.trained
        for own, view in zip(tensors, self._views(room, tensors), strict=True):
            own.copy_(view)

    @torch.no_grad()
    def move_buffers(self, room: torch.Tensor, share: float) -> None:
        """Move BatchNorm's running statistics by this share, 0 to 1, of the way to a worker's, which they are at 1, and
        take over its other buffers."""
        views = self._views(room, self._tensors(whole=False))[len(self.trained) :]
        for own, view, averaged in zip(self.buffers, views, self._averaged, strict=True):
            theirs = view.to(own.device)
            own.copy_(own.lerp(theirs, share) if averaged else theirs)

    def _tensors(self, *, whole: bool) -> list[torch.Tensor]:
        return [*self.trained, *self.buffers, *(self._frozen if whole else ())]

    def _views(self, room: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [
            room[start : start + each.numel() * each.element_size()].view(each.dtype).view(each.shape)
            for start, each in zip(self._starts, tensors, strict=False)  # the first of them
        ]


def memory_of(room: torch.Tensor) -> memoryview:
    """The bytes of a room, as a socket reads and writes them."""
    return memoryview(room.numpy())  # type: ignore[arg-type]  # its stub lacks the buffer protocol


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
