"""What an emulated worker waits for: the law of its time, its noise, and the share of a machine that it has."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

FIXED_SECONDS = 0.005
"""Of a step, whatever the batch and the limit."""

FIXED_CORE_SECONDS = 0.002
"""Of one core, per step."""

SAMPLE_CORE_SECONDS = 0.001
"""Of one core, per sample."""

VARIATION = 0.02
"""Coefficient of variation of a step."""

CORRELATION = 0.5
"""Of one step's noise with the next one's, as in recorded runs."""

ENV_SHARE = "EMULATED_SHARE"
"""Where a worker finds what it has of a machine at the moment."""


def seconds(batch: int, cores: float, neighbours: int = 0) -> float:
    """A step's mean time under this limit, which so many busy neighbours share."""
    return FIXED_SECONDS + (FIXED_CORE_SECONDS + SAMPLE_CORE_SECONDS * batch) * (1 + neighbours) / cores


def noise(worker: str, seed: int = 7) -> Iterator[float]:
    """Factors of mean 1, the same ones for a worker in every trial: log-normal, each correlated with the last one."""
    generator = random.Random(f"{seed} {worker}")
    deviation = math.sqrt(math.log(1 + VARIATION**2))
    state = generator.gauss(0, 1)
    while True:
        yield math.exp(deviation * state - deviation**2 / 2)
        state = CORRELATION * state + math.sqrt(1 - CORRELATION**2) * generator.gauss(0, 1)


def share(file: Path) -> tuple[float, int]:
    """The cores and the neighbours that a worker has now."""
    cores, neighbours = file.read_text(encoding="ascii").split()
    return float(cores), int(neighbours)
