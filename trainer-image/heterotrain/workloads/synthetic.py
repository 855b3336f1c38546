"""Images and tokens of any number, made when asked for, with something to learn in them.

Item `i` depends on the seed and `i` alone, so every worker sees the same item wherever and whenever it asks, and a
million images need no disk. Only integers and uniform numbers are drawn and no transcendental function is used: those
give the same bits on every kind of CPU, which normally distributed numbers do not.
"""

from __future__ import annotations

from hashlib import blake2b
from math import log

import torch
from torch.utils.data import Dataset

_PATCHES = 4


def seeded_generator(*key: int) -> torch.Generator:
    """A generator of its own for each key, the same in every process."""
    digest = blake2b(repr(key).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


class SyntheticImages(Dataset[tuple[torch.Tensor, int]]):
    """Noisy pictures of `classes` patterns: images (channels, size, size), values about 0, and their class.

    A pattern is 4x4 coloured patches, each value uniform in [-1, 1]; the noise on each pixel is uniform in
    [-noise, noise]. The test set shows the same patterns under other noise.
    """

    def __init__(
        self,
        samples: int,
        *,
        size: int = 32,
        channels: int = 3,
        classes: int = 10,
        noise: float = 1.0,
        seed: int = 0,
        train: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        """`size` is in pixels. Raises ValueError for fewer than one sample."""
        _check_samples(samples)
        self.samples = samples
        self.size = size
        self.channels = channels
        self.classes = classes
        self._noise = noise
        self._key = (seed, 0 if train else 1)
        self._dtype = dtype or torch.get_default_dtype()
        patches = torch.rand(classes, channels, _PATCHES, _PATCHES, generator=seeded_generator(seed)) * 2 - 1
        patch_of = torch.arange(size) * _PATCHES // size
        self._patterns = patches[:, :, patch_of][:, :, :, patch_of]

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        _check_index(index, self.samples)
        generator = seeded_generator(*self._key, index)
        label = int(torch.randint(self.classes, (), generator=generator))
        noise = torch.rand(self.channels, self.size, self.size, generator=generator) * 2 - 1
        return (self._patterns[label] + self._noise * noise).to(self._dtype), label


class SyntheticTokens(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Walks over a random graph: tokens (length,) and those that follow them (length,), as int64.

    Each token is followed by one of `choices` others, all as likely. So no model's loss can fall under
    `entropy_nats`, and one that has learnt nothing is at `log(vocabulary)`.
    """

    def __init__(
        self,
        samples: int,
        *,
        length: int = 64,
        vocabulary: int = 64,
        choices: int = 4,
        seed: int = 0,
        train: bool = True,
    ) -> None:
        """`length` is in tokens. Raises ValueError for fewer than one sample, or more choices than tokens."""
        _check_samples(samples)
        if not 1 <= choices <= vocabulary:
            raise ValueError(f"choices: expected 1 to {vocabulary}, the vocabulary, found {choices}")
        self.samples = samples
        self.length = length
        self.vocabulary = vocabulary
        self.entropy_nats = log(choices)
        self._key = (seed, 0 if train else 1)
        generator = seeded_generator(seed)
        self._followers: list[list[int]] = [
            torch.randperm(vocabulary, generator=generator)[:choices].tolist() for _ in range(vocabulary)
        ]

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        _check_index(index, self.samples)
        generator = seeded_generator(*self._key, index)
        walk = [int(torch.randint(self.vocabulary, (), generator=generator))]
        turns: list[int] = torch.randint(len(self._followers[0]), (self.length,), generator=generator).tolist()
        for turn in turns:
            walk.append(self._followers[walk[-1]][turn])
        tokens = torch.tensor(walk)
        return tokens[:-1], tokens[1:]


def _check_samples(samples: int) -> None:
    if samples < 1:
        raise ValueError(f"samples: must be at least 1, found {samples}")


def _check_index(index: int, samples: int) -> None:
    # Iterating over a data set without an iterator of its own ends at this error.
    if not 0 <= index < samples:
        raise IndexError(f"index: expected 0 to {samples - 1}, found {index}")
