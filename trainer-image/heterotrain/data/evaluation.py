"""Measure the model on a data set of its own, divided among the workers: every sample once, whatever the split.

The session evaluates between steps, on all workers alike. A loop in the script could not: a worker without samples in
a step does not run its body, and the others would wait for it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from heterotrain.contract import TRAINING_LOSS, EvaluationRecord, Member, TrainingConfig
from heterotrain.data.likeness import SAMPLE, chosen
from heterotrain.data.loading import Loader, Samples
from heterotrain.data.sampler import Position, micro_batches_one_by_one, rank_slice
from heterotrain.data.source import Source
from heterotrain.peers import parse_sums

log = logging.getLogger(__name__)

Measured = float | torch.Tensor | tuple[float | torch.Tensor, float | torch.Tensor]
"""What a measure returns for a batch: a sum over its samples; or a sum, and what to divide it by, such as tokens."""

Measure = Callable[[Any, Any], Mapping[str, Measured]]
"""Measures the model on a batch: `measure(model, batch)`."""

Gather = Callable[[bytes], "list[bytes] | None"]
"""Send a document to all workers and return those of all workers, by rank; None if that failed."""


class Sums:
    """Sums and their divisors, by name, over any part of the data set."""

    def __init__(self) -> None:
        self.samples = 0
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, measured: Mapping[str, Measured], samples: int) -> None:
        """Add what was measured on a batch. Raises ValueError if its names differ from those before, or for what is no
        number."""
        batch = {}
        for name, value in measured.items():
            total, divisor = value if isinstance(value, tuple) else (value, samples)
            try:
                batch[name] = (float(total), float(divisor))
            except (TypeError, ValueError, RuntimeError) as error:
                raise ValueError(f"session.evaluate(): {name}: expected a sum over the batch, found {error}") from error
        self._take(batch, samples)

    def _take(self, sums: Mapping[str, tuple[float, float]], samples: int) -> None:
        if not samples:
            return
        known = self._sums if self.samples else dict.fromkeys(sums, (0.0, 0.0))
        if sums.keys() != known.keys():
            raise ValueError(
                f"session.evaluate(): the measure of one batch has {_listed(known)}, that of another has "
                f"{_listed(sums)}"
            )
        self._sums = {
            name: (total + sums[name][0], divisor + sums[name][1]) for name, (total, divisor) in known.items()
        }
        self.samples += samples

    def to_json(self) -> bytes:
        """The document that is sent to the others; exact."""
        return json.dumps({"samples": self.samples, "sums": self._sums}).encode()

    @classmethod
    def of(cls, documents: Sequence[bytes]) -> Sums:
        """The sums of all workers, added in the order of their ranks, so that every worker gets the same.

        Raises ValueError as `add` does, and PeerError if a document cannot be understood.
        """
        whole = cls()
        for samples, sums in map(parse_sums, documents):
            whole._take(sums, samples)
        return whole

    def values(self) -> dict[str, float]:
        """Sum over divisor; not a number where that is 0."""
        return {name: total / divisor if divisor else math.nan for name, (total, divisor) in self._sums.items()}


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to measure, on what, and how often; `every_steps` None: at the end of each epoch."""

    loader: Loader
    length: int
    measure: Measure
    every_steps: int | None


