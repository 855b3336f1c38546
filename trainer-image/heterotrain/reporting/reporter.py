"""Sends a worker's figures to the sinks that the script has chosen, without holding up a step.

A step only puts figures into a bounded queue, once in a while; each sink has a thread that takes them out. What a sink
cannot take in time is dropped, and what it raises is logged once: a full disk or a server that is away never stops the
training.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import numbers
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from heterotrain.contract import Plan
from heterotrain.reporting.metrics import VersionCounters, WorkerMetrics
from heterotrain.sinks import Run, Sink

log = logging.getLogger(__name__)

Scalar = float | torch.Tensor

MOST_VALUES = 256
"""Of one call of `session.log()`."""

LONGEST_NAME = 250
"""Characters; the most that MLflow takes."""

_QUEUE = 1000
_NAMED_MEMBERS = 16
_ERROR_CHARACTERS = 300
_CLOSING_SECONDS = 10.0
"""For all sinks together at the process' end, which may be within the grace of a pod."""


class Training(NamedTuple):
    """How far the training has come: committed steps, whether this worker leads, and the active plan."""

    step: int
    leads: bool
    plan: Plan


class _Entry(NamedTuple):
    """Figures or a marker of a run, the job's or this worker's own; None: the run ends here."""

    step: int
    of_job: bool
    what: Mapping[str, Scalar] | str | None


class Reporter:
    """One worker's figures: its batch, own time and waiting in its own run; and if it leads, loss, samples per second,
    evaluations, changes of the plan and what the script logs in the job's run."""

    def __init__(
        self,
        sinks: Sequence[Sink],
        worker: str,
        metrics: WorkerMetrics,
        training: Callable[[], Training],
        *,
        every_seconds: float = 1.0,
    ) -> None:
        """`training` is asked after a step, in the training's thread."""
        self._metrics = metrics
        self._training = training
        self._every_seconds = every_seconds
        self._due = -math.inf
        self._before = VersionCounters()  # as they were at the last report
        self._counters: VersionCounters | None = None  # the object that they were of
        self._step, self._at = 0, math.nan
        self._leads = False
        self._version: int | None = None
        self._evaluated = -1
        self._outlets = [_Outlet(sink, worker, self._opened) for sink in sinks]
        atexit.register(self.close)  # a short training may end before any tracker is at work

    def after_step(self) -> None:
        """A step is committed; most of them cost a look at the clock."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + self._every_seconds
            self._report(now)

    def log(self, values: Mapping[str, Scalar]) -> None:
        """See `Session.log`."""
        training = self._training()
        if training.leads:
            # The script may change a tensor of its own before the thread reads it.
            taken = {k: v.detach().clone() if isinstance(v, torch.Tensor) else v for k, v in values.items()}
            self._put(_Entry(training.step, True, taken))

    def close(self) -> None:
        """Report what is new, and end the runs, unless that takes longer than `_CLOSING_SECONDS`."""
        if self._counters is not None:
            self._report(time.monotonic())
        deadline = time.monotonic() + _CLOSING_SECONDS
        for outlet in self._outlets:
            outlet.end()
        for outlet in self._outlets:
            outlet.join(deadline - time.monotonic())
        self._outlets = []

    def _opened(self) -> None:
        """A tracker is at work, which may end itself at the process' end; `close` has to come before that, hence is
        registered after it."""
        atexit.unregister(self.close)
        atexit.register(self.close)

    def _report(self, now: float) -> None:
        training = self._training()
        step, plan = training.step, training.plan
        counters, before = self._metrics.counters, self._before
        if counters is not self._counters:
            before = VersionCounters()
        own = {"batch_size": float(counters.batch_size)}
        if steps := counters.steps - before.steps:
            own_seconds = counters.own_seconds - before.own_seconds
            waiting = counters.wait_seconds - before.wait_seconds
            own |= {"own_seconds": own_seconds / steps, "waiting_seconds": waiting / steps}
            if own_seconds + waiting > 0:
                own["samples_per_second"] = (counters.samples - before.samples) / (own_seconds + waiting)
        self._put(_Entry(step, False, own))
        if training.leads:
            self._report_job(training, now)
        elif self._leads:
            self._put(_Entry(step, True, None))
        self._counters = counters
        self._before = VersionCounters(
            steps=counters.steps,
            samples=counters.samples,
            own_seconds=counters.own_seconds,
            wait_seconds=counters.wait_seconds,
        )
        self._step, self._at = step, now
        self._leads, self._version = training.leads, plan.version

    def _report_job(self, training: Training, now: float) -> None:
        step, _, plan = training
        state, evaluated = self._metrics.state, self._metrics.state.evaluated
        if evaluated is not None and evaluated.step > self._evaluated:
            self._evaluated = evaluated.step
            self._put(_Entry(evaluated.step, True, dict(evaluated.metrics)))
        values = {"epoch": float(state.epoch), "plan_version": float(plan.version), "workers": float(len(plan.members))}
        if math.isfinite(state.loss):
            values["loss"] = state.loss
        if step > self._step and now > self._at:
            values["samples_per_second"] = plan.global_batch_size * (step - self._step) / (now - self._at)
        self._put(_Entry(step, True, values))
        if plan.version != self._version:
            self._put(_Entry(step, True, described(plan)))

    def _put(self, entry: _Entry) -> None:
        for outlet in self._outlets:
            outlet.put(entry)


class _Outlet:
    """One sink, with its queue and its thread."""

    def __init__(self, sink: Sink, worker: str, opened: Callable[[], None]) -> None:
        self._sink = sink
        self._worker = worker
        self._opened = opened
        self._queue: queue.Queue[_Entry | None] = queue.Queue(_QUEUE)
        self._runs: dict[bool, Run] = {}
        self._said: set[str] = set()
        self._thread: threading.Thread | None = None

    @property
    def _name(self) -> str:
        return type(self._sink).__name__

    def put(self, entry: _Entry) -> None:
        """Never waits."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"sink {self._name}", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            self._say_once("is too slow, so some figures are dropped")

    def end(self) -> None:
        """After what is queued, of which some is dropped if there is no room for this."""
        while True:
            try:
                self._queue.put_nowait(None)
                return
            except queue.Full:
                self._say_once("is too slow, so some figures are dropped")
            with contextlib.suppress(queue.Empty):
                self._queue.get_nowait()

    def join(self, seconds: float) -> None:
        """Wait until it has ended, for so long at most."""
        if self._thread is not None:
            self._thread.join(max(0.0, seconds))
            if self._thread.is_alive():
                log.warning("%s: not all figures were written before the end", self._name)

    def _work(self) -> None:
        while (entry := self._queue.get()) is not None:
            self._try(entry)
        for of_job in list(self._runs):
            self._try(_Entry(0, of_job, None))

    def _try(self, entry: _Entry) -> None:
        try:
            self._write(entry)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever a tracker raises, the training goes on
            # A server's answer may be a whole page.
            text = " ".join(str(error)[:_ERROR_CHARACTERS].split())
            self._say_once(f"does not take all figures: {type(error).__name__}: {text}")

    def _write(self, entry: _Entry) -> None:
        step, of_job, what = entry
        if what is None:
            if (ended := self._runs.pop(of_job, None)) is not None:
                ended.close()
            return
        if of_job not in self._runs:
            self._runs[of_job] = self._sink.open(None if of_job else self._worker, step)
            self._opened()
        run = self._runs[of_job]
        if isinstance(what, str):
            run.marker(step, what)
        else:
            run.scalars(step, {name: float(value) for name, value in what.items()})

    def _say_once(self, what: str) -> None:
        kind = what.split(":", maxsplit=1)[0]
        if kind not in self._said:
            self._said.add(kind)
            log.warning("%s %s; training goes on, and this is said once", self._name, what)


