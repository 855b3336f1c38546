"""What weighting gradients by batch size is worth: accuracy on digits with it and with a plain mean over workers.

    .venv/bin/python hack/bench/weighting.py --out out/bench/weighting.json

Source: OmniLearn, section IV-B and table V. Four workers have batches in proportion to table I's cores, and each trains
on samples of its own. Split at random, all workers have the same kinds of digits, and the plain mean only adds noise.
Split by label, small workers have digits that others lack, and the plain mean counts them as much as large workers'.

The training is real, the workers are simulated: one process computes every worker's mean loss on its own batch and sums
them with the weights of the two rules, which is what workers' gradients would sum to. That the library's gradients are
the weighted ones is tested with real workers elsewhere (tests/trainer).
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import runner
import tables_measured
import torch
from bsp_setting import PAPER_CORES
from torch.nn import functional

from heterotrain.workloads.digits import DigitsCNN, digits

WEIGHTED, PLAIN = "weighted", "plain"
RULES = (WEIGHTED, PLAIN)
SPLITS = ("random", "by label")
LEVELS = tuple(level for level in PAPER_CORES if level > 1)
MOMENTUM = 0.9


@dataclass(frozen=True, slots=True)
class Outcome:
    """Accuracy on the test set after each epoch."""

    level: int
    split: str
    rule: str
    seed: int
    accuracies: tuple[float, ...]


def batches(level: int, global_batch: int) -> tuple[int, ...]:
    """Samples of each worker, in proportion to its cores."""
    cores = PAPER_CORES[level]
    sizes = [global_batch * each // sum(cores) for each in cores]
    return (*sizes[:-1], global_batch - sum(sizes[:-1]))


def weights(sizes: Sequence[int], rule: str) -> tuple[float, ...]:
    """Of each worker's mean gradient. Source: OmniLearn, section IV-B (`b_k / sum(b)`), and the mean beside it."""
    if rule == WEIGHTED:
        return tuple(size / sum(sizes) for size in sizes)
    return (1 / len(sizes),) * len(sizes)


def parts(labels: torch.Tensor, sizes: Sequence[int], split: str, generator: torch.Generator) -> list[torch.Tensor]:
    """The samples of each worker, as many as it trains on in an epoch of all."""
    order = torch.randperm(len(labels), generator=generator)
    if split == "by label":
        order = order[torch.sort(labels[order], stable=True).indices]
    steps = len(labels) // sum(sizes)
    return list(torch.split(order[: steps * sum(sizes)], [steps * size for size in sizes]))


def train(key: runner.Key) -> Outcome:
    """Train one model; both rules see the same samples at the same steps, from the same weights."""
    level, split, rule, seed, epochs, global_batch, width, rate = key
    torch.set_num_threads(1)
    images, labels = digits().tensors
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = DigitsCNN(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM)
    sizes = batches(level, global_batch)
    own = parts(labels, sizes, split, generator)
    accuracies = []
    for _ in range(epochs):
        shuffled = [part[torch.randperm(len(part), generator=generator)] for part in own]
        for step in zip(*(part.split(size) for part, size in zip(shuffled, sizes, strict=True)), strict=True):
            losses = [functional.cross_entropy(model(images[index]), labels[index]) for index in step]
            optimizer.zero_grad()
            torch.stack(
                [loss * weight for loss, weight in zip(losses, weights(sizes, rule), strict=True)]
            ).sum().backward()
            optimizer.step()
        accuracies.append(accuracy(model))
    return Outcome(level, split, rule, seed, tuple(accuracies))


def accuracy(model: DigitsCNN) -> float:
    """On the test set."""
    images, labels = digits(train=False).tensors
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description="Compare weighted with plain averaging of gradients.")
    parser.add_argument("--seeds", type=int, default=3, help="how many (3)")
    parser.add_argument("--epochs", type=int, default=10, help="of each run (10)")
    parser.add_argument("--global-batch", type=int, default=96, help="samples of a step (96)")
    parser.add_argument("--width", type=int, default=16, help="of the model (16)")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate (0.02)")
    options = runner.options_of(parser, pool=True).parse_args(arguments)
    if min(options.seeds, options.epochs, options.width) < 1 or options.global_batch < max(
        map(sum, PAPER_CORES.values())
    ):
        parser.error("--global-batch must be at least 48, all other numbers 1")
    return options


SOURCES = ("hack/bench/weighting.py", "trainer-image/heterotrain/workloads")


def main(arguments: Sequence[str]) -> int:
    """Train all models and print the differences of their accuracies."""
    options = parse(arguments)
    places = itertools.product(LEVELS, SPLITS, RULES, range(options.seeds))
    keys = [(*place, options.epochs, options.global_batch, options.width, options.lr) for place in places]
    document = {
        "benchmark": "weighting",
        "simulated_workers": len(next(iter(PAPER_CORES.values()))),
        "model": f"DigitsCNN of width {options.width}",
        "epochs": options.epochs,
        "global_batch": options.global_batch,
        "learning_rate": options.lr,
        "machine": runner.machine(),
        "outcomes": [asdict(each) for each in runner.play(train, Outcome, keys, options, SOURCES)],
    }
    runner.report(document, tables_measured.weighting([document]), options)
    return 0


if __name__ == "__main__":
    runner.command(main)
