"""torch's DataLoader, asked for whatever samples a step turns out to need.

Its workers start before the process groups exist and live as long as the job: a process that is forked later would
hold the groups' sockets open, and a worker that was killed would seem to be alive to its peers. What they have
loaded ahead is used only if it is exactly what the step needs; after a change of plan or a replayed step it is thrown
away, and loading begins again.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    default_collate,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

from heterotrain.data import likeness
from heterotrain.data.augmentation import Draw, begin_drawing, end_drawing, seed_of, seeded_everywhere
from heterotrain.data.order import Order
from heterotrain.data.sampler import Share

MAIN_GUARD = (
    'put what the script does under `if __name__ == "__main__":`, for processes that start by "spawn" or "forkserver", '
    "such as those of a DataLoader with that multiprocessing_context, import the script"
)
"""What to do about processes that run the script a second time."""

NO_SHARED_MEMORY = (
    "loading processes hand batches over in /dev/shm, of which a container has 64 MiB unless its pod mounts more: "
    "mount more, or use fewer processes (num_workers) or a smaller prefetch_factor"
)
_SHARED_MEMORY = re.compile(r"unable to [\w ]+ <(?:/torch_|filename not specified)|shared memory limit")


class Samples(NamedTuple):
    """Samples that make one batch: pairs of an epoch, to which their augmentation belongs, and indices in its order."""

    parts: Sequence[tuple[int, list[int]]]


class Described(NamedTuple):
    """Asks for descriptions of samples instead of a batch; see `likeness.py`."""

    indices: Sequence[int]


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
        if not (hasattr(dataset, "__getitem__") or _loads_at_once(dataset)):
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


class Loader:
    """Loads batches of any samples; its processes, if it has any, run while it is entered."""

    def __init__(self, source: Source, seed: int, device: torch.device, uid: str = "") -> None:
        """`uid` is the worker's. With it, what draws from the global random state in loading processes draws other
        numbers on each worker, and after each restart."""
        self._source = source
        self._seed = seed
        self._uid = uid
        self.device = device
        self._wanted: Iterable[Samples | Described] = ()
        self._loader: DataLoader[Any] | None = None
        self._loaded: Iterator[Any] = iter(())
        self._has_loaded = False

    def __enter__(self) -> Loader:
        source = self._source
        self._loader = DataLoader(
            _Drawn(source.dataset, self._seed),
            batch_sampler=_Wanted(self),
            collate_fn=_Collated(source.collate_fn),
            num_workers=source.num_workers,
            prefetch_factor=source.prefetch_factor,
            persistent_workers=source.num_workers > 0,
            # without a GPU torch would warn of it
            pin_memory=source.pin_memory and self.device.type == "cuda",
            timeout=source.timeout,
            worker_init_fn=partial(_begin_worker, source.worker_init_fn),
            multiprocessing_context=source.multiprocessing_context,
            # one of its own leaves the script's random state alone
            generator=torch.Generator().manual_seed(seed_of(torch.initial_seed(), self._uid)),
        )
        with self._explained():
            self._loaded = iter(self._loader)
        return self

    def __exit__(self, *_: object) -> None:
        # torch ends the processes with the last reference; left to the interpreter's end they would be killed
        self._loader, self._loaded = None, iter(())

    def ask(self, wanted: Iterable[Samples | Described]) -> None:
        """Ask for the batches to come; what was asked for before is thrown away.

        `wanted` is looked at further ahead than batches are taken, by as much as the loader prefetches.
        """
        assert self._loader is not None, "the loader was not entered"
        self._wanted = wanted
        with self._explained():
            self._loaded = iter(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """The next batch that was asked for, on the device. Raises what the data set raised while it loaded that."""
        with self._explained():
            batch = next(self._loaded)
        self._has_loaded = True
        return _to_device(batch, self.device)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Says what to do about loading processes that cannot work as they are, as far as that is known."""
        try:
            yield
        except RuntimeError as error:
            context = self._source.multiprocessing_context
            method = getattr(context, "get_start_method", lambda: context)() or multiprocessing.get_start_method()
            if _SHARED_MEMORY.search(str(error)):
                way_round = NO_SHARED_MEMORY
            elif not self._has_loaded and method != "fork" and "exited unexpectedly" in str(error):
                way_round = f"where its log says that it called join(), {MAIN_GUARD}"
            else:
                raise
            raise RuntimeError(f"{error}; {way_round}") from error

    def describe(self, indices: Sequence[int]) -> dict[int, str]:
        """Samples of the data set by index, as other workers are told of them."""
        self.ask([Described(indices)])
        return dict(zip(indices, next(self._loaded), strict=True))

    @property
    def wanted(self) -> Iterable[Samples | Described]:
        """What was asked for last."""
        return self._wanted


