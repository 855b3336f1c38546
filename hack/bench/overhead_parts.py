"""Where the CPU time of a worker's main thread goes, per step, by part of the library.

The library's own functions are wrapped, and those of torch that both loops call. The time of a part is its own: what it
calls in another part counts there. The clock is read at each call, which takes longer than many of them do; how long is
measured first, and subtracted. What other threads do meanwhile (gloo's, the metrics server's) is in no part.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table

PLAIN, LIBRARY = "plain", "heterotrain"
SCRIPT = "the script's loop"
CALIBRATION_CALLS = 20_000

# Functions by part, as MODULE:NAME or MODULE:CLASS.NAME. Both loops call torch's.
TORCH = {
    "torch: data loader": (
        "torch.utils.data.dataloader:DataLoader.__iter__",
        "torch.utils.data.dataloader:_BaseDataLoaderIter.__next__",
    ),
    "torch: forward": (
        "heterotrain.workloads.digits:DigitsCNN.forward",
        "torch.nn.modules.loss:CrossEntropyLoss.forward",
    ),
    "torch: DistributedDataParallel": ("torch.nn.parallel.distributed:DistributedDataParallel.forward",),
    "torch: backward": ("torch:Tensor.backward",),
    "torch: optimizer": ("torch.optim.sgd:SGD.step", "torch.optim.optimizer:Optimizer.zero_grad"),
}
HETEROTRAIN = {
    "loop over the batches": ("heterotrain.training.batches:Batches.__iter__",),
    "which samples to load": (
        "heterotrain.data.loading:Prefetch.batch",
        "heterotrain.data.loading:Prefetch._expected",
        "heterotrain.training.synchronous:Synchronous.coming",
        "heterotrain.data.sampler:coming_shares",
    ),
    "load samples": ("heterotrain.data.loading:_Drawn.__getitems__",),
    "boundary between two steps": ("heterotrain.training.life:WorkerLife.begin_step",),
    "begin a step": ("heterotrain.training.synchronous:Synchronous.begin",),
    "random state": ("heterotrain.state.randomness:StepRandomness.begin",),
    "keep buffers": ("heterotrain.state.buffers:KeptBuffers.keep",),
    "exchange": (
        "heterotrain.training.group:Group.begin_exchange",
        "heterotrain.training.synchronous:Synchronous._receive",
    ),
    "replica checksum": (
        "heterotrain.state.replica_watch:ReplicaWatch.checksums",
        "heterotrain.state.replica_watch:ReplicaWatch.compare",
    ),
    "model and optimizer wrappers": (
        "heterotrain.training.model:ElasticModel.forward",
        "heterotrain.training.optimizer:ElasticOptimizer.step",
        "heterotrain.training.optimizer:ElasticOptimizer.zero_grad",
    ),
    "scale the loss": ("heterotrain.session:Session.scale",),
    "frozen parameters": ("heterotrain.training.subject:Subject.check_frozen",),
    "unreached parameters": ("heterotrain.gradients.gradient_sum:GradientSum.rest",),
    "backward passes": (
        "heterotrain.gradients.passes:Passes.through",
        "heterotrain.gradients.passes:Passes._begin",
        "heterotrain.gradients.passes:Passes._end",
        "heterotrain.gradients.passes:Passes._check_scaled",
    ),
    "announce the backward": ("heterotrain.gradients.gradient_sum:GradientSum.begin",),
    "reduction": (
        "heterotrain.gradients.reduction:StepReduction.begin",
        "heterotrain.gradients.reduction:reduce_bucket",
        "heterotrain.gradients.reduction:StepReduction.finish",
    ),
    "commit": ("heterotrain.training.life:WorkerLife.commit",),
    "hyperparameters": (
        "heterotrain.state.hyperparameters:Hyperparameters.values",
        "heterotrain.state.hyperparameters:Hyperparameters.used",
    ),
    "losses": (
        "heterotrain.gradients.losses:Losses.add",
        "heterotrain.gradients.losses:Losses.commit",
        "heterotrain.gradients.losses:Losses.book",
    ),
    "metrics": (
        "heterotrain.training.accounts:Accounts.commit",
        "heterotrain.reporting.metrics:WorkerMetrics.committed",
    ),
    "peak memory": ("heterotrain.reporting.peak:PeakMemory.step",),
    "series": ("heterotrain.reporting.metrics:Series.write",),
}
PARTS = TORCH | HETEROTRAIN


@dataclass(frozen=True, slots=True)
class Part:
    """One part in one loop: microseconds of the main thread per step, and calls per step."""

    name: str
    microseconds: float
    calls: float


class Stopwatch:
    """Adds up the CPU time of this thread by part while it runs; calls in other threads are left alone."""

    def __init__(self, clock: Callable[[], int] = time.thread_time_ns) -> None:
        self._clock = clock
        self._thread = threading.get_ident()
        self._running = False
        self._part = SCRIPT
        self._since = 0
        self._nanoseconds: Counter[str] = Counter()
        self._entered: Counter[str] = Counter()
        self._left: Counter[str] = Counter()
        self._inside = self._outside = 0.0  # nanoseconds that one wrapped call adds to its own part and to its caller's

    def start(self) -> None:
        """Count from here on, from zero."""
        self._nanoseconds, self._entered, self._left = Counter(), Counter(), Counter()
        self._part = SCRIPT
        self._running = True
        self._since = self._clock()

    def stop(self, steps: int) -> list[Part]:
        """What was counted, per step."""
        self._leave(SCRIPT)
        self._running = False
        return [
            Part(
                name,
                (nanoseconds - self._entered[name] * self._inside - self._left[name] * self._outside) / 1e3 / steps,
                self._entered[name] / steps,
            )
            for name, nanoseconds in self._nanoseconds.items()
        ]

    def calibrate(self) -> None:
        """Measure what a wrapped call of a function that does nothing adds."""

        def nothing() -> None:
            pass

        wrapped = self.timed("nothing", nothing)
        begin = self._clock()
        for _ in range(CALIBRATION_CALLS):
            nothing()
        direct = (self._clock() - begin) / CALIBRATION_CALLS
        self.start()
        for _ in range(CALIBRATION_CALLS):
            wrapped()
        self._inside = self._outside = 0.0
        found = {part.name: part.microseconds * 1e3 for part in self.stop(CALIBRATION_CALLS)}
        self._inside, self._outside = found["nothing"], found[SCRIPT] - direct

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function in its place whose time counts for `part`; of a generator function, that of each next value."""
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def values(*args: Any, **kwargs: Any) -> Iterator[Any]:
                iterator = function(*args, **kwargs)
                try:
                    while True:
                        before = self._enter(part)
                        try:
                            value = next(iterator)
                        except StopIteration:
                            return
                        finally:
                            self._leave(before)
                        yield value
                finally:
                    iterator.close()

            return values

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            before = self._enter(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._leave(before)

        return call

    def _enter(self, part: str) -> str | None:
        if not self._running or threading.get_ident() != self._thread:
            return None
        before = self._part
        self._entered[part] += 1
        self._left[before] += 1
        self._switch(part)
        return before

    def _leave(self, before: str | None) -> None:
        if before is not None:
            self._switch(before)

    def _switch(self, part: str) -> None:
        now = self._clock()
        self._nanoseconds[self._part] += now - self._since
        self._part, self._since = part, now


def find(target: str) -> tuple[Any, str, Callable[..., Any]]:
    """The module or class that holds a function, the function's name there, and the function.

    Raises AttributeError, ImportError if there is none, TypeError if it is no plain function.
    """
    module, _, path = target.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for each in owners:
        owner = getattr(owner, each)
    found = inspect.getattr_static(owner, name)
    if not inspect.isfunction(found):
        raise TypeError(f"{target}: expected a function, found {type(found).__name__}")
    return owner, name, found


def wrap(watch: Stopwatch, parts: Mapping[str, Iterable[str]]) -> None:
    """Put timed functions in the place of all of them, also where another module has imported one by name."""
    for part, targets in parts.items():
        for target in targets:
            owner, name, function = find(target)
            timed = watch.timed(part, function)
            setattr(owner, name, timed)
            if inspect.ismodule(owner):
                for module in [each for key, each in sys.modules.items() if key.startswith("heterotrain.")]:
                    if getattr(module, name, None) is function:
                        setattr(module, name, timed)


@dataclass(frozen=True, slots=True)
class PartCost:
    """One part, in microseconds of a main thread per step: under plain DDP, with the library, and calls in the latter.

    Means over workers and rounds.
    """

    name: str
    plain: float
    heterotrain: float
    calls: float

    @property
    def difference(self) -> float:
        """What the library adds to it, or saves."""
        return self.heterotrain - self.plain


def summarise(blocks: Iterable[tuple[str, Iterable[Part]]]) -> list[PartCost]:
    """The parts of all blocks, each given with its loop, in the order of `PARTS`."""
    totals: dict[str, defaultdict[str, float]] = {PLAIN: defaultdict(float), LIBRARY: defaultdict(float)}
    calls: defaultdict[str, float] = defaultdict(float)
    number: Counter[str] = Counter()
    for loop, parts in blocks:
        number[loop] += 1
        for part in parts:
            totals[loop][part.name] += part.microseconds
            if loop == LIBRARY:
                calls[part.name] += part.calls
    order = [SCRIPT, *PARTS]
    return [
        PartCost(
            name,
            totals[PLAIN][name] / max(1, number[PLAIN]),
            totals[LIBRARY][name] / max(1, number[LIBRARY]),
            calls[name] / max(1, number[LIBRARY]),
        )
        for name in order
        if totals[PLAIN][name] or totals[LIBRARY][name]
    ]


def render(costs: Iterable[PartCost], title: str) -> Table:
    """The parts as a table, in microseconds of a main thread per step."""
    table = Table(title=title)
    for heading in ("main thread, CPU µs per step", "plain DDP", "heterotrain", "difference", "calls"):
        table.add_column(heading, justify="left" if heading.startswith("main") else "right")
    costs = list(costs)
    for one in costs:
        plain = f"{one.plain:.1f}" if one.plain else "-"
        table.add_row(one.name, plain, f"{one.heterotrain:.1f}", f"{one.difference:+.1f}", f"{one.calls:.2f}")
    table.add_section()
    table.add_row(
        "all parts",
        f"{sum(one.plain for one in costs):.1f}",
        f"{sum(one.heterotrain for one in costs):.1f}",
        f"{sum(one.difference for one in costs):+.1f}",
        "",
    )
    return table
