"""What a training script holds: join a job, prepare, iterate.

Nothing here refers to a process group, and no collective error ever reaches the script: a failed step is dropped and
its batch comes again. That lets workers come and go without touching user code.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset

from heterotrain.batches import Batches
from heterotrain.contract import Member, Plan, Termination, TrainingConfig
from heterotrain.engine import Engine
from heterotrain.evaluation import Measure
from heterotrain.gradient import ElasticModel
from heterotrain.loading import Loader, Prefetch, Source
from heterotrain.metrics import Series, WorkerMetrics, serve
from heterotrain.optimizer import ElasticOptimizer
from heterotrain.peak import peak_memory_of
from heterotrain.planfile import PlanFile
from heterotrain.plans import Plans
from heterotrain.precision import Arithmetic
from heterotrain.worker import Farewell, StopRequest, Worker, choose_device, limit_threads

_USUAL_BATCH_SIZE = 32


def join(*, batch_size: int | None = None, epochs: int = 1, seed: int = 0) -> Session:
    """Join the job that this process was started for; alone, outside any job, be its only worker.

    `batch_size`, `epochs` and `seed` are for a run alone: in a job its manifest decides. Without a `batch_size` it is
    that of the DataLoader given to `prepare()`, or 32. Call `join` once, early: from here on the worker answers to
    SIGTERM and says how it ended, and torch's random state is seeded.

    Raises ValueError if the job's environment is incomplete, OSError if the metrics port is taken, RuntimeError if a
    promised GPU is missing.
    """
    worker = Worker.from_environment(os.environ)
    if worker is None:
        return Session(None, TrainingConfig(epochs=epochs, seed=seed), batch_size)
    return Session(worker, worker.config, None)


class Session:
    """One worker's part in a job."""

    def __init__(self, worker: Worker | None, config: TrainingConfig, batch_size: int | None) -> None:
        """Use `heterotrain.join()`."""
        self._worker = worker
        self._config = config
        self._engine: Engine | None = None
        self._batch_size = batch_size
        self._stop = StopRequest()
        name = "alone" if worker is None else worker.name
        self._metrics = WorkerMetrics(
            "" if worker is None else worker.job,
            name,
            "" if worker is None else worker.group,
            lambda: self._engine is not None and self._engine.in_collective,
        )
        if worker is not None:
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
            Farewell(worker.termination_log, self._last_words).install()
            self._stop.install()
            limit_threads(os.environ)
            serve(self._metrics, worker.metrics_port)
        torch.manual_seed(config.seed)  # the first weights; a script may seed anew
        self._device = choose_device(config)
        self._metrics.memory = peak_memory_of(self._device)

    @property
    def device(self) -> torch.device:
        """The device to make models and tensors on; batches arrive there by themselves."""
        return self._device

    @property
    def step(self) -> int:
        """Steps committed so far by the job, restarts included."""
        return 0 if self._engine is None else self._engine.position.step

    @property
    def epoch(self) -> int:
        """The epoch under way, from 0."""
        return 0 if self._engine is None else self._engine.position.epoch

    @property
    def metrics(self) -> Mapping[str, float]:
        """What `evaluate()` measured last, by name, over the whole data set; the same on all workers, empty before."""
        return {} if self._engine is None else dict(self._engine.evaluation.values)

    @property
    def leader(self) -> bool:
        """Whether this worker should do what one worker alone should do, like printing or saving a result.

        Raises RuntimeError in a job before the loop over the batches, since nobody leads yet.
        """
        if self._worker is not None and (self._engine is None or not self._engine.started):
            raise RuntimeError("session.leader is known only once the loop over the batches has begun")
        return self._engine is None or self._engine.rank == 0

    def prepare(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: Dataset[Any] | DataLoader[Any],
        *,
        loss: Literal["mean", "sum"] = "mean",
        counted: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        find_unused_parameters: bool = False,
    ) -> tuple[ElasticModel, ElasticOptimizer, Batches]:
        """Take over wrapper, optimizer step and data order; use what is returned in place of what was given.

        `loss` says whether the criterion is a mean or a sum over a batch's samples; or, if `counted`, over what
        `scale()` is told the number of: tokens without their padding, say, or weights. `dataset` is map-style, with a
        length; or a DataLoader of such a one, whose settings (workers, collate_fn, pinned memory) are taken over, but
        for batch size and order, which are the session's. `find_unused_parameters` is for models whose forward leaves
        some out; they get gradients of zero. The batches end with the job: epochs and resuming from a checkpoint
        happen inside.

        Raises TypeError for an IterableDataset, ValueError for an empty data set or a loader with a sampler of its own,
        RuntimeError if called twice.
        """
        if self._engine is not None:
            raise RuntimeError("session.prepare() was called already; a session trains one model")
        source = Source.of(dataset, collate_fn)
        if loss not in ("mean", "sum"):
            raise ValueError(f"loss: expected 'mean' or 'sum', found {loss!r}")
        wrapped = ElasticModel(model.to(self._device), Arithmetic(self._config.precision, self._device))
        worker = self._worker
        engine = Engine(
            config=self._config,
            worker=worker,
            plans=Plans(None, PlanFile(worker.plan_dir, self._count_rejected))
            if worker
            else Plans(self._plan_alone(source), None),
            model=wrapped,
            optimizer=optimizer,
            dataset_length=source.length,
            loss_reduction=loss,
            counted=counted,
            find_unused_parameters=find_unused_parameters,
            device=self._device,
            metrics=self._metrics,
            series=Series(worker.series if worker else None),
            stop=self._stop,
        )
        self._engine = engine
        loader = Loader(source, self._config.seed, self._device, worker.uid if worker else "")
        prefetch = Prefetch(loader, source.length, self._config.seed, engine.coming_shares)
        return (
            wrapped,
            ElasticOptimizer(optimizer, engine.commit),
            Batches(engine, loader, prefetch),
        )

    def scale(self, loss: torch.Tensor, count: float | torch.Tensor | None = None) -> torch.Tensor:
        """The loss, weighted with this worker's share of the global batch; call `backward()` on what is returned.

        `count`, if `prepare()` was told of it, is the number of tokens, or the sum of the weights, that the loss of
        this batch is a mean or a sum over; the gradient is then that of the mean over all workers' counts. It may be 0.

        Raises RuntimeError outside the loop over the batches, ValueError for a count that is missing, superfluous,
        negative or no number.
        """
        if self._engine is None:
            raise RuntimeError("session.scale() was called before session.prepare()")
        return self._engine.scale(loss, count)

    def evaluate(
        self,
        dataset: Dataset[Any] | DataLoader[Any],
        measure: Measure,
        *,
        every_steps: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        """Have the model measured on a data set at the end of each epoch, or every `every_steps` steps, and at the end
        of the job. Results are in `session.metrics` and in the log.

        `measure(model, batch)` returns a dict of sums over the batch's samples, which are then divided by the number of
        samples; or of pairs of a sum and what to divide it by, such as a number of tokens. Every sample is measured
        once, by some worker, on its device, without gradients and with the model in evaluation mode. If
        `spec.training.target` names one of the metrics, it is taken every `target.everySteps` steps, and ends the job
        when it is reached.

        Call it between `prepare()` and the loop, or it raises RuntimeError, as it does if called twice. `dataset` is as
        for `prepare()`, with the same errors; ValueError for an `every_steps` below 1.
        """
        if self._engine is None or self._engine.started:
            raise RuntimeError("session.evaluate() belongs between session.prepare() and the loop over the batches")
        self._engine.evaluation.declare(Source.of(dataset, collate_fn), measure, every_steps, self._device)

    def register(self, **objects: Any) -> None:
        """Keep further objects with `state_dict()` and `load_state_dict()` in the job's checkpoints, by name.

        Learning-rate schedules among them are stepped by the session, once per committed step, on every worker; do not
        step them in the loop. Call it between `prepare()` and the loop, or it raises RuntimeError; TypeError for an
        object without those two methods, or a ReduceLROnPlateau, which needs a metric.
        """
        if self._engine is None or self._engine.started:
            raise RuntimeError("session.register() belongs between session.prepare() and the loop over the batches")
        for name, each in objects.items():
            if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
                raise TypeError(f"{name}: has no state_dict() and load_state_dict()")
            if isinstance(each, ReduceLROnPlateau):
                raise TypeError(f"{name}: ReduceLROnPlateau needs a metric, so a session cannot step it")
            self._engine.state.registered[name] = each

    def _plan_alone(self, source: Source) -> Plan:
        given = self._batch_size if self._batch_size is not None else source.batch_size
        batch_size = _USUAL_BATCH_SIZE if given is None else given
        if batch_size < 1:
            raise ValueError(f"batch_size: must be at least 1, found {batch_size}")
        return Plan(0, 0, "step", (Member("alone", "", "", "", batch_size),))

    def _count_rejected(self) -> None:
        self._metrics.state.plans_rejected += 1

    def _last_words(self, error: str) -> Termination:
        engine = self._engine
        finished = engine is not None and engine.finished
        message = error
        stopped = not error and engine is not None and engine.stopped
        if stopped:
            why = "asked to stop" if self._stop.requested else "another worker was asked to stop"
            message = f"{why}; left after step {self.step}"
        elif not error and not finished:
            total = self._metrics.state.total_steps
            message = f"the script ended before the job's last step (step {self.step} of {total or 'unknown'})"
        return Termination(finished=finished, step=self.step, message=message, asked_to_stop=stopped)
