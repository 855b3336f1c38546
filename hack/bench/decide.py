"""What a decision costs: CPU time of the dearest regular one, and of one without news, by the number of workers.

All workers train. The dearest regular decision closes everybody's window of measured steps, asks the policy and finds
that the batches should stay; a predictor that looks ahead is trusted, and taught. One without news finds too few steps
since the last. Between two decisions the memory is kept, as in a running operator. Nothing is observed and nothing is
written, so this is the pure core's cost alone.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import runner
import tables_simulated

from heterotrain.contract import PHASE_TRAINING, PHASE_WAITING, Plan
from heterotrain_operator.core.decide import decide
from heterotrain_operator.core.model import Decision, Group, Job, Seen, WorkerMetrics, WorkerSeen
from heterotrain_operator.core.prediction import PREDICTORS
from heterotrain_operator.core.prediction.learned import Learned, sample_of
from heterotrain_operator.core.prediction.predictor import LooksAhead
from heterotrain_operator.core.state import Remembered
from heterotrain_operator.garbage import seldom_collected

SIZES = (10, 30, 100, 300, 1000, 3000, 10_000)
BATCH, SPEEDS = 32, (1.0, 1.5, 2.0, 4.0)
FIXED_SECONDS, SECONDS_PER_SAMPLE, VARIATION = 0.02, 0.002, 0.05
COMPUTING = 0.6
"""Of own time; for the rest the CPU limit holds workers back."""

MEBIBYTE = 1 << 20
STEPS = 10
WARM_UP = 12
WAVERING = 0.02
"""By which windows differ from the line, so that each teaches a predictor that looks ahead."""

LESSONS = 300
"""That leave a model which foresees hardly anything, so that batches stay though it is asked."""


class Bench:
    """A job of so many workers of four speeds, whose steps take exactly what the line says."""

    def __init__(self, workers: int, prediction: str) -> None:
        groups = tuple(
            Group(f"g{rank}", len(range(rank, workers, len(SPEEDS))), cpu_limit=4 / speed)
            for rank, speed in enumerate(SPEEDS)
        )
        used = tuple(group for group in groups if group.replicas)
        self._job = Job("bench", used, BATCH * workers, prediction=prediction)
        self._speeds = {group.name: speed for group, speed in zip(groups, SPEEDS, strict=True)}
        self._now = 1_700_000_000.0
        self._memory = Remembered.initial()
        self._workers: list[WorkerSeen] = []
        self._plan: Plan | None = None
        for _ in range(2):
            self.decide()
        for _ in range(WARM_UP):
            self.train()
            self.decide()
        ahead = PREDICTORS[prediction].ahead
        if ahead is not None:
            learned = tuple(self._trusted(ahead, each) for each in self._memory.learned)
            self._memory = replace(self._memory, learned=learned)

    def _trusted(self, ahead: LooksAhead, known: Learned) -> Learned:
        """What is known of a group, as a model that is asked, and foresees nothing in its workers' windows."""
        plan = self._plan
        assert plan is not None
        [rank, *_] = (rank for rank, member in enumerate(plan.members) if member.group == known.group)
        sample = sample_of(self._memory.workers[rank].series.windows, None)
        assert sample is not None, "its windows have their use of the CPU"
        numbers = ahead.beginning
        for _ in range(LESSONS):
            numbers = ahead.taught(numbers, sample, 0.0)
        return replace(known, samples=ahead.least_samples, error=1e-9, average_error=1e-3, numbers=numbers)

    def train(self) -> None:
        """Everybody takes the steps of one interval under the present plan."""
        assert self._plan is not None
        self._now += 1.0
        self._workers = [
            self._trained(worker, member.batch_size)
            for worker, member in zip(self._workers, self._plan.members, strict=True)
        ]

    def _trained(self, worker: WorkerSeen, batch: int) -> WorkerSeen:
        metrics = worker.metrics
        assert metrics is not None and self._plan is not None
        if metrics.plan_version != self._plan.version:
            metrics = WorkerMetrics(
                self._plan.version, self._plan.generation, batch, metrics.step, phase=PHASE_TRAINING
            )
        seconds = self._speeds[worker.group] * (FIXED_SECONDS + SECONDS_PER_SAMPLE * batch)
        seconds *= 1 + WAVERING * math.sin(10 * self._now + worker.index)
        squares = STEPS * seconds**2 * (1 + VARIATION**2)
        metrics = replace(
            metrics,
            step=metrics.step + STEPS,
            steps=metrics.steps + STEPS,
            samples=metrics.samples + STEPS * batch,
            own_seconds=metrics.own_seconds + STEPS * seconds,
            own_seconds_squared=metrics.own_seconds_squared + squares,
            observed_seconds=(metrics.observed_seconds or 0.0) + STEPS * seconds,
            cpu_seconds=(metrics.cpu_seconds or 0.0) + COMPUTING * STEPS * seconds,
            cpu_throttled_seconds=(metrics.cpu_throttled_seconds or 0.0) + (1 - COMPUTING) * STEPS * seconds,
            cpu_wait_seconds=metrics.cpu_wait_seconds or 0.0,
            computing_threads=1.0,
            memory_peak_bytes=(300 + 2 * batch) * MEBIBYTE,
            memory_limit_bytes=4096 * MEBIBYTE,
            memory_batch_size=batch,
        )
        return replace(worker, metrics=metrics)

    def decide(self) -> Decision:
        """One decision, carried out at once."""
        decision, self._memory = decide(self._job, Seen(tuple(self._workers), self._plan), self._memory, self._now)
        for key in decision.create:
            metrics = WorkerMetrics(plan_version=0, phase=PHASE_WAITING)
            limit = 4 / self._speeds[key.group]
            self._workers.append(
                WorkerSeen(
                    key.name,
                    f"{len(self._workers):08x}-5d6e-4f70-8192-a3b4c5d6e7f8",
                    key.group,
                    key.index,
                    "Running",
                    "10.0.0.7:29500",
                    cpu_limit=limit,
                    node="node-1",
                    metrics=metrics,
                )
            )
        self._plan = decision.plan or self._plan
        return decision

    def cpu_milliseconds(self, *, news: bool) -> float:
        """Of one decision, with or without a new window of steps."""
        if news:
            self.train()
        began = time.process_time()
        decision = self.decide()
        spent = 1e3 * (time.process_time() - began)
        expected = "Optimal keeps the batches" if news else "plan "
        assert decision.plan is None and decision.reason.startswith(expected), decision.reason
        return spent


