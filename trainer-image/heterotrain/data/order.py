"""In which order an epoch's samples come: the session's own, or that of a sampler of the script's.

Whatever the order, it must be a function of the seed and the epoch alone: every worker computes it for itself and takes
its part. So a sampler is asked for the whole epoch's order, on every worker alike, under random numbers that belong to
the seed and the epoch; one that would give another order when it is asked again is refused.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch

from heterotrain.data.augmentation import seed_of, seeded_everywhere
from heterotrain.data.bijection import LONGEST, keyed_order
from heterotrain.data.sampler import epoch_order

PERMUTATION, KEYED = "permutation", "keyed"
"""The session's own orders: one that is drawn, and one that is computed by index, as large data sets have it."""

LARGE = 1 << 22
"""Samples above which an order is computed by index: a drawn one would take 32 MiB and more for each epoch."""

_BLOCK = 16384

_MOST_OF_EACH, _MOST_DRAWS = 16, 1 << 24
"""How often a sampler may draw each sample in an epoch, or so many draws: above both it is taken for endless; without a
length that says so, above either."""


class Order:
    """The order of one data set; `length` is in samples per epoch, some of which may be the same.

    `kind` is one of the session's own two. A checkpoint says which one its epoch began with, and a job that resumes
    goes on with that one.
    """

    def __init__(
        self, dataset_length: int, seed: int, sampler: Iterable[Any] | None = None, *, in_batches: bool = False
    ) -> None:
        """`sampler` yields indices, or if `in_batches` lists of them, one list after the other.

        Raises ValueError if it does not yield indices of the data set, none at all, more than an epoch can have, or not
        the same when it is asked again for the same epoch; and for a data set that is too large.
        """
        if dataset_length > LONGEST:
            raise ValueError(f"the data set has {dataset_length} samples; at most {LONGEST} can be put in order")
        self.length = dataset_length
        self.kind = KEYED if sampler is None and dataset_length > LARGE else PERMUTATION
        self._dataset_length = dataset_length
        self._seed = seed
        self._sampler = sampler
        self._in_batches = in_batches
        # This epoch's order and, for what is loaded ahead, the next one's.
        self._remembered = lru_cache(maxsize=2)(self._of)
        # A part of the order as a list, from which most steps take their samples: tensors would cost a small step more.
        self._block: list[int] = []
        self._block_of: tuple[str, int, int] | None = None
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
        return self._part(epoch, 0, self.length)

    def indices(self, epoch: int, start: int, stop: int) -> list[int]:
        """The part [start, stop) of that order. Raises ValueError as `of`."""
        found: list[int] = []
        while start < stop:
            block, place = divmod(start, _BLOCK)
            begin = block * _BLOCK
            until = min(stop, begin + _BLOCK)
            if self._block_of != (self.kind, epoch, block):
                self._block = self._part(epoch, begin, min(begin + _BLOCK, self.length)).tolist()
                self._block_of = self.kind, epoch, block
            found += self._block[place : until - begin]
            start = until
        return found

    def _part(self, epoch: int, start: int, stop: int) -> torch.Tensor:
        if self._sampler is None and self.kind == KEYED:
            return keyed_order(self.length, self._seed, epoch, start, stop)
        return self._remembered(epoch)[start:stop]

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
        return 0 if self._sampler is None else zlib.crc32(self.of(epoch).numpy().data)

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
        indices = array("q")
        with seeded_everywhere(seed):
            declared = self._declared()
            for number, entry in enumerate(self._sampler):
                self._check_bound(number, len(indices), declared)
                try:
                    if self._in_batches:
                        indices.extend(entry.tolist() if hasattr(entry, "tolist") else entry)
                    else:
                        indices.append(entry)
                except (TypeError, ValueError, OverflowError) as error:
                    raise ValueError(f"{self._name}: does not yield indices: {error}") from error
        if not indices:
            raise ValueError(f"{self._name}: yields no samples")
        found = torch.frombuffer(indices, dtype=torch.int64)
        if int(found.min()) < 0 or int(found.max()) >= self._dataset_length:
            raise ValueError(f"{self._name}: yields indices beyond the data set's {self._dataset_length} samples")
        return found

    def _declared(self) -> int | None:
        """What the sampler says its length is; that of some is missing, or comes from something that has none."""
        try:
            return len(self._sampler)  # type: ignore[arg-type]  # not all have one
        except (TypeError, AttributeError, NotImplementedError, ValueError, OverflowError):
            return None

    def _check_bound(self, entries: int, samples: int, declared: int | None) -> None:
        """Raises ValueError for a sampler that goes on after as many entries as it has by its own word, and each sample
        often: many a `__len__` is missing or wrong where samples are drawn more than once, but what goes on after both
        may never end. Some that never end have the largest number for a length."""
        most = max(_MOST_DRAWS, _MOST_OF_EACH * self._dataset_length)
        undeclared = max(self._dataset_length, min(_MOST_DRAWS, _MOST_OF_EACH * self._dataset_length))
        if max(samples, declared or 0) < most and (samples < undeclared or entries < (declared or 0)):
            return
        says = "has no __len__()" if declared is None else f"says {declared} by its __len__()"
        raise ValueError(
            f"{self._name}: seems never to end: it {says}, and has more than {samples} samples, where the data set has "
            f"{self._dataset_length}. A sampler yields one epoch, and its __len__() says how long that is; for one "
            "that repeats itself give the one that it repeats, since the session goes over the data as often as the "
            "job says"
        )
