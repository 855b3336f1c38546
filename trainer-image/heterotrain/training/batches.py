"""The iterator over a job's batches: this worker's share of each step, until the job ends.

The worker's life and its step say which samples come when; the loader loads them, also ahead.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any, TypeVar

from torch.utils.data import DataLoader

from heterotrain.data.likeness import SAMPLE, chosen
from heterotrain.data.loading import Loader, Prefetch
from heterotrain.data.sampler import DROP
from heterotrain.job.farewell import Farewell
from heterotrain.training.life import WorkerLife, sizes_of_steps
from heterotrain.training.schedules import watching_plateaus

log = logging.getLogger(__name__)

T = TypeVar("T")


class Batches:
    """Iterate once, or once in each of `Session.epochs()`; a step without samples for this worker is done inside and
    yields nothing."""

    def __init__(
        self,
        life: WorkerLife,
        loader: Loader,
        prefetch: Prefetch,
        farewell: Farewell,
        *,
        given: DataLoader[Any],
        compares: bool,
    ) -> None:
        """`given` is the script's loader, or one of its data set. `compares`: a few samples are compared with those of
        the other workers."""
        self._given = given
        self._compares = compares
        self._life = life
        self._farewell = farewell
        self._process = os.getpid()
        self._left_early = False
        self._loader = loader
        self._prefetch = prefetch
        self._stack = contextlib.ExitStack()
        self._by_epoch = False
        self._repeats_end = False

    def __len__(self) -> int:
        """Steps of an epoch, as loaders have it."""
        return self._life.progress.steps_per_epoch

    @property
    def batch_size(self) -> int:
        """Samples of a step over all workers, as `len()` counts steps. Raises RuntimeError where that is not known
        yet."""
        return self._life.progress.global_batch_size

    @property
    def drop_last(self) -> bool:
        """Whether samples that do not fill an epoch's last step are left out."""
        return self._life.progress.rules.last_step == DROP

    def __getattr__(self, name: str) -> Any:
        """What else scripts read of a loader (`dataset`, `sampler`, `num_workers`, `collate_fn`) is that of theirs."""
        if name.startswith("_"):
            raise AttributeError(f"batches have no attribute {name!r}")
        return getattr(self._given, name)

    def __iter__(self) -> Iterator[Any]:
        return self._watched(self._iterate())

    def epochs(self) -> Iterator[int]:
        """See `Session.epochs`."""
        return self._watched(self._epochs())

    def _watched(self, loop: Iterator[T]) -> Iterator[T]:
        """The same; an error that ends it is noticed, whether it is raised here or in the script's part."""
        try:
            yield from loop
        except GeneratorExit:
            if self._left_early and self._farewell.passing is not None:
                self._farewell.passing.watch()
            raise
        except Exception as error:
            self._farewell.note(error)
            raise

    def _iterate(self) -> Iterator[Any]:
        life, step = self._life, self._life.step
        if life.leaving.finished and self._repeats_end:
            return
        if life.leaving.finished:
            log.warning(
                "the loop over the batches went over all epochs already, and this one is empty; for a loop over epochs "
                "around it write `for epoch in session.epochs():`"
            )
            return
        if life.warm_up.is_running:
            yield from self._of_warm_up()
            return
        epoch = life.position.epoch if self._by_epoch else None
        if not self._by_epoch:
            self._open()
        try:
            if not self._by_epoch:
                if life.warm_up.begin():
                    yield from self._of_warm_up()
                    life.end_warm_up()
                self._start()
            life.go_on()
            while life.begin_step(epoch):
                share = step.share
                if share is None:
                    life.step_without_samples()
                    continue
                batch = self._prefetch.batch(share)
                life.loop_changes.begin()
                yield batch
                life.loop_changes.end()
        except GeneratorExit:
            if epoch is None or life.position.epoch == epoch:
                self._left()
            raise
        finally:
            if not self._by_epoch:
                self._close()

    def _of_warm_up(self) -> Iterator[Any]:
        self._life.begin_warm_up()
        while (share := self._life.warm_up.advance()) is not None:
            yield self._prefetch.batch(share)

    def _epochs(self) -> Iterator[int]:
        life = self._life
        self._open()
        self._by_epoch = True
        try:
            if life.warm_up.begin():
                yield life.position.epoch
                life.end_warm_up()
            self._start()
            was_done = life.progress.done
            while life.begin_epoch():
                epoch = life.position.epoch
                yield epoch
                if not life.leaving.finished and life.position.epoch == epoch:
                    raise RuntimeError(
                        f"the loop over the batches of epoch {epoch} was not gone through to its end; to end the job "
                        "early call session.stop()"
                    )
            if was_done:  # the script that went before may have failed in what it does after an epoch's batches
                self._repeats_end = True
                yield max(life.position.epoch - life.position.begins, 0)
        except GeneratorExit:
            self._left()
            raise
        finally:
            self._by_epoch = False
            self._close()

    def _start(self) -> None:
        life, progress = self._life, self._life.progress
        life.start()
        if progress.done:
            step = life.position.step
            log.info("step %d was the job's last one: only what the script does after it is done again", step)
        elif life.leads:
            log.info("%s", sizes_of_steps(progress.rules, progress.global_batch_size))

    def _open(self) -> None:
        if self._life.started:
            raise RuntimeError("the loop over the batches was begun already; there is one for the whole job")
        self._stack.enter_context(self._loader)
        self._stack.enter_context(self._life.evaluation)
        self._stack.enter_context(
            watching_plateaus(self._life.subject.optimizer, lambda: self._life.loop_changes.in_loop)
        )
        if self._compares:
            self._describe_samples()
        self._life.settle()

    def _describe_samples(self) -> None:
        subject = self._life.subject
        places = chosen(subject.order.length, self._life.seed)
        indices = [subject.order.indices(0, place, place + 1)[0] for place in places]
        described = self._loader.describe(list(dict.fromkeys(indices)))
        subject.samples = {f"{SAMPLE} {index}": text for index, text in described.items()}
        self._life.evaluation.describe_samples()

    def _left(self) -> None:
        if os.getpid() != self._process:
            return  # a process that the script has forked in the loop, which leaves its copy of it
        self._life.loop_left()
        self._left_early = not self._life.leaving.over

    def _close(self) -> None:
        if os.getpid() == self._process:
            self._stack.close()
