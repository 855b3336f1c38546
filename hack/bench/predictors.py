"""How well each predictor foresees the next window's speed, and what that is worth where batches follow it.

Traces of windows, each with its worker's use of CPU and memory. Synthetic ones: independent noise, interference that
fades, interference that comes and goes, and a slow wave. Recorded ones are those of `interference.py`. The root of the
mean squared error is of log speeds. Iteration times are those of batches in proportion to what was predicted (LB-BSP,
Algorithm 1) over those of equal batches, as in its table 3.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import runner
import tables_papers
from numpy.typing import NDArray

from heterotrain_operator.core.batching.looking_ahead import Lesson, studied
from heterotrain_operator.core.prediction import PREDICTORS
from heterotrain_operator.core.prediction.learned import KEEP, LAGS, LOOKS_BACK, Learned, Sample, sample_of
from heterotrain_operator.core.prediction.predictors import arx
from heterotrain_operator.core.prediction.series import Series, Window
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.remembered_worker import RememberedWorker

WORKERS, WINDOWS, BATCH = 8, 1600, 32
NOISE, SPREAD = 0.05, 0.2
JUDGED_FROM = 130
"""Windows of each worker after which errors count, of short traces after a quarter: all models have seen enough of four
workers then, of short traces all but NARX."""

TOGETHER = 5
"""Recorded windows that are also taken as one: real ones last longer."""

RECORDED = Path(__file__).with_name("recorded_interference.json")
RECORDED_KIND = "recorded, {}"

LITERAL = ("last value", "EMA(0.2)", "ARIMA(2,2,1)")
HINDSIGHT = "ARX in hindsight"
"""Given what the window that it predicts will use of the CPU and the memory, as LB-BSP's eq. 4 is (k to k-2)."""

MODELS = tuple(name for name, each in PREDICTORS.items() if each.ahead is not None)


def noisy(draw: random.Random) -> Iterator[float]:
    while True:
        yield 0.0


def fading(draw: random.Random) -> Iterator[float]:
    effect = 0.0
    while True:
        effect = 0.9 * effect - abs(draw.gauss(0.0, 0.1))
        yield effect


def coming_and_going(draw: random.Random) -> Iterator[float]:
    effect = 0.0
    while True:
        if draw.random() < 0.05:
            effect = 0.0 if effect else -0.7
        yield effect


def waving(draw: random.Random) -> Iterator[float]:
    phase, number = draw.uniform(0, 40), 0
    while True:
        number += 1
        yield 0.3 * math.sin((number + phase) / 40) - 0.3


KINDS = {"noise": noisy, "fading": fading, "coming and going": coming_and_going, "wave": waving}


@dataclass(frozen=True, slots=True)
class Score:
    """Of one predictor on one kind of trace."""

    trace: str
    predictor: str
    error: float
    iteration_seconds: float


def trace_of(kind: str, draw: random.Random) -> list[Window]:
    """The windows of one worker."""
    effects, base = KINDS[kind](draw), draw.uniform(-SPREAD, SPREAD)
    found = []
    for number in range(WINDOWS):
        effect = next(effects)
        share = min(max(0.95 * math.exp(effect) + draw.gauss(0, 0.02), 0.0), 1.0)
        speed = math.exp(5 + base + effect + draw.gauss(0, NOISE))
        found.append(Window(BATCH / speed, BATCH, share, 0.5 + 0.2 * math.sin(number / 100)))
    return found


def recorded_traces(path: Path) -> dict[str, list[list[Window]]]:
    """By regime the windows of each worker."""
    document = json.loads(path.read_text(encoding="utf-8"))
    found = {}
    for regime, workers in document["traces"].items():
        traces = [
            [
                Window(microseconds / 1e6, document["batch"], min(cpu / 1e3, 1.0), memory / 1e3)
                for microseconds, cpu, memory in zip(*columns, strict=True)
            ]
            for columns in workers
        ]
        found[RECORDED_KIND.format(regime)] = traces
        found[RECORDED_KIND.format(f"{regime}, {TOGETHER} windows as one")] = [_longer(trace) for trace in traces]
    return found