class Prefetch:
    """Loads a worker's shares ahead, and returns only the very share that is asked for."""

    def __init__(self, loader: Loader, order: Order, coming: Callable[[], Iterable[Share]]) -> None:
        """`coming` returns the shares that are to be expected, from the running step on."""
        self._loader = loader
        self._coming = coming
        self._length = order.length
        self._order = order
        self._ahead: deque[Share] = deque()  # shares that the loader was given and that were not taken yet
        self._next: Share | None = None  # the one that it would be given next
        self._rest: Iterator[Share] = iter(())  # and those after that

    def batch(self, share: Share) -> Any:
        """The batch of this very share."""
        if (self._ahead[0] if self._ahead else self._next) != share:
            self._ahead.clear()
            self._rest = iter(self._coming())
            self._next = next(self._rest, None)
            self._loader.ask(self._expected())
        batch = next(self._loader)
        loaded = self._ahead.popleft()
        assert loaded == share, f"loaded {loaded} for {share}"
        return batch

    def _expected(self) -> Iterator[Samples]:
        while (share := self._next) is not None:
            self._ahead.append(share)
            self._next = next(self._rest, None)
            yield self._samples(share)

    def _samples(self, share: Share) -> Samples:
        epoch, start, stop = share
        if stop <= self._length:
            return Samples([(epoch, self._order.indices(epoch, start, stop))])
        return Samples(list(self._parts(epoch, start, stop)))

    def _parts(self, epoch: int, start: int, stop: int) -> Iterator[tuple[int, list[int]]]:
        while start < stop:
            if start < self._length:
                yield epoch, self._order.indices(epoch, start, min(stop, self._length))
            epoch, start, stop = epoch + 1, max(0, start - self._length), stop - self._length


def _to_device(batch: Any, device: torch.device) -> Any:
    """Move what can be moved in nested tuples, lists and dicts: tensors, and a collate_fn's own classes that have a
    `to()`. On the CPU there is nothing to do."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: _to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_to_device(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(_to_device(value, device) for value in batch)
    return batch


class _Wanted:
    """The batch sampler: torch asks it again for each iteration.

    What it yields reaches the data set as it is, so it need not be the list that torch declares.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader.wanted)


class _Drawn(Dataset[Any]):
    """The user's data set; while it loads a sample, what the sample's random numbers depend on is known."""

    def __init__(self, dataset: Dataset[Any], seed: int) -> None:
        self.whole: Any = dataset
        self._seed = seed
        self._at_once = _loads_at_once(dataset)

    def __getitems__(self, wanted: Samples | Described) -> list[Any]:
        if isinstance(wanted, Described):
            return _Descriptions(likeness.described(self._read_alone, wanted.indices))
        return self._loaded(wanted)

    def _read_alone(self, index: int) -> Any:
        with seeded_everywhere(seed_of(self._seed, f"sample {index}")):
            return self._loaded(Samples([(0, [index])]))

    def _loaded(self, samples: Samples) -> list[Any]:
        items: list[Any] = []
        for epoch, indices in samples.parts:
            draw = Draw(self._seed, epoch)
            token = begin_drawing(draw)
            try:
                if self._at_once:
                    items += self.whole.__getitems__(indices)
                    continue
                for index in indices:
                    draw.index = index
                    items.append(self.whole[index])
            finally:
                end_drawing(token)
        return items


class _Descriptions(list[str]):
    """No samples, so that they are not made a batch."""


class _Collated:
    """The script's collate_fn, for what is to be a batch; a class, so that it can be sent to loading processes."""

    def __init__(self, collate_fn: Callable[[list[Any]], Any] | None) -> None:
        self._collate_fn = default_collate if collate_fn is None else collate_fn

    def __call__(self, items: list[Any]) -> Any:
        return items if isinstance(items, _Descriptions) else self._collate_fn(items)


def _loads_at_once(dataset: Any) -> bool:
    """Whether a data set gains by loading several samples in one call; a Subset only passes the call on, and one with a
    `__getitem__` of its own needs to have that called."""
    if isinstance(dataset, Subset) and type(dataset).__getitems__ is Subset.__getitems__:
        return type(dataset).__getitem__ is Subset.__getitem__ and _loads_at_once(dataset.dataset)
    return callable(getattr(dataset, "__getitems__", None))


def _begin_worker(init: Callable[[int], None] | None, worker: int) -> None:
    # What asks a worker to stop in order may reach all of its process group, and the batches under way need loading.
    os.setpgid(0, 0)
    info = get_worker_info()
    assert info is not None and isinstance(info.dataset, _Drawn)
    # The script's worker_init_fn, data set and collate_fn find the script's own data set there, not what is around it.
    # The record is frozen, which holds for those who read it.
    object.__setattr__(info, "dataset", info.dataset.whole)
    if init is not None:
        init(worker)
