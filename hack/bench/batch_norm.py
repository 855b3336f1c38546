"""What small batches do to BatchNorm: the training loss of one model whose global batch is split in various ways.

One process computes the parts of each step one after the other, weighted as workers weight them, so that only the split
differs. Simulated workers, no times are measured.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from heterotrain.data.sampler import Position, Rules, epoch_order
from heterotrain.workloads.digits import digits

SPLITS = ((60,), (20, 20, 20), (28, 16, 16), (36, 12, 12), (44, 8, 8), (52, 4, 4), (54, 4, 2), (56, 2, 2))
LAST_STEPS = 50


def model(seed: int) -> nn.Module:
    """Four convolutions and a hidden layer, each with BatchNorm."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())

    torch.manual_seed(seed)
    hidden = (nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU())
    blocks = (block(1, 16, 1), block(16, 32, 2), block(32, 32, 1), block(32, 64, 2))
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *hidden, nn.Linear(64, 10))


def last_loss(split: Sequence[int], seed: int, steps: int) -> float:
    """The mean training loss of the last steps."""
    images, labels = digits().tensors
    net, rules, position = model(seed), Rules(len(images), last_step="Drop"), Position()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(steps):
        order = epoch_order(len(images), seed, position.epoch)
        step = order[position.cursor : position.cursor + sum(split)]
        total = 0.0
        for part in step.split(list(split)):
            loss = functional.cross_entropy(net(images[part]), labels[part]) * len(part) / len(step)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
        position = rules.advance(position, len(step), sum(split))
    return statistics.fmean(losses[-LAST_STEPS:])


def main(arguments: Sequence[str]) -> int:
    """Train and print."""
    parser = argparse.ArgumentParser(description="Train a model with BatchNorm on splits of one global batch.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for split in SPLITS:
        found = [last_loss(split, seed, options.steps) for seed in range(options.seeds)]
        spread = ", ".join(f"{each:.3f}" for each in found)
        print(f"{'+'.join(map(str, split)):>10}  {statistics.fmean(found):.4f}  ({spread})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
