"""A data set and how its user wants it loaded, as far as that can be divided among workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)
from torch.utils.data.distributed import DistributedSampler


@dataclass(frozen=True, slots=True)
class Source:
    """A data set, and how the user wants it loaded; names are those of torch's DataLoader."""

    dataset: Dataset[Any]
    collate_fn: Callable[[list[Any]], Any] | None = None
    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = True
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    batch_size: int | None = None  # of the user's loader; a session has its own
    sampler: Iterable[Any] | None = None  # one that has an order of its own
    in_batches: bool = False  # that sampler yields lists of indices
    loader: DataLoader[Any] | None = None  # the user's

    @property
    def length(self) -> int:
        """Number of samples."""
        return len(self.dataset)  # type: ignore[arg-type]  # Dataset declares no __len__; source_of has checked

    def as_loader(self) -> DataLoader[Any]:
        """The user's loader, or what a script would have made of its data set."""
        if self.loader is not None:
            return self.loader
        return DataLoader(self.dataset, shuffle=True, collate_fn=self.collate_fn)

    @classmethod
    def of(
        cls,
        data: Dataset[Any] | DataLoader[Any],
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> Source:
        """The source that a data set makes, or a loader, whose settings are taken over except for batch size and order.

        Raises TypeError for an IterableDataset, for what is neither data set nor loader, and for a loader that iterates
        in a way of its own; ValueError for an empty data set, a loader with a DistributedSampler or without batches, or
        a collate_fn beside a loader's.
        """
        source = cls._of_loader(data, collate_fn) if isinstance(data, DataLoader) else cls(data, collate_fn)
        dataset: Any = source.dataset
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise TypeError(
                "the data set has no length and no index, so its samples cannot be divided exactly once among "
                "workers; give a map-style Dataset (with __len__ and __getitem__), e.g. a list of its items, or an "
                "index of the places where they lie"
            )
        if not (hasattr(dataset, "__getitem__") or loads_at_once(dataset)):
            raise TypeError(
                f"{type(dataset).__name__} is neither a torch DataLoader nor a data set with __getitem__; give the "
                "data set that it loads from, or a plain DataLoader of it"
            )
        if source.length == 0:
            raise ValueError("the data set is empty")
        return source

    @classmethod
    def _of_loader(cls, loader: DataLoader[Any], collate_fn: Callable[[list[Any]], Any] | None) -> Source:
        _check_iteration(loader)
        batch_size, in_batches = loader.batch_size, False
        order: Iterable[Any] | None = None
        if not isinstance(loader.dataset, IterableDataset):
            if collate_fn is not None:
                raise ValueError("collate_fn: give it to the DataLoader, which has one of its own")
            batches = loader.batch_sampler
            if batches is None:
                raise ValueError("the DataLoader makes no batches (batch_size=None); the session makes them")
            order, in_batches = batches, True
            if type(batches) is BatchSampler:
                order, batch_size, in_batches = batches.sampler, batches.batch_size, False
            if isinstance(order, DistributedSampler) or isinstance(getattr(order, "sampler", None), DistributedSampler):
                raise ValueError(
                    "the DataLoader has a DistributedSampler, but it is the session that divides samples among "
                    "workers; leave the sampler out, or give the one that it wraps"
                )
            if _takes_each_once(order, len(loader.dataset)):  # type: ignore[arg-type]  # as for `length`
                order, in_batches = None, False
        return cls(
            dataset=loader.dataset,
            collate_fn=loader.collate_fn,
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            batch_size=batch_size,
            sampler=order,
            in_batches=in_batches,
            loader=loader,
        )


_ITERATION = ("__iter__", "_get_iterator", "_index_sampler", "_auto_collation")
"""What of a DataLoader says which batches a loop over it gets; all else is settings, which are taken over."""


def _check_iteration(loader: DataLoader[Any]) -> None:
    """Raises TypeError for a loader that iterates in a way of its own: the session makes batches by itself, and what
    the loader does to them would be left out in silence."""
    own = [
        name
        for name in _ITERATION
        if getattr(type(loader), name) is not getattr(DataLoader, name) or name in vars(loader)
    ]
    if own:
        raise TypeError(
            f"{type(loader).__name__} is a DataLoader with its own {', '.join(own)}, which a session would not call: "
            "it loads each worker's batches by itself. Give a plain DataLoader of the same data set; what is done to "
            "samples belongs into the data set, what is done to batches into collate_fn or to the head of the loop, "
            "and an order into a sampler"
        )


def _takes_each_once(order: object, dataset_length: int) -> bool:
    """Whether a sampler only shuffles, or takes in sequence, all of the data set."""
    if type(order) is RandomSampler:
        return not order.replacement and order.num_samples == len(order.data_source) == dataset_length
    return type(order) is SequentialSampler and len(order.data_source) == dataset_length


def loads_at_once(dataset: Any) -> bool:
    """Whether a data set gains by loading several samples in one call; a Subset only passes the call on, and one with a
    `__getitem__` of its own needs to have that called."""
    if isinstance(dataset, Subset) and type(dataset).__getitems__ is Subset.__getitems__:
        return type(dataset).__getitem__ is Subset.__getitem__ and loads_at_once(dataset.dataset)
    return callable(getattr(dataset, "__getitems__", None))
