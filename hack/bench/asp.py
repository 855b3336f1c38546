"""What asynchronous training costs in accuracy, in virtual time, by how batches are chosen and rates follow them.

    .venv/bin/python hack/bench/asp.py --out hack/bench/results/asp/accuracy.json

Source: OmniLearn, tables II, IV and VI, figs 2, 5 and 12; LB-BSP, figs 6b and 7. The gradients are real, those of the
stale versions that the library's own parameter server rules give to simulated workers (`asp_cluster.py`), whose times
follow laws that are fitted to recorded ones (`omnilearn_setting.py`). Runs repeat to the last bit.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

import kinds
import omnilearn_setting
import runner
import tables_asp
import torch
from asp_cluster import GRADIENTS, MODEL, Adjust, AsynchronousJob, Link, OwnSeconds, synchronous
from omnilearn_accuracy import FOLLOWERS, TEST_SAMPLES, accuracy, whole
from tables_asp import (
    ARMS,
    BSP,
    CHANGING,
    MODELS_PUSHED,
    SSP,
    STATIC,
    UNIFORM,
    UNIFORM_PUSHED,
    UNIFORM_SCALED,
    UNSCALED,
    WORKER_BATCH,
)

from heterotrain.asynchronous.service import Bound
from heterotrain.training.rate_scaling import LINEAR, RateScaling
from heterotrain.workloads.digits import digits
from heterotrain.workloads.registry import build, load
from heterotrain.workloads.synthetic import SyntheticImages, SyntheticTokens
from heterotrain_operator.core.batching.policies.papers import propose
from heterotrain_operator.core.batching.policy import Seat
from heterotrain_operator.core.model import Group, Job
from heterotrain_operator.core.remembered.batching import Batching

BATCH = 32
"""Of each worker where batches are equal. Source: OmniLearn, section IV-A."""

BOUNDS = (4, 96)
PAPER_CORES: Mapping[int, tuple[int, ...]] = {
    1: (10, 10, 10, 10),
    2: (8, 8, 8, 16),
    4: (10, 10, 4, 16),
    8: (4, 4, 4, 28),
}
"""Of the four workers by level; the server has eight. Source: OmniLearn, table I, rows ASP."""

ORDER = (1, 2, 4, 8, 8, 4, 2, 1)
NOISE = kinds.AR1(0.5, 0.05)
LINK_SHARE, APPLY_SHARE = 0.05, 0.01
"""Of an equal batch's own seconds at level 1, that parameters or gradients take on their way, and the server for one
update."""

SLOW_STALENESS = 5
NARROW = 8


@dataclass(frozen=True, slots=True)
class Model:
    """A workload of this width, trained on so many samples for so many epochs; the `law` is this workload's."""

    law: str
    width: int
    epochs: int
    samples: int | None = None
    likeliest: int = 1


