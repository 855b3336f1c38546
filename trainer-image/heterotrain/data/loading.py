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
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from heterotrain.data import likeness
from heterotrain.data.augmentation import Draw, drawing, seed_of, seeded_everywhere
from heterotrain.data.order import Order
from heterotrain.data.sampler import Share
from heterotrain.data.source import Source, loads_at_once

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


class Loader:
    """Loads batches of any samples; its processes, if it has any, run while it is entered."""

    def __init__(self, source: Source, seed: int, device: torch.device, uid: str = "") -> None:
        """`uid` is the worker's. With it, what draws from the global random state in loading processes draws other
        numbers on each worker, and after each restart."""
        self._source = source
        self._seed = seed
        self._uid = uid
        self.device = device
        self.wanted: Iterable[Samples | Described] = ()  # what was asked for last
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
        self.ask(())
        return self

    def __exit__(self, *_: object) -> None:
        # torch ends the processes with the last reference; left to the interpreter's end they would be killed
        self._loader, self._loaded = None, iter(())

    def ask(self, wanted: Iterable[Samples | Described]) -> None:
        """Ask for the batches to come; what was asked for before is thrown away.

        `wanted` is looked at further ahead than batches are taken, by as much as the loader prefetches.
        """
        assert self._loader is not None, "the loader was not entered"
        self.wanted = wanted
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
            yield Samples(list(self._parts(*share)))

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
        self._at_once = loads_at_once(dataset)

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
            with drawing(draw):
                if self._at_once:
                    items += self.whole.__getitems__(indices)
                    continue
                for index in indices:
                    draw.index = index
                    items.append(self.whole[index])
        return items


class _Descriptions(list[str]):
    """No samples, so that they are not made a batch."""


class _Collated:
    """The script's collate_fn, for what is to be a batch; a class, so that it can be sent to loading processes."""

    def __init__(self, collate_fn: Callable[[list[Any]], Any] | None) -> None:
        self._collate_fn = default_collate if collate_fn is None else collate_fn

    def __call__(self, items: list[Any]) -> Any:
        return items if isinstance(items, _Descriptions) else self._collate_fn(items)


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
