"""The iterator over a job's batches: this worker's share of each step, until the job ends.

Which samples, and when, is the engine's; loading them, also ahead, is the loader's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from heterotrain.engine import Engine
from heterotrain.loading import Loader, Prefetch


class Batches:
    """Iterate once; a step without samples for this worker is done inside and yields nothing."""

    def __init__(self, engine: Engine, loader: Loader, prefetch: Prefetch, device: torch.device) -> None:
        self._engine = engine
        self._loader = loader
        self._prefetch = prefetch
        self._device = device

    def __iter__(self) -> Iterator[Any]:
        with self._loader:
            self._engine.start()
            while self._engine.begin_step():
                share = self._engine.share
                if share is not None:
                    yield to_device(self._prefetch.batch(share), self._device)
                else:
                    self._engine.step_without_samples()


def to_device(batch: Any, device: torch.device) -> Any:
    """Move what can be moved in nested tuples, lists and dicts: tensors, and a collate_fn's own classes that have a
    `to()`. On the CPU nothing is to do."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