class Evaluation:
    """The job's evaluations; entered while its loader's processes are to run."""

    def __init__(self, config: TrainingConfig) -> None:
        self.values: dict[str, float] = {}
        self.target_reached = False
        self.is_elsewhere = False  # another process evaluates, and says what it has measured
        self._config = config
        self._plan: _Plan | None = None
        self.samples: dict[str, str] = {}  # a few of its samples, as traits
        self.step = -1  # at which it was evaluated last
        self._stack = contextlib.ExitStack()

    def declare(self, source: Source, measure: Measure, every_steps: int | None, device: torch.device) -> None:
        """See `Session.evaluate`."""
        if source.sampler is not None:
            raise ValueError(
                f"session.evaluate(): the DataLoader has a sampler of its own ({type(source.sampler).__name__}), but "
                "all samples are measured, each once; leave the sampler out, or give a Subset of the data set"
            )
        if self._plan is not None:
            raise RuntimeError(
                "session.evaluate() was called already; a session evaluates on one data set, by any number of metrics"
            )
        if every_steps is not None and every_steps < 1:
            raise ValueError(f"every_steps: must be at least 1, found {every_steps}")
        if self._config.target_metric != TRAINING_LOSS and self._config.target_value is not None:
            every_steps = self._config.target_every_steps
        self._plan = _Plan(Loader(source, self._config.seed, device), source.length, measure, every_steps)

    def describe(self) -> str:
        """What is evaluated and when, in words; the same on all workers."""
        if self._plan is None:
            return "none"
        steps = self._plan.every_steps
        return f"of {self._plan.length} samples each {'epoch' if steps is None else f'{steps} steps'}"

    def describe_samples(self) -> None:
        """Read a few samples, which all workers are to have alike."""
        if self._plan is not None:
            described = self._plan.loader.describe(chosen(self._plan.length, self._config.seed))
            self.samples = {f"{SAMPLE} {index} of the evaluation": text for index, text in described.items()}

    def __enter__(self) -> Evaluation:
        """Raises ValueError if the job's target is a metric that nothing measures."""
        if self._plan is not None:
            self._stack.enter_context(self._plan.loader)
        elif self._config.target_value is not None and self._config.target_metric != TRAINING_LOSS:
            raise ValueError(
                f"spec.training.target.metric: nothing measures {self._config.target_metric}; the script has to call "
                f"session.evaluate() before the loop over the batches"
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def is_due(self, position: Position, *, at_the_end: bool) -> bool:
        """Whether this boundary between steps is one for an evaluation; the same on all ranks."""
        if self._plan is None or self.is_elsewhere or position.step == self.step:
            return False
        if at_the_end or self._plan.every_steps is None:
            return at_the_end or (position.begins and position.step > 0)
        return position.step > 0 and position.step % self._plan.every_steps == 0

    def run(
        self, module: nn.Module, members: Sequence[Member], rank: int, step: int, gather: Gather, *, handle: Any
    ) -> EvaluationRecord | None:
        """Evaluate this worker's part, and put the parts of all workers together; None if that failed, and nothing is
        changed. `handle` is what the script holds of `module`.

        Parts are in proportion to the batch sizes, which follow speed. Raises ValueError if the measure is not the
        same for all batches, or the job's target not among it; and whatever the measure raises.
        """
        assert self._plan is not None
        own = self._measured(self._plan, module, handle, members, rank)
        documents = gather(own.to_json())
        if documents is None:
            return None
        whole = Sums.of(documents)
        assert whole.samples == self._plan.length, f"evaluated {whole.samples} of {self._plan.length} samples"
        self.values, self.step = whole.values(), step
        if rank == 0:
            measured = ", ".join(f"{name} {value:.6g}" for name, value in self.values.items())
            log.info("step %d: %s over %d samples", step, measured, whole.samples)
        self._judge()
        return EvaluationRecord(time.time(), step, self.values)

    def _measured(self, plan: _Plan, module: nn.Module, handle: Any, members: Sequence[Member], rank: int) -> Sums:
        start, stop = rank_slice([member.batch_size for member in members], rank, plan.length)
        most = members[rank].micro_batch_size or members[rank].batch_size
        sums = Sums()
        if start == stop:
            return sums
        plan.loader.ask(Samples(((0, list(range(*part))),)) for part in micro_batches_one_by_one(start, stop, most))
        with _evaluating(module, plan.loader.device):
            for part, batch in zip(micro_batches_one_by_one(start, stop, most), plan.loader, strict=True):
                sums.add(plan.measure(handle, batch), part[1] - part[0])
        return sums

    def _judge(self) -> None:
        config = self._config
        if config.target_value is None or config.target_metric == TRAINING_LOSS:
            return
        if config.target_metric not in self.values:
            raise ValueError(
                f"spec.training.target.metric: {config.target_metric} is not measured; session.evaluate() measures "
                f"{_listed(self.values)}"
            )
        self.target_reached = config.reaches_target(self.values[config.target_metric])

    def facts(self) -> dict[str, Any]:
        """For a rank that may have missed an evaluation."""
        return {"step": self.step, "values": self.values, "target_reached": self.target_reached}

    def take_over(self, facts: Mapping[str, Any]) -> None:
        """Take over what another rank knows."""
        self.step, self.values = facts["step"], dict(facts["values"])
        self.target_reached = facts["target_reached"]


@contextlib.contextmanager
def _evaluating(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Without gradients and in evaluation mode; afterwards modes and random state are as before."""
    training = [module for module in model.modules() if module.training]
    devices = [device] if device.type == "cuda" else []
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            yield
    finally:
        for module in training:
            module.training = True


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(names) or "nothing"
