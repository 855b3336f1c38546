"""How well each predictor foresees the next window's speed, and what that is worth where batches follow it.

Synthetic traces of windows, each with its worker's use of CPU and memory: independent noise, interference that fades,
interference that comes and goes, and a slow wave. The root of the mean squared error is of log speeds. Iteration times
are those of batches in proportion to what was predicted (LB-BSP, Algorithm 1) over those of equal batches, as in its
table 3, which measured 0.58, 0.48, 0.52 and 0.42 for its last value, EMA, ARIMA and NARX.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

import runner
import tables_papers

from heterotrain_operator.core.batching.looking_ahead import Lesson, studied
from heterotrain_operator.core.prediction import PREDICTORS
from heterotrain_operator.core.prediction.learned import KEEP, LOOKS_BACK, Learned, sample_of
from heterotrain_operator.core.prediction.series import Series, Window
from heterotrain_operator.core.prediction.step_time import Estimate
from heterotrain_operator.core.remembered_worker import RememberedWorker

WORKERS, WINDOWS, BATCH = 8, 1600, 32
NOISE, SPREAD = 0.05, 0.2
JUDGED_FROM = 120
"""Windows of each worker after which errors count: all models are trusted then."""

LITERAL = ("last value", "EMA(0.2)")
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


def predictions(kind: str, traces: Sequence[Sequence[Window]]) -> dict[str, list[list[float]]]:
    """By predictor, of each window from `JUDGED_FROM` on, the log speed that was predicted for each worker."""
    found: dict[str, list[list[float]]] = {name: [] for name in (*LITERAL, *MODELS)}
    learned: dict[str, tuple[Learned, ...]] = dict.fromkeys(MODELS, ())
    series, averages = [Series()] * len(traces), [math.log(trace[0].speed) for trace in traces]
    for number in range(WINDOWS):
        samples = [sample_of(each.windows, None) for each in series]
        if number >= JUDGED_FROM:
            found["last value"].append([math.log(trace[number - 1].speed) for trace in traces])
            found["EMA(0.2)"].append(list(averages))
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
    return found


def scores(kind: str, seed: int) -> list[Score]:
    """Of all predictors on traces of one kind."""
    draw = random.Random(f"{kind} {seed}")
    traces = [trace_of(kind, draw) for _ in range(WORKERS)]
    truth = [[math.log(trace[number].speed) for trace in traces] for number in range(JUDGED_FROM, WINDOWS)]
    equal = fmean(max(BATCH / math.exp(speed) for speed in speeds) for speeds in truth)
    found = []
    for name, predicted in predictions(kind, traces).items():
        pairs = [pair for now, then in zip(predicted, truth, strict=True) for pair in zip(now, then, strict=True)]
        error = math.sqrt(fmean((said - was) ** 2 for said, was in pairs))
        seconds = []
        for said, was in zip(predicted, truth, strict=True):
            shares = [math.exp(each) for each in said]
            batches = [WORKERS * BATCH * share / sum(shares) for share in shares]
            seconds.append(max(batch / math.exp(speed) for batch, speed in zip(batches, was, strict=True)))
        found.append(Score(kind, name, error, fmean(seconds) / equal))
    return found


def main(arguments: Sequence[str]) -> int:
    """Run all traces and print."""
    parser = argparse.ArgumentParser(description="Compare predictors of the next window's speed on synthetic traces.")
    parser.add_argument("--seeds", type=int, default=3, help="sets of traces of each kind (3)")
    options = runner.options_of(parser).parse_args(arguments)
    if options.seeds < 1:
        parser.error("--seeds: must be at least 1")
    found = [score for kind in KINDS for seed in range(options.seeds) for score in scores(kind, seed)]
    document = {"benchmark": "predictors", "machine": runner.machine(), "scores": [asdict(each) for each in found]}
    runner.report(document, tables_papers.predictors([document]), options)
    return 0


if __name__ == "__main__":
    runner.command(main)
