"""Random numbers for augmentation that belong to the sample, not to the worker that happens to load it.

Drawn from seed, epoch, sample index and number of the call, they make a sample look the same on any worker, for any
split of the batch, and when its step is replayed; in each epoch it looks different.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import struct
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Draw:
    """What a sample's random numbers depend on; `index` is None while a whole batch is asked for at once.

    One object serves for the samples of a batch, one after the other, since a context for each sample would cost too
    much. `calls` counts how often random numbers were asked for, by index: each call has a stream of its own.
    """

    seed: int
    epoch: int
    index: int | None = None
    calls: dict[int, int] = field(default_factory=dict)


_current: ContextVar[Draw | None] = ContextVar("heterotrain_draw", default=None)


@contextlib.contextmanager
def drawing(draw: Draw) -> Iterator[None]:
    """Inside, samples are loaded for a session, with the randomness of `draw`."""
    token = _current.set(draw)
    try:
        yield
    finally:
        _current.reset(token)


def sample_generator(index: int | None = None) -> torch.Generator:
    """A new generator for the sample that is being loaded, seeded by the job's seed, the epoch and the sample's index.

    Call it in a data set's `__getitem__`, or in a transform that it calls, and give it to functions of torch as
    `generator=`. Each call returns another one; what the first call draws, and the second, is the same whenever this
    sample is loaded in this epoch. `index` is needed in `__getitems__` only, where one call loads several samples.

    Outside a session's loading (an item looked at by hand, a plain DataLoader) it is seeded from torch's own random
    state. Raises RuntimeError in `__getitems__` without an `index`.
    """
    return torch.Generator().manual_seed(_sample_seed(index))


def seeded(transform: Callable[P, T]) -> Callable[P, T]:
    """A transform that draws from the global random state (of torch, `random` or NumPy, as torchvision's do), made to
    draw what belongs to the sample, as from `sample_generator()`. The global state is put back after each call.

    `seeded(Compose([RandomCrop(32, padding=4), RandomHorizontalFlip()]))`; or as a decorator of a function or a method.
    Raises RuntimeError as `sample_generator`.
    """
    return _Seeded(transform)


class _Seeded(Generic[P, T]):
    """A transform under the sample's randomness; a class, so that it can be sent to loading processes."""

    def __init__(self, transform: Callable[P, T]) -> None:
        self._transform = transform

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return _with_the_samples_randomness(self._transform, *args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., T]:
        """Bind the instance that it is called on, if it is a method."""
        return self if instance is None else partial(self, instance)  # type: ignore[arg-type]  # P begins with it


def _with_the_samples_randomness(transform: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    if _current.get() is None:
        return transform(*args, **kwargs)
    with seeded_everywhere(_sample_seed(None)):
        return transform(*args, **kwargs)


def _sample_seed(index: int | None) -> int:
    draw = _current.get()
    if draw is None:
        return int(torch.randint(2**62, ()))
    index = draw.index if index is None else index
    if index is None:
        raise RuntimeError("in __getitems__ heterotrain.sample_generator() needs the index of the sample")
    call = draw.calls.get(index, 0)
    draw.calls[index] = call + 1
    return _hashed(struct.pack("<4q", draw.seed, draw.epoch, index, call))


def seed_of(seed: int, name: str) -> int:
    """The seed of a stream of random numbers that a name has to itself."""
    return _hashed(struct.pack("<Q", seed % 2**64) + name.encode())


def _hashed(what: bytes) -> int:
    # Neighbouring indices and epochs must not give neighbouring seeds, for which generators begin alike.
    return int.from_bytes(hashlib.blake2b(what, digest_size=8).digest(), "little") >> 1


@contextlib.contextmanager
def seeded_everywhere(seed: int) -> Iterator[None]:
    """Inside, the global random states are seeded; on the CPU alone, since loading uses no other device."""
    numpy = sys.modules.get("numpy")  # where it is not imported, nothing draws from it
    own = random.getstate()
    torchs = torch.get_rng_state()
    numpys = numpy.random.get_state() if numpy else None
    try:
        random.seed(seed)
        torch.default_generator.manual_seed(seed)
        if numpy:
            numpy.random.seed(seed % 2**32)
        yield
    finally:
        random.setstate(own)
        torch.set_rng_state(torchs)
        if numpy:
            numpy.random.set_state(numpys)
