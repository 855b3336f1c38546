"""What a training script holds once it has joined: prepare, iterate, weight losses, evaluate.

Nothing here refers to a process group, and no error of a collective ever reaches the script: a failed step is dropped
and its batch comes again. So workers can come and go without a change of the user's code.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from heterotrain.contract import Termination, TrainingConfig
from heterotrain.data.evaluation import Measure
from heterotrain.data.loading import Loader, Prefetch
from heterotrain.data.once import first_here
from heterotrain.data.order import Order
from heterotrain.data.source import Source
from heterotrain.gradients.counting import LossKind
from heterotrain.gradients.precision import Arithmetic
from heterotrain.job.farewell import Farewell
from heterotrain.job.launched import Launched
from heterotrain.job.look import answer_look
from heterotrain.job.planfile import PlanFile
from heterotrain.job.plans import Plans
from heterotrain.job.worker import StopRequest, Worker, choose_device, limit_threads
from heterotrain.refusals import (
    check,
    check_loss,
    check_modules,
    check_optimizer,
    check_registered,
    remark_on_lacking,
)
from heterotrain.reporting.cuda_peak import peak_memory_of
from heterotrain.reporting.logs import show_log_alone, show_log_of_worker
from heterotrain.reporting.metrics import Series, serve
from heterotrain.reporting.reporter import Reporter, Training, checked
from heterotrain.sinks import Sink
from heterotrain.standing import Standing
from heterotrain.training.batches import Batches
from heterotrain.training.context import Context
from heterotrain.training.leaving import last_words
from heterotrain.training.life import WorkerLife
from heterotrain.training.model import ElasticModel
from heterotrain.training.optimizer import ElasticOptimizer
from heterotrain.training.rate_scaling import RateScaling
from heterotrain.training.schedules import Every
from heterotrain.training.subject import Subject

log = logging.getLogger(__name__)

_USUAL_BATCH_SIZE = 32


class Session(Standing):
    """One worker's side of a job."""

    def __init__(
        self,
        worker: Worker | None,
        config: TrainingConfig,
        batch_size: int | None,
        launched: Launched | None = None,
    ) -> None:
        """Use `heterotrain.join()`."""
        super().__init__(worker, config)
        self._launched = launched
        self._batches: Batches | None = None
        self._reporter: Reporter | None = None
        self._batch_size = batch_size
        self._stop = StopRequest()
        self._farewell = Farewell(None if worker is None else worker.termination_log, self._last_words)
        if worker is not None:
            show_log_of_worker()
            self._farewell.install()
            self._stop.install()
            limit_threads(os.environ)
            serve(self._metrics, worker.metrics_port)
        else:
            show_log_alone()
        torch.manual_seed(config.seed)  # for the first weights; a script may seed again
        self._device = choose_device(config)
        self._metrics.memory = peak_memory_of(self._device)

    @property
    def device(self) -> torch.device:
        """The device to make models and tensors on; batches arrive there by themselves."""
        return self._device

    def prepare(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: torch.optim.Optimizer,
        dataset: Dataset[Any] | DataLoader[Any],
        *,
        loss: Literal["mean", "sum"] = "mean",
        counted: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        backward_passes: int = 1,
        find_unused_parameters: bool = False,
        compare_samples: bool = True,
        sinks: Sequence[Sink] = (),
    ) -> tuple[Any, ElasticOptimizer, Batches]:
        """Take over optimizer step and data order; use what is returned in place of what was given.

        `model` is all that the optimizer trains: one module, or a list of them (a backbone, a head, a criterion with
        parameters), for which a list is returned.

        `loss` says whether the criterion is a mean or a sum over a batch's samples; or, if `counted`, over what
        `scale()` gets the number of. Class-weighted cross-entropy, cross-entropy with `ignore_index`, and the losses
        that Hugging Face's models return for padded sequences are means over weights or tokens, not over samples: they
        need `counted`. It is warned of where the loss shows it.

        `dataset` is map-style, with a length; or a DataLoader of such a one, whose settings (workers, collate_fn,
        pinned memory) are taken over, but for the batch size. Its order is the session's own, unless the loader has a
        sampler or batch sampler of its own kind; see docs/data.md.

        `backward_passes` is how often the loop calls `backward()` for each batch that it gets; their gradients add up.
        Parameters that a loss does not reach get gradients of zero; `find_unused_parameters` is needed if these are
        others each time. The batches end with the job: epochs and resuming from a checkpoint happen inside.

        With `compare_samples` a few samples, which must be the same on all workers, are read before the first step, of
        what is evaluated too; set it to False where reading one takes long.

        `sinks` are trackers of experiments that get the job's figures (`heterotrain.sinks`).

        Raises TypeError or ValueError, with a way round, for what cannot be trained on several workers: an
        IterableDataset, an empty data set, a DistributedSampler, several optimizers or one that needs several losses a
        step, an optimizer with parameters that the model has not, sparse gradients, SyncBatchNorm. RuntimeError if
        called twice.
        """
        if self._life is not None:
            raise RuntimeError("session.prepare() was called already; a session trains one model")
        modules = [model] if isinstance(model, nn.Module) or not isinstance(model, Sequence) else list(model)
        check_modules(modules)
        lacking = check_optimizer(optimizer, modules)
        check(dataset)
        source = Source.of(dataset, collate_fn)
        if self._worker is None:
            answer_look(final=True, loader_batch_size=source.batch_size)
        check_loss(loss, counted=counted, backward_passes=backward_passes)
        if remark := remark_on_lacking(modules, lacking):
            log.warning("%s", remark)
        order = Order(source.length, self._config.seed, source.sampler, in_batches=source.in_batches)
        whole = (modules[0] if modules[0] is model else nn.ModuleList(modules)).to(self._device)
        arithmetic = Arithmetic(self._config.precision, self._device)
        wrapped = [ElasticModel(each, arithmetic, self._looked_at) for each in modules]
        handle = wrapped[0] if whole is model else wrapped
        subject = Subject(
            module=whole,
            optimizer=optimizer,
            device=self._device,
            order=order,
            handle=handle,
            loss=LossKind(loss, counted),
            lacking=lacking,
            backward_passes=backward_passes,
            find_unused_parameters=find_unused_parameters,
            rate_scaling=RateScaling.of(self._config),
        )
        if self._launched is not None:
            self._worker = self._launched.meet(self._batch_alone(source))
            plans = Plans(None, self._launched.plan_file(self._count_rejected))
        elif self._worker is not None:
            plans = Plans(None, PlanFile(self._worker.plan_dir, self._count_rejected))
        else:
            plans = Plans.alone(self._batch_alone(source))
        worker = self._worker
        series = Series(None if worker is None else worker.series)
        context = Context(self._config, worker, plans, self._metrics, series, self._stop, self._farewell)
        self._life = life = WorkerLife(context, subject)
        if sinks:
            self._reporter = Reporter(
                sinks, context.name, self._metrics, lambda: Training(life.position.step, life.leads, plans.active)
            )
            subject.after_step.append(self._reporter.after_step)
        loader = Loader(source, self._config.seed, self._device, worker.uid if worker else "")
        self._batches = Batches(
            life,
            loader,
            Prefetch(loader, order, life.coming),
            self._farewell,
            given=source.as_loader(),
            compares=compare_samples and worker is not None,
        )
        return handle, ElasticOptimizer(optimizer, life.commit), self._batches

    def epochs(self) -> Iterator[int]:
        """The job's epochs by number, from the one at which it starts or resumes, for scripts with a loop of their own
        over them: inside, a loop over the batches is one epoch long. Evaluations that are due at an epoch's end are
        done when that inner loop ends. A job that resumes after its last step goes through its last epoch once more,
        without batches, for what the script does after them. Raises RuntimeError before `prepare()`, and if an inner
        loop is left early.
        """
        self._prepared("epochs()")
        assert self._batches is not None
        return self._batches.epochs()

    def stop(self, reason: str) -> None:
        """End the job well, for all workers, soon: after a step that they agree on, or at once if the script then
        leaves the loop over the batches, which it may not do over nccl. For early stopping. Raises RuntimeError before
        the loop."""
        life = self._prepared("stop()")
        if not life.started:
            raise RuntimeError("session.stop() belongs into the loop over the batches")
        if not self.warming:
            log.info("step %d: the script ends the job: %s", self.step, reason)
        life.end()

    def pause(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Inside, this worker does something long that is no training, such as validating by itself: the others wait,
        and nobody takes it for hung before `runPolicy.startupDeadlineSeconds`. The step is not measured. Raises
        RuntimeError before `prepare()`."""
        return self._prepared("pause()").pause(name)

    def first_here(self, marker: str | Path) -> contextlib.AbstractContextManager[bool]:
        """`with session.first_here("data/.ready") as first:` is True for the first of the workers that share the
        marker's folder, and for each worker that shares it with nobody; the others wait until that one has done its
        block, and get False, as all do after a restart. For downloads, before the loop or in it. See `once.py`.
        """
        return first_here(Path(marker))

    def after_step(self, function: Callable[[], object]) -> None:
        """Call a function after each committed step, on every worker, also where it had no samples and the loop did not
        run: a moving average of the weights belongs here. Call it between `prepare()` and the loop, or it raises
        RuntimeError."""
        self._before_loop("after_step()").subject.after_step.append(function)

    def log(self, values: Mapping[str, float | torch.Tensor]) -> None:
        """Send figures of the script's own to the sinks of `prepare()`, by name: numbers, or tensors of one element,
        which nobody waits for. The leader's count, at the present step; the others' are dropped, and so is everything
        without sinks, while `warming`, or where a sink is too slow. Call it in the loop over the batches or after it.

        Raises RuntimeError before the loop; TypeError or ValueError, naming the figure, for what is no number, and for
        more than 256 figures at once.
        """
        figures = checked(values)
        if not self._prepared("log()").started:
            raise RuntimeError("session.log() belongs into the loop over the batches, or after it")
        if self._reporter is not None and not self.warming:
            self._reporter.log(figures)

    def scale(self, loss: torch.Tensor, count: float | torch.Tensor | None = None) -> torch.Tensor:
        """The loss, weighted with this worker's share of the global batch; call `backward()` on what is returned, and
        print `session.loss` instead of it.

        With the default `prepare(..., loss="mean")` the loss has to be a mean over samples. A cross-entropy with class
        weights or `ignore_index`, and a Hugging Face model's loss over padded tokens, are none: they need `counted`.

        `count`, after `prepare(..., counted=True)`, is the number of tokens, or the sum of the weights, that the loss
        of this batch is a mean or a sum over; the gradient is then that of the mean over all workers' counts. It may be
        0.

        Raises RuntimeError outside the loop over the batches, ValueError for a count that is missing, superfluous,
        negative or no number.
        """
        if self._life is None:
            raise RuntimeError("session.scale() was called before session.prepare()")
        return self._life.batch.scale(loss, count)

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
        life = self._before_loop("evaluate()")
        life.evaluation.declare(Source.of(dataset, collate_fn), measure, every_steps, self._device)

    def register(self, *, every: Every = "step", **objects: Any) -> None:
        """Keep further objects with `state_dict()` and `load_state_dict()` in the job's checkpoints, by name.

        Those among them that have a `step()`, as learning-rate schedules do, are stepped by the session on every
        worker, once per committed step, or with `every="epoch"` once per epoch; do not step them in the loop. Schedules
        of timm get the number of steps or epochs. Modules are compared over the workers before each checkpoint, and
        must be the same on all: change them in `after_step` functions. Call it between `prepare()` and the loop, or it
        raises RuntimeError; TypeError for an object without those two methods, and for one that the session cannot
        step: a ReduceLROnPlateau, which needs a metric, or an optimizer. ValueError for a schedule of timm's that
        counts steps where `every` says epochs, or epochs where it says steps.
        """
        life = self._before_loop("register()")
        if every not in ("step", "epoch"):
            raise ValueError(f"every: expected 'step' or 'epoch', found {every!r}")
        for name, each in objects.items():
            check_registered(each, name)
            life.subject.schedules.add(name, each, every)
            life.state.registered[name] = each

    def _looked_at(self) -> None:
        if self._life is not None:
            self._life.accounts.looked_at = True

    def _batch_alone(self, source: Source) -> int:
        given = self._batch_size if self._batch_size is not None else source.batch_size
        batch_size = _USUAL_BATCH_SIZE if given is None else given
        if batch_size < 1:
            raise ValueError(f"batch_size: must be at least 1, found {batch_size}")
        return batch_size

    def _count_rejected(self) -> None:
        self._metrics.state.plans_rejected += 1

    def _last_words(self, error: str) -> Termination:
        leaving = None if self._life is None else self._life.leaving
        return last_words(error, leaving, self._stop, self._metrics.state, self.step)