MODELS: Mapping[str, Model] = {
    "cnn": Model("alexnet", 16, 12),
    "resnet18": Model("resnet18", NARROW, 6, 512),
    "gpt": Model("gpt", 32, 10, 640, FOLLOWERS),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One job: accuracy after the last epoch, virtual `seconds` in all, and both after each of the `epochs`. `rates`
    are the workers' updates over their mean; `staleness` is the mean in versions, `stalest` the greatest."""

    model: str
    arm: str
    place: str
    seed: int
    accuracy: float
    seconds: float
    epochs: list[tuple[float, float]]
    updates: int
    rates: list[float]
    staleness: float
    stalest: int
    adjustments: int
    batches: list[int]
    discarded: int


def data_of(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs and targets to train on and to test with."""
    own = MODELS[name]
    source = {"cnn": "digits", "resnet18": "images", "gpt": "tokens"}[name]
    test = {
        "cnn": lambda: digits(train=False),
        "resnet18": lambda: SyntheticImages(TEST_SAMPLES, train=False),
        "gpt": lambda: SyntheticTokens(TEST_SAMPLES, train=False),
    }[name]()
    return *whole(load(source, samples=own.samples).dataset), *whole(test)


def cores_at(level: int) -> list[float]:
    """Of each worker."""
    return [each / omnilearn_setting.PAPER_CORES_PER_CORE for each in PAPER_CORES[level]]


def split(cores: Sequence[float]) -> list[int]:
    """The samples of equal batches in proportion to cores, within the bounds. Source: OmniLearn, eq. 4a."""
    whole_batch = BATCH * len(cores)
    return [min(max(round(whole_batch * each / sum(cores)), BOUNDS[0]), BOUNDS[1]) for each in cores]


def omnilearn(arm: str) -> Adjust:
    """OmniLearn's Algorithm 2: proportional control of own seconds, once an epoch, without a global batch."""
    job = Job(
        "asp",
        tuple(Group(f"w{rank}", 1, batch_min=BOUNDS[0], batch_max=BOUNDS[1]) for rank in range(4)),
        4 * BATCH,
        policy="PapersProportional",
        fixed_global_batch=False,
        dead_band=0.10,
    )

    def adjust(smoothed: Sequence[float | None], batches: Sequence[int], _: int) -> Sequence[int]:
        if arm in (UNIFORM, UNIFORM_SCALED, UNIFORM_PUSHED, STATIC) or any(each is None for each in smoothed):
            return batches
        seats = [
            Seat(group.name, group, batch, BOUNDS, smoothed_seconds=seconds)
            for group, batch, seconds in zip(job.groups, batches, smoothed, strict=True)
        ]
        return propose(job, seats, Batching()).batches or batches

    return adjust


def scaling_of(arm: str) -> RateScaling:
    """How rates follow batches: linearly by the global batch, as in OmniLearn's section IV-C, if at all."""
    if arm in (UNSCALED, UNIFORM, UNIFORM_PUSHED, BSP):
        return RateScaling()
    return RateScaling(LINEAR, BATCH if arm == WORKER_BATCH else 4 * BATCH)


def train(key: runner.Key) -> Outcome:
    """Train one model."""
    name, arm, place, seed = key
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    own = MODELS[name]
    inputs, targets, *test = data_of(name)
    source = {"cnn": "digits", "resnet18": "images", "gpt": "tokens"}[name]
    workload = build(name, load(source, samples=own.samples), width=own.width)
    law = omnilearn_setting.law(own.law)
    levels = ORDER if place == CHANGING else (int(place.removeprefix("HL")),)
    by_epoch = [cores_at(levels[epoch * len(levels) // own.epochs]) for epoch in range(own.epochs)]
    equal = law.at(cores_at(1)[0]).seconds(BATCH)
    link = Link(LINK_SHARE * equal, APPLY_SHARE * equal)
    seconds = OwnSeconds([[law.at(each) for each in epoch] for epoch in by_epoch], NOISE, seed)
    batches = split(by_epoch[0]) if arm == STATIC else [BATCH] * 4
    likeliest = own.likeliest

    def measure(model: torch.nn.Module) -> float:
        return accuracy(model, test[0], test[1], likeliest)

    if arm == BSP:
        seen = synchronous(
            workload,
            inputs,
            targets,
            seed=seed,
            epochs=own.epochs,
            batches=batches,
            seconds=seconds,
            link=link,
            measure=measure,
        )
    else:
        seen = AsynchronousJob(
            workload,
            inputs,
            targets,
            seed=seed,
            epochs=own.epochs,
            batches=batches,
            seconds=seconds,
            link=link,
            adjust=omnilearn(arm),
            measure=measure,
            bound=Bound(SLOW_STALENESS if arm == SSP else None),
            push=MODEL if arm in (MODELS_PUSHED, UNIFORM_PUSHED) else GRADIENTS,
            scaling=scaling_of(arm),
        ).run()
    mean = fmean(seen.updates)
    return Outcome(
        *key,
        seen.epochs[-1][1],
        round(seen.epochs[-1][0], 3),
        [(round(when, 3), found) for when, found in seen.epochs],
        sum(seen.updates),
        [round(each / mean, 4) for each in seen.updates],
        round(fmean(seen.staleness), 3),
        max(seen.staleness),
        sum(before != after for before, after in zip(seen.batches, seen.batches[1:], strict=False)),
        list(seen.batches[-1]),
        seen.discarded,
    )


SOURCES = (
    "hack/bench/asp.py",
    "hack/bench/asp_cluster.py",
    "trainer-image/heterotrain/asynchronous",
    "trainer-image/heterotrain/workloads",
    "operator/heterotrain_operator/core/batching/policies/papers.py",
)
"""What decides their figures."""


def main(arguments: Sequence[str]) -> int:
    """Train all models and print."""
    parser = argparse.ArgumentParser(description="Compare asynchronous training by how batches and rates are chosen.")
    parser.add_argument("--seeds", type=int, default=3, help="how many (3)")
    parser.add_argument("--model", action="append", choices=MODELS, help="again for several (all)")
    parser.add_argument("--arm", action="append", choices=ARMS, help="again for several (all)")
    options = runner.options_of(parser, pool=True).parse_args(arguments)
    if min(options.seeds, options.processes) < 1:
        parser.error("--seeds, --processes: must be at least 1")
    keys = [
        (model, arm, place, seed)
        for model in options.model or MODELS
        for arm in options.arm or ARMS
        for place in tables_asp.PLACES[arm]
        for seed in range(options.seeds)
    ]
    document = {
        "benchmark": "asp",
        "simulated": "the workers' times; the gradients are real",
        "batch": BATCH,
        "models": {name: asdict(model) for name, model in MODELS.items()},
        "machine": runner.machine(),
        "outcomes": [asdict(each) for each in runner.play(train, Outcome, keys, options, SOURCES)],
    }
    runner.report(document, tables_asp.accuracy([document]), options)
    return 0


if __name__ == "__main__":
    runner.command(main)