def _longer(trace: Sequence[Window]) -> list[Window]:
    parts = [trace[at : at + TOGETHER] for at in range(0, len(trace) - TOGETHER + 1, TOGETHER)]
    return [
        Window(
            seconds := fmean(each.seconds for each in part),
            part[0].batch,
            fmean(each.cpu_share * each.seconds for each in part) / seconds,
            part[-1].memory_share,
        )
        for part in parts
    ]


def judged_from(traces: Sequence[Sequence[Window]]) -> int:
    """The number of the first window whose error counts."""
    return min(JUDGED_FROM, len(traces[0]) // 4)


LONG_ORDER, FITTED_TO, FITTED_EVERY, MOST_ROOT = 10, 300, 25, 0.98
"""Of ARIMA: the first regression's order, the windows that it is fitted to, how often, and the bound that keeps its
moving average invertible."""


def arima(speeds: Sequence[float]) -> list[float]:
    """For each of a worker's log speeds what ARIMA(2,2,1) predicted: fitted again and again to the last ones by two
    regressions. Source: Hannan and Rissanen, Recursive estimation of mixed autoregressive-moving average order (1982).
    """
    found, bends = list(speeds[:2]), [float(each) for each in np.diff(np.asarray(speeds), 2)]
    first = second = average = error = 0.0
    for number in range(2, len(speeds)):
        seen = number - 2  # of the second differences, which begin with the third speed
        if seen >= 4 * LONG_ORDER and seen % FITTED_EVERY == 0:
            first, second, average = _fitted(np.asarray(bends[max(seen - FITTED_TO, 0) : seen]))
        before = [bends[seen - age] if seen >= age else 0.0 for age in (1, 2)]
        expected = first * before[0] + second * before[1] + average * error
        found.append(2 * speeds[number - 1] - speeds[number - 2] + expected)
        error = bends[seen] - expected
    return found


def _fitted(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """The two weights of past values and that of the last error."""
    errors = np.zeros(len(values))
    past = np.column_stack([values[LONG_ORDER - age : len(values) - age] for age in range(1, LONG_ORDER + 1)])
    errors[LONG_ORDER:] = values[LONG_ORDER:] - past @ np.linalg.lstsq(past, values[LONG_ORDER:], rcond=None)[0]
    start = LONG_ORDER + 1
    inputs = np.column_stack([values[start - 1 : -1], values[start - 2 : -2], errors[start - 1 : -1]])
    first, second, average = np.linalg.lstsq(inputs, values[start:], rcond=None)[0]
    return float(first), float(second), float(np.clip(average, -MOST_ROOT, MOST_ROOT))


def hindsight(traces: Sequence[Sequence[Window]]) -> list[list[float]]:
    """Of each window from the fourth on what the regression would predict that knows its use, for each worker."""
    numbers, found = arx.BEGINNING, []
    for number in range(LAGS, len(traces[0])):
        predicted, samples = [], []
        for trace in traces:
            known = sample_of(tuple(trace[max(number - LOOKS_BACK, 0) : number]), None)
            later = sample_of(tuple(trace[number - LAGS + 1 : number + 1]), None)
            assert known is not None and later is not None, "these traces have their use"
            samples.append(Sample(known.average, (*known.inputs[:LAGS], *later.inputs[LAGS:])))
            predicted.append(known.average + arx.expected(numbers, samples[-1]))
        for trace, sample in zip(traces, samples, strict=True):
            numbers = arx.taught(numbers, sample, math.log(trace[number].speed) - sample.average)
        found.append(predicted)
    return found


def predictions(traces: Sequence[Sequence[Window]]) -> dict[str, list[list[float]]]:
    """By predictor, of each window from `judged_from` on, the log speed that was predicted for each worker."""
    found: dict[str, list[list[float]]] = {name: [] for name in (*LITERAL, *MODELS)}
    learned: dict[str, tuple[Learned, ...]] = dict.fromkeys(MODELS, ())
    series, averages = [Series()] * len(traces), [math.log(trace[0].speed) for trace in traces]
    by_arima = [arima([math.log(window.speed) for window in trace]) for trace in traces]
    for number in range(len(traces[0])):
        samples = [sample_of(each.windows, None) for each in series]
        if number >= judged_from(traces):
            found["last value"].append([math.log(trace[number - 1].speed) for trace in traces])
            found["EMA(0.2)"].append(list(averages))
            found["ARIMA(2,2,1)"].append([each[number] for each in by_arima])
            for name in MODELS:
                ahead = PREDICTORS[name].ahead
                assert ahead is not None
                known = learned[name][0] if learned[name] and learned[name][0].is_trusted(ahead.least_samples) else None
                found[name].append(
                    [
                        each.average + (0.0 if known is None else ahead.expected(known.numbers, each))
                        for each in samples
                        if each is not None
                    ]
                )
        newest = [trace[number] for trace in traces]
        for name in MODELS:
            lessons = [
                Lesson("g", RememberedWorker(series=before), window, Estimate(window.seconds, 0.0, 10))
                for before, window in zip(series, newest, strict=True)
            ]
            learned[name], _ = studied(PREDICTORS[name], learned[name], lessons, number)
        series = [each.followed_by(window, LOOKS_BACK) for each, window in zip(series, newest, strict=True)]
        averages = [
            KEEP * average + (1 - KEEP) * math.log(window.speed)
            for average, window in zip(averages, newest, strict=True)
        ]
    found[HINDSIGHT] = hindsight(traces)[judged_from(traces) - LAGS :]
    return found


def synthetic(kind: str, seed: int) -> list[list[Window]]:
    """Traces of one kind."""
    draw = random.Random(f"{kind} {seed}")
    return [trace_of(kind, draw) for _ in range(WORKERS)]


def scores(kind: str, traces: Sequence[Sequence[Window]]) -> list[Score]:
    """Of all predictors on these workers' traces."""
    truth = [
        [math.log(trace[number].speed) for trace in traces] for number in range(judged_from(traces), len(traces[0]))
    ]
    equal = fmean(max(BATCH / math.exp(speed) for speed in speeds) for speeds in truth)
    found = []
    for name, predicted in predictions(traces).items():
        pairs = [pair for now, then in zip(predicted, truth, strict=True) for pair in zip(now, then, strict=True)]
        error = math.sqrt(fmean((said - was) ** 2 for said, was in pairs))
        seconds = []
        for said, was in zip(predicted, truth, strict=True):
            shares = [math.exp(each) for each in said]
            batches = [len(traces) * BATCH * share / sum(shares) for share in shares]
            seconds.append(max(batch / math.exp(speed) for batch, speed in zip(batches, was, strict=True)))
        found.append(Score(kind, name, error, fmean(seconds) / equal))
    return found


def main(arguments: Sequence[str]) -> int:
    """Run all traces and print."""
    parser = argparse.ArgumentParser(description="Compare predictors of the next window's speed.")
    parser.add_argument("--seeds", type=int, default=3, help="sets of synthetic traces of each kind (3)")
    parser.add_argument(
        "--recorded", type=Path, default=RECORDED, help=f"what interference.py has written ({RECORDED.name})"
    )
    options = runner.options_of(parser).parse_args(arguments)
    if options.seeds < 1:
        parser.error("--seeds: must be at least 1")
    found = [score for kind, traces in recorded_traces(options.recorded).items() for score in scores(kind, traces)]
    found += [score for kind in KINDS for seed in range(options.seeds) for score in scores(kind, synthetic(kind, seed))]
    document = {"benchmark": "predictors", "machine": runner.machine(), "scores": [asdict(each) for each in found]}
    runner.report(document, tables_papers.predictors([document]), options)
    return 0


if __name__ == "__main__":
    runner.command(main)
