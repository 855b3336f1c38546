"""In which order an epoch's samples come: the session's own, or that of a sampler of the script's.

Whatever the order, it must be a function of the seed and the epoch alone: every worker computes it for itself and takes
its part. So a sampler is asked for the whole epoch's order, on every worker alike, under random numbers that belong to
the seed and the epoch; one that would give another order when it is asked again is refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch

from heterotrain.data.augmentation import seed_of, seeded_everywhere
from heterotrain.data.sampler import epoch_order

_BLOCK = 16384


class Order:
    """The order of one data set; `length` is in samples per epoch, some of which may be the same."""

    def __init__(self, dataset_length: int, seed: int, sampler: Iterable[Any] | None = None) -> None:
        """`sampler` yields indices, or lists of them, one list after the other.

        Raises ValueError if it does not yield indices of the data set, none at all, or not the same when it is asked
        again for the same epoch.
        """
        self.length = dataset_length
        self._dataset_length = dataset_length
        self._seed = seed
        self._sampler = sampler
        # This epoch's order and, for what is loaded ahead, the next one's.
        self._remembered = lru_cache(maxsize=2)(self._of)
        # A part of the order as a list, from which most steps take their samples: tensors would cost a small step more.
        self._block: list[int] = []
        self._block_of: tuple[int, int] | None = None
        if sampler is not None:
            first = self._drawn(0)
            self.length = len(first)
            self._drawn(1)
            if not torch.equal(first, self._drawn(0)):
                raise ValueError(
                    f"{self._name}: its order is another each time that it is asked for that of an epoch, so the "
                    "workers would not agree on it; let it draw from its `generator`, or from torch's, NumPy's or "
                    "Python's global state"
                )

    def of(self, epoch: int) -> torch.Tensor:
        """The order of an epoch, int64 of shape (length,); the same on every worker.

        Raises ValueError if the script's sampler has another number of samples than in the first epoch.
        """
        return self._remembered(epoch)

    def indices(self, epoch: int, start: int, stop: int) -> list[int]:
        """The part [start, stop) of that order. Raises ValueError as `of`."""
        block, place = divmod(start, _BLOCK)
        if stop - block * _BLOCK > _BLOCK:
            found: list[int] = self.of(epoch)[start:stop].tolist()
            return found
        if self._block_of != (epoch, block):
            self._block = self.of(epoch)[block * _BLOCK : (block + 1) * _BLOCK].tolist()
            self._block_of = epoch, block
        return self._block[place : stop - block * _BLOCK]

    def _of(self, epoch: int) -> torch.Tensor:
        if self._sampler is None:
            return epoch_order(self.length, self._seed, epoch)
        found = self._drawn(epoch)
        if len(found) != self.length:
            raise ValueError(
                f"{self._name}: has {len(found)} samples in epoch {epoch}, and had {self.length} in the first; all "
                "epochs must have as many"
            )
        return found

    def checksum(self, epoch: int) -> int:
        """A checksum of an epoch's order, to be compared with the other workers'; 0 for the session's own order."""
        return 0 if self._sampler is None else zlib.crc32(self.of(epoch).numpy().tobytes())

    @property
    def _name(self) -> str:
        return f"the loader's {type(self._sampler).__name__}"

    def _drawn(self, epoch: int) -> torch.Tensor:
        assert self._sampler is not None
        seed = seed_of(self._seed, f"order of epoch {epoch}")
        for each in (self._sampler, getattr(self._sampler, "sampler", None)):
            if callable(getattr(each, "set_epoch", None)):
                each.set_epoch(epoch)  # type: ignore[union-attr]  # it was looked for
            if hasattr(each, "generator"):
                each.generator = torch.Generator().manual_seed(seed)  # type: ignore[union-attr]  # likewise
        indices: list[int] = []
        with seeded_everywhere(seed):
            for entry in self._sampler:
                if isinstance(entry, (list, tuple)):
                    indices += entry
                else:
                    indices.append(entry)
        try:
            found = torch.tensor(indices, dtype=torch.int64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{self._name}: does not yield indices: {error}") from error
        if not len(found):
            raise ValueError(f"{self._name}: yields no samples")
        if int(found.min()) < 0 or int(found.max()) >= self._dataset_length:
            raise ValueError(f"{self._name}: yields indices beyond the data set's {self._dataset_length} samples")
        return found
