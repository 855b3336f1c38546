"""What unequal batches cost in accuracy, with gradients weighted by them and with a plain mean over workers.

    .venv/bin/python hack/bench/omnilearn_accuracy.py --out hack/bench/results/papers/omnilearn-accuracy.json

Source: OmniLearn, tables III and V. Batches are in proportion to the cores of a level. As in jobs of the library, a
step has the next samples of a shuffled epoch, whatever the split, and each worker takes its slice of them. The training
is real and the workers are simulated: one process computes every worker's mean loss on its slice and sums them, with
the library's weights or alike, which is what workers' gradients would sum to. Runs repeat to the last bit.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import runner
import tables_omnilearn
import torch
from bsp_setting import PAPER_CORES
from torch.utils.data import Dataset, default_collate
from weighting import PLAIN, RULES, batches

from heterotrain.data.bijection import keyed_order
from heterotrain.gradients.counting import sample_weight
from heterotrain.workloads.digits import digits
from heterotrain.workloads.registry import build, load
from heterotrain.workloads.synthetic import SyntheticTokens

GLOBAL_BATCH = 96
FOLLOWERS = 4
"""Of each token; a model that has learnt all has these as the likeliest ones."""


@dataclass(frozen=True, slots=True)
class Model:
    """A workload of this width, trained on so many samples for so many epochs."""

    width: int
    epochs: int
    samples: int | None = None
    likeliest: int = 1
    """The answer counts if it is among so many that the model finds likeliest."""


MODELS: Mapping[str, Model] = {"cnn": Model(16, 20), "gpt": Model(32, 8, 960, FOLLOWERS)}
TEST_SAMPLES = 256


@dataclass(frozen=True, slots=True)
class Outcome:
    """Accuracy on the test set after the last epoch, and half-way there."""

    model: str
    level: int
    rule: str
    seed: int
    accuracy: float
    half_way: float


def whole(dataset: Dataset[object]) -> tuple[torch.Tensor, torch.Tensor]:
    """All samples."""
    inputs, targets = default_collate([dataset[index] for index in range(len(dataset))])  # type: ignore[arg-type]
    return inputs, targets


def train(key: runner.Key) -> Outcome:
    """Train one model; all levels and rules see the same samples at the same steps, from the same weights."""
    name, level, rule, seed = key
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    own = MODELS[name]
    data = load("digits" if name == "cnn" else "tokens", samples=own.samples)
    test = whole(digits(train=False) if name == "cnn" else SyntheticTokens(TEST_SAMPLES, train=False))
    inputs, targets = whole(data.dataset)
    workload = build(name, data, width=own.width)
    sizes = batches(level, GLOBAL_BATCH)
    accuracies = []
    for epoch in range(own.epochs):
        order = keyed_order(len(inputs), seed, epoch, 0, len(inputs))
        for step in range(len(order) // GLOBAL_BATCH):
            taken = order[step * GLOBAL_BATCH : (step + 1) * GLOBAL_BATCH].split(sizes)
            workload.optimizer.zero_grad()
            for part in taken:
                weight = 1 / len(sizes) if rule == PLAIN else sample_weight(len(part), GLOBAL_BATCH, "mean")
                (weight * workload.criterion(workload.model(inputs[part]), targets[part])).backward()
            workload.optimizer.step()
        accuracies.append(accuracy(workload.model, *test, own.likeliest))
    return Outcome(name, level, rule, seed, accuracies[-1], accuracies[len(accuracies) // 2 - 1])


def accuracy(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor, likeliest: int) -> float:
    """The part of the answers that are among the `likeliest` ones."""
    with torch.no_grad():
        found = model(inputs).topk(likeliest, dim=-1).indices
    return (found == targets.unsqueeze(-1)).any(-1).float().mean().item()


SOURCES = ("hack/bench/omnilearn_accuracy.py", "hack/bench/weighting.py", "trainer-image/heterotrain/workloads")
"""What decides their figures."""


def main(arguments: Sequence[str]) -> int:
    """Train all models and print."""
    parser = argparse.ArgumentParser(description="Compare accuracies under equal and unequal batches.")
    parser.add_argument("--seeds", type=int, default=3, help="how many (3)")
    parser.add_argument("--model", action="append", choices=MODELS, help="again for several (all)")
    options = runner.options_of(parser, pool=True).parse_args(arguments)
    if min(options.seeds, options.processes) < 1:
        parser.error("--seeds, --processes: must be at least 1")
    # At level 1 all weights are alike.
    places = itertools.product(options.model or MODELS, PAPER_CORES, RULES, range(options.seeds))
    keys = [key for key in places if key[1] > 1 or key[2] != PLAIN]
    document = {
        "benchmark": "omnilearn_accuracy",
        "global_batch": GLOBAL_BATCH,
        "models": {name: asdict(model) for name, model in MODELS.items()},
        "machine": runner.machine(),
        "outcomes": [asdict(each) for each in runner.play(train, Outcome, keys, options, SOURCES)],
    }
    runner.report(document, tables_omnilearn.accuracy([document]), options)
    return 0


if __name__ == "__main__":
    runner.command(main)
