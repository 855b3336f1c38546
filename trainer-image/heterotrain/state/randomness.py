"""Random numbers of the training, such as dropout's: they belong to the seed, the worker and the step.

Workers draw different numbers, a replayed step draws the same, and a resumed job goes on as if it had never stopped,
whatever the order of its workers. What is drawn while samples are loaded belongs to the samples (`augmentation.py`).
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from heterotrain.data.augmentation import seed_of

_64_BITS = (1 << 64) - 1


class StepRandomness:
    """The random numbers of one worker."""

    def __init__(self, seed: int, worker: str, device: torch.device) -> None:
        self._stream = seed_of(seed, worker)
        self._on_gpu = device.type == "cuda"

    def begin(self, step: int) -> None:
        """Whatever draws from torch's state draws this step's numbers from here on."""
        seed = self._of(step)
        torch.default_generator.manual_seed(seed)
        if self._on_gpu:
            torch.cuda.manual_seed(seed)

    def start(self, step: int) -> None:
        """The script's other sources begin a stream of this worker's own too, where it starts and where it resumes.

        Setting them for each step would cost too much, and few scripts draw from them while they train.
        """
        seed = self._of(step)
        random.seed(seed)
        numpy = sys.modules.get("numpy")  # where it is not imported, nothing draws from it
        if numpy is not None:
            numpy.random.seed(seed % 2**32)

    def _of(self, step: int) -> int:
        """Neighbouring steps must not give neighbouring seeds. Source: Steele, Lea and Flood, "Fast Splittable
        Pseudorandom Number Generators" (2014), section 5, the output function of SplitMix64."""
        mixed = (self._stream + (step + 1) * 0x9E3779B97F4A7C15) & _64_BITS
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _64_BITS
        return (mixed ^ (mixed >> 31)) >> 1


class KeptRandomness:
    """The states of all sources of random numbers in this process, as they are when it is made."""

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        self._torch = torch.get_rng_state()
        self._gpu = None if self._device is None else torch.cuda.get_rng_state(self._device)
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy: Any = None if numpy is None else numpy.random.get_state()

    def restore(self) -> None:
        """Go back to them."""
        torch.set_rng_state(self._torch)
        if self._device is not None and self._gpu is not None:
            torch.cuda.set_rng_state(self._gpu, self._device)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
