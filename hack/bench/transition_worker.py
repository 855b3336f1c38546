"""A worker of transition.py: a perceptron of about 10 million parameters on random data.

With `--plain FOLDER` it is a script for torchrun instead, of DistributedDataParallel and with checkpoints. It notes
the time of each committed step, of rank 0 alone, and every worker's process, so that one can be killed.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import heterotrain


def with_library(model: nn.Module, optimizer: torch.optim.Optimizer, data: TensorDataset) -> None:
    """As a user's script."""
    session = heterotrain.join(seed=1)
    elastic, committing, batches = session.prepare(model, optimizer, data)
    for inputs, targets in batches:
        session.scale((elastic(inputs) - targets).square().mean()).backward()
        committing.step()
        committing.zero_grad()


def plain(model: nn.Module, optimizer: torch.optim.Optimizer, data: TensorDataset, folder: Path) -> None:
    """As a stock script, from its last checkpoint on."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    (folder / f"{rank}.pid").write_text(str(os.getpid()))
    torch.set_num_threads(1)
    parallel = DistributedDataParallel(model)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, seed=1)
    checkpoint = folder / "checkpoint.pt"
    step = 0
    if checkpoint.exists():
        kept = torch.load(checkpoint)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        step = kept["step"]
    steps_per_epoch = len(sampler) // options.batch
    with (folder / "steps.jsonl").open("a") as notes:
        while True:
            sampler.set_epoch(step // steps_per_epoch)
            for index, (inputs, targets) in enumerate(DataLoader(data, options.batch, sampler=sampler, drop_last=True)):
                if index < step % steps_per_epoch:
                    continue
                (parallel(inputs) - targets).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if rank == 0:
                    print(json.dumps({"start": start, "step": step, "time": time.time()}), file=notes, flush=True)
                if rank == 0 and step % options.every == 0:
                    partial = folder / "checkpoint.partial"
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state, partial)
                    partial.replace(checkpoint)


parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=1800)
parser.add_argument("--plain", type=Path, metavar="FOLDER")
parser.add_argument("--batch", type=int, default=4, help="samples of a worker in a step, of a plain script")
parser.add_argument("--every", type=int, default=15, help="steps between checkpoints, of a plain script")
options = parser.parse_args()
torch.manual_seed(1)
width = options.width
layers = nn.Sequential(
    nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
)
sgd = torch.optim.SGD(layers.parameters(), lr=1e-3, momentum=0.9)
# All steps of 12, 24, 32 samples are whole then, so that samples can be counted by step.
samples = TensorDataset(torch.randn(4032, width), torch.randn(4032, width))
if options.plain is None:
    with_library(layers, sgd, samples)
else:
    plain(layers, sgd, samples, options.plain)
