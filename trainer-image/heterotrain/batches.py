"""The iterator over a job's batches: this worker's share of each step, until the job ends.

Which samples, and when, is the engine's; loading them, also ahead, is the loader's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from heterotrain.engine import Engine
from heterotrain.loading import Loader, Prefetch


class Batches:
    """Iterate once; a step without samples for this worker is done inside and yields nothing."""

    def __init__(self, engine: Engine, loader: Loader, prefetch: Prefetch) -> None:
        self._engine = engine
        self._loader = loader
        self._prefetch = prefetch

    def __iter__(self) -> Iterator[Any]:
        with self._loader, self._engine.evaluation:
            self._engine.start()
            while self._engine.begin_step():
                share = self._engine.share
                if share is not None:
                    yield self._prefetch.batch(share)
                else:
                    self._engine.step_without_samples()