def checked(values: Mapping[str, object]) -> Mapping[str, Scalar]:
    """What `session.log()` is given. Raises TypeError or ValueError, which name the figure."""
    if len(values) > MOST_VALUES:
        raise ValueError(f"session.log(): {len(values)} figures are more than {MOST_VALUES}")
    taken: dict[str, Scalar] = {}
    for name, value in values.items():
        if not isinstance(name, str):
            raise TypeError(f"session.log(): {name!r}: a name is text")
        if not 0 < len(name) <= LONGEST_NAME:
            raise ValueError(f"session.log(): a name has 1 to {LONGEST_NAME} characters, found {len(name)}")
        if not (isinstance(value, numbers.Real) or (isinstance(value, torch.Tensor) and value.numel() == 1)):
            shape = f" of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else ""
            raise TypeError(f"session.log(): {name}: expected one number, found {type(value).__name__}{shape}")
        try:
            taken[name] = value if isinstance(value, torch.Tensor) else float(value)
        except OverflowError as error:
            raise ValueError(f"session.log(): {name}: {error}") from None
    return taken


def described(plan: Plan) -> str:
    """A plan in words: its batches by worker, as many as can be read."""
    batches = [f"{member.name} {member.batch_size}" for member in plan.members[:_NAMED_MEMBERS]]
    more = len(plan.members) - len(batches)
    return f"plan {plan.version}: batches {', '.join(batches)}" + (f" and {more} more" if more else "")
