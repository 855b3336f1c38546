"""The iterator over a job's batches: this worker's share of each step, until the job ends.

Loading is torch's DataLoader; which samples, and when, is the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from heterotrain.engine import Engine


class Batches:
    """Iterate once; a step without samples for this worker is done inside and yields nothing."""

    def __init__(
        self,
        engine: Engine,
        dataset: Dataset[Any],
        collate_fn: Callable[[list[Any]], Any] | None,
        device: torch.device,
    ) -> None:
        self._engine = engine
        self._device = device
        # The loader asks for indices only when a batch is asked for, so nothing is prefetched beyond a change of
        # plan. Its own generator leaves the script's random state alone.
        self._loader = DataLoader(
            dataset,
            batch_sampler=_Indices(engine),
            collate_fn=collate_fn,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),
        )

    def __iter__(self) -> Iterator[Any]:
        self._engine.start()
        loaded = iter(self._loader)
        while self._engine.begin_step():
            if self._engine.has_samples:
                yield to_device(next(loaded), self._device)
            else:
                self._engine.step_without_samples()


class _Indices:
    """A batch sampler without an end of its own: the indices of whatever step is running."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield self._engine.indices()


def to_device(batch: Any, device: torch.device) -> Any:
    """Move the tensors in nested tuples, lists and dicts; on the CPU nothing is to do."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