@dataclass(frozen=True, slots=True)
class Cost:
    """The median CPU milliseconds of a decision for so many workers, and of one without news."""

    workers: int
    cpu_milliseconds: float
    without_news_cpu_milliseconds: float


def measure(workers: int, repetitions: int, prediction: str) -> Cost:
    """What decisions for so many workers cost."""
    bench = Bench(workers, prediction)
    with_news, without = (
        statistics.median(bench.cpu_milliseconds(news=news) for _ in range(repetitions)) for news in (True, False)
    )
    return Cost(workers, with_news, without)


def main(arguments: Sequence[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure the CPU time of a decision by the number of workers.")
    parser.add_argument("--workers", type=int, nargs="+", default=SIZES, help="numbers of workers (10 ... 10,000)")
    parser.add_argument("--repetitions", type=int, default=9, help="decisions of each number of workers (9)")
    parser.add_argument("--prediction", choices=PREDICTORS, default="EMA", help="how own times are predicted (EMA)")
    options = runner.options_of(parser).parse_args(arguments)
    if min(*options.workers, options.repetitions) < 1 or max(options.workers) > 100_000:
        parser.error("--workers and --repetitions must be at least 1, --workers at most 100,000")
    with seldom_collected():  # as in the operator's process
        found = [measure(workers, options.repetitions, options.prediction) for workers in options.workers]
    document = {"benchmark": "decide", "machine": runner.machine(), "decisions": [asdict(cost) for cost in found]}
    runner.report(document, tables_simulated.decide([document]), options)
    return 0


if __name__ == "__main__":
    runner.command(main)
