"""A model's buffers: a step that fails puts them back, and those of several workers are merged into one model's.

Each worker's buffers are its own while it trains. They are made equal on all workers where they are used: for an
evaluation, for a checkpoint, and at the end. By kind:

* BatchNorm's (and InstanceNorm's) running statistics are merged, weighted by samples (`batch_norm.py`).
* All others that differ between workers (counters of steps, vectors of spectral norm, codebooks) are taken from the
  worker that has seen most samples since the last merge; all from one worker, for they may depend on each other.

A module may write into a buffer, also behind the back of its version (`.data`), or put another tensor in its place. So
buffers are looked up by their owner and name, and compared by content.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from heterotrain.groups.control import broadcast_tensors, sum_over_ranks
from heterotrain.groups.generation import Generation
from heterotrain.state.batch_norm import RunningStatistics
from heterotrain.state.replica_check import bits_of, have_same_bits

_LOOKED_AT_STEPS = 3  # in which buffers that change without a trace are looked for


class _Place(NamedTuple):
    """Where a buffer is: the module that owns it, and its name there."""

    owner: nn.Module
    name: str


@dataclass(slots=True)
class _Kept:
    """A buffer, its version when it was copied, and the copy."""

    buffer: torch.Tensor
    version: int
    copy: torch.Tensor


class KeptBuffers:
    """Copies of buffers as they were before the running step; made again only of those that steps do change."""

    def __init__(self, module: nn.Module) -> None:
        # Few modules have buffers, and a walk through all modules at each step would cost too much.
        self._owners = [each for each in module.modules() if each._buffers]
        # BatchNorm writes its statistics without leaving a trace in their versions.
        self._untraced = {_Place(*place) for place in RunningStatistics(module).places()}
        self._kept: dict[_Place, _Kept] = {}
        self._looks = 0

    def keep(self) -> None:
        """Keep the buffers as they are now."""
        if self._owners:  # most models have none
            self._keep()

    @torch.no_grad()
    def _keep(self) -> None:
        copies, sources = [], []
        self._looks += 1
        for owner in self._owners:
            for name, buffer in owner._buffers.items():
                if buffer is None:
                    continue
                place = _Place(owner, name)
                kept = self._kept.get(place)
                if kept is None or kept.copy.shape != buffer.shape or kept.copy.dtype != buffer.dtype:
                    self._kept[place] = _Kept(buffer, buffer._version, buffer.clone())
                    continue
                same = place not in self._untraced and kept.buffer is buffer and kept.version == buffer._version
                if same and self._looks <= _LOOKED_AT_STEPS and not have_same_bits(kept.copy, buffer):
                    self._untraced.add(place)
                    same = False
                if not same:
                    kept.buffer, kept.version = buffer, buffer._version
                    copies.append(kept.copy)
                    sources.append(buffer)
        if copies:
            torch._foreach_copy_(copies, sources)

    @torch.no_grad()
    def restore(self) -> None:
        """Put the buffers back as they were."""
        for place, kept in self._kept.items():
            kept.buffer.copy_(kept.copy)
            kept.version = kept.buffer._version
            place.owner._buffers[place.name] = kept.buffer


class SharedBuffers:
    """The buffers of all workers, which are made equal when they are needed."""

    def __init__(self, module: nn.Module) -> None:
        self.statistics = RunningStatistics(module)
        pooled = set(self.statistics.places())
        self._others = [
            _Place(owner, name)
            for owner in module.modules()
            for name, _ in owner._buffers.items()  # TorchScript's are no dict, but have this
            if (owner, name) not in pooled
        ]
        self._samples = 0

    def saw(self, samples: int) -> None:
        """This worker's buffers have seen this many samples more, in a committed step."""
        self._samples += samples

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Whatever happens to the model inside, buffers that have seen samples since the last merge stay."""
        buffers = [*self.statistics.buffers(), *self._present()] if self._samples else []
        own = [(each, each.clone()) for each in buffers]
        yield
        with torch.no_grad():
            for buffer, value in own:
                buffer.copy_(value)

    def merge(self, generation: Generation) -> None:
        """Make the buffers of all workers equal. Raises RuntimeError if the groups break, ValueError if a buffer has
        another shape on some workers."""
        if generation.world_size == 1 or not (self._others or self.statistics.any):
            return
        seen = torch.zeros(generation.world_size, dtype=torch.float64)
        seen[generation.rank] = self._samples
        sum_over_ranks(seen, generation)
        if not seen.any():
            return
        source = int(seen.argmax())
        self.statistics.merge(self._samples, source, generation)
        present = self._present()
        own = torch.tensor([[each.numel() for each in present], [bits_of(each) for each in present]], dtype=torch.int64)
        theirs = own.clone()
        broadcast_tensors([theirs], source, generation)
        differ = (own != theirs).to(torch.int64)
        sum_over_ranks(differ, generation)
        if bool(differ[0].any()):
            place = self._others[int(differ[0].argmax())]
            raise ValueError(
                f"buffer {place.name!r} of a {type(place.owner).__name__} has another shape on some workers"
            )
        broadcast_tensors(
            [each for each, moved in zip(present, differ[1].tolist(), strict=True) if moved], source, generation
        )
        self._samples = 0

    def _present(self) -> list[torch.Tensor]:
        found = (getattr(place.owner, place.name, None) for place in self._others)
        return [torch.empty(0) if buffer is None else buffer for buffer in found]
