"""A model's buffers: which a step must be able to put back, and how those of several workers become one model's.

Each worker's buffers are its own while it trains. They become everybody's where they are used: for an evaluation, for
a checkpoint, and at the end. By kind:

* BatchNorm's (and InstanceNorm's) running statistics are merged, weighted by samples (`batch_norm.py`).
* All others that have changed since then (counters of steps, vectors of spectral norm, codebooks) are those of the
  worker that has seen most samples since, all of one worker, for they may depend on each other.
* Those that nobody changes, like masks, are left alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from heterotrain.batch_norm import RunningStatistics
from heterotrain.control import broadcast_tensors, sum_over_ranks
from heterotrain.membership import Generation


def _buffers(modules: Sequence[nn.Module]) -> list[torch.Tensor]:
    return [buffer for module in modules for buffer in module.buffers(recurse=False)]


class KeptBuffers:
    """Copies of buffers as they were before the running step; only of those that steps do change."""

    def __init__(self, module: nn.Module) -> None:
        # A walk through all modules at each step would be felt; few have buffers.
        self._owners = [each for each in module.modules() if list(each.buffers(recurse=False))]
        # BatchNorm writes its statistics without leaving a trace in their versions.
        self._untraced = {id(buffer) for buffer in RunningStatistics(module).buffers()}
        self._known: dict[torch.Tensor, int] = {}
        self._copies: dict[torch.Tensor, torch.Tensor] = {}

    @torch.no_grad()
    def keep(self) -> None:
        """As they are now."""
        current = _buffers(self._owners)
        changed = [each for each in current if id(each) in self._untraced or self._known.get(each) != each._version]
        if not changed:
            return
        for each in changed:
            if each not in self._copies or self._copies[each].shape != each.shape:
                self._copies[each] = torch.empty_like(each)
        torch._foreach_copy_([self._copies[each] for each in changed], changed)
        self._known = {each: each._version for each in current}
        if len(self._copies) > len(current):  # a module has put others in their place
            self._copies = {each: self._copies[each] for each in current}

    @torch.no_grad()
    def restore(self) -> None:
        """As they were."""
        for buffer, copy in self._copies.items():
            if id(buffer) in self._untraced or self._known.get(buffer) != buffer._version:
                buffer.copy_(copy)
                self._known[buffer] = buffer._version


class SharedBuffers:
    """All workers' buffers, made one model's when they are needed."""

    def __init__(self, module: nn.Module) -> None:
        self.statistics = RunningStatistics(module)
        pooled = {id(buffer) for buffer in self.statistics.buffers()}
        self._others = [buffer for buffer in module.buffers() if id(buffer) not in pooled]
        self._versions = [each._version for each in self._others]
        self._samples = 0

    def saw(self, samples: int) -> None:
        """This worker's buffers have seen so many samples more, in a committed step."""
        self._samples += samples

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Whatever happens to the model inside, buffers that have seen samples since the last merge stay."""
        own = [(each, each.clone()) for each in (*self.statistics.buffers(), *self._others)] if self._samples else []
        yield
        with torch.no_grad():
            for buffer, value in own:
                buffer.copy_(value)

    def merge(self, generation: Generation) -> None:
        """All workers take the same. Raises RuntimeError if the groups break."""
        if generation.world_size == 1 or not (self._others or self.statistics.any):
            return
        seen = torch.zeros(generation.world_size, dtype=torch.float64)
        seen[generation.rank] = self._samples
        sum_over_ranks(seen, generation)
        if not seen.any():
            return
        source = int(seen.argmax())
        self.statistics.merge(self._samples, source, generation)
        changed = torch.zeros(len(self._others), dtype=torch.int64)
        if generation.rank == source:
            for place, (each, version) in enumerate(zip(self._others, self._versions, strict=True)):
                changed[place] = each._version != version
        sum_over_ranks(changed, generation)
        broadcast_tensors(
            [each for each, moved in zip(self._others, changed.tolist(), strict=True) if moved], source, generation
        )
        self._versions = [each._version for each in self._others]
        self._samples = 0
