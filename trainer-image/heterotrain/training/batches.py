"""The iterator over a job's batches: this worker's share of each step, until the job ends.

Which samples, and when, is the engine's; loading them, also ahead, is the loader's.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from heterotrain.data.loading import Loader, Prefetch
from heterotrain.training.engine import Engine

log = logging.getLogger(__name__)


class Batches:
    """Iterate once, or once in each of `Session.epochs()`; a step without samples for this worker is done inside and
    yields nothing."""

    def __init__(self, engine: Engine, loader: Loader, prefetch: Prefetch) -> None:
        self._engine = engine
        self._loader = loader
        self._prefetch = prefetch
        self._stack = contextlib.ExitStack()
        self._by_epoch = False

    def __len__(self) -> int:
        """Steps of an epoch, as loaders have it."""
        return self._engine.progress.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        engine = self._engine
        if engine.finished:
            log.warning(
                "the loop over the batches went over all epochs already, and this one is empty; for a loop over epochs "
                "around it write `for epoch in session.epochs():`"
            )
            return
        if not self._by_epoch:
            self._open()
        epoch = engine.position.epoch if self._by_epoch else None
        engine.go_on()
        try:
            while engine.begin_step(epoch):
                share = engine.share
                if share is not None:
                    yield self._prefetch.batch(share)
                else:
                    engine.step_without_samples()
        except GeneratorExit:
            if epoch is None or engine.position.epoch == epoch:
                engine.left()
            raise
        finally:
            if not self._by_epoch:
                self._close()

    def epochs(self) -> Iterator[int]:
        """See `Session.epochs`."""
        engine = self._engine
        self._open()
        self._by_epoch = True
        try:
            while engine.begin_epoch():
                epoch = engine.position.epoch
                yield epoch
                if not engine.finished and engine.position.epoch == epoch:
                    raise RuntimeError(
                        f"the loop over the batches of epoch {epoch} was not gone through to its end; to end the job "
                        "early call session.stop()"
                    )
        except GeneratorExit:
            engine.left()
            raise
        finally:
            self._by_epoch = False
            self._close()

    def _open(self) -> None:
        if self._engine.started:
            raise RuntimeError("the loop over the batches was begun already; there is one for the whole job")
        self._stack.enter_context(self._loader)
        self._stack.enter_context(self._engine.evaluation)
        self._engine.start()

    def _close(self) -> None:
        self._stack.close()
