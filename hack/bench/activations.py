"""What activations and data take by batch, beside OmniLearn's lines: how far they are from a line through two batches.

    .venv/bin/python hack/bench/activations.py --out hack/bench/results/papers/activations.json

Source: OmniLearn, section III-B2 and fig. 6, with its batches. Counted, not measured: the bytes of all tensors that the
forward pass keeps for the backward pass, without parameters, and of the samples. What a process takes beyond them
depends on allocators and is what `docs/memory.md` is about.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import runner
import tables_omnilearn
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.data import default_collate

from heterotrain.workloads.registry import build, default_data, load

MODELS = ("vgg11", "alexnet", "resnet18", "gpt")
BATCHES = (1, 32, 64, 128, 512, 1024)


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes by batch, in the order of `BATCHES`."""

    model: str
    activations: tuple[int, ...]
    data: tuple[int, ...]


def kept(model: str, width: int = 8) -> Kept:
    """What a model of this width keeps."""
    torch.manual_seed(0)
    data = load(default_data(model), samples=max(BATCHES))
    workload = build(model, data, width=width)
    inputs, targets = default_collate([data.dataset[index] for index in range(max(BATCHES))])
    parameters = {each.untyped_storage().data_ptr() for each in workload.model.parameters()}
    activations = []
    for batch in BATCHES:
        found: dict[int, int] = {}
        alive: list[torch.Tensor] = []  # so that no address is given away twice

        def keep(
            tensor: torch.Tensor, found: dict[int, int] = found, alive: list[torch.Tensor] = alive
        ) -> torch.Tensor:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
            return tensor

        own = inputs[:batch].clone()
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            workload.criterion(workload.model(own), targets[:batch])
        activations.append(
            sum(size for place, size in found.items() if place not in parameters | {own.untyped_storage().data_ptr()})
        )
    sample = inputs[0].nbytes + targets[0].nbytes
    return Kept(model, tuple(activations), tuple(batch * sample for batch in BATCHES))


def main(arguments: Sequence[str]) -> int:
    """Count for all models and print."""
    options = runner.options_of(argparse.ArgumentParser(description=__doc__.partition("\n")[0])).parse_args(arguments)
    document = {
        "benchmark": "activations",
        "batches": BATCHES,
        "models": [asdict(kept(model)) for model in MODELS],
    }
    runner.report(document, tables_omnilearn.activations([document]), options)
    return 0


if __name__ == "__main__":
    runner.command(main)
