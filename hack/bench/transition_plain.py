"""The model of transition_worker.py as a script for torchrun: DistributedDataParallel, checkpoints, no HeteroTrain.

It notes the time of each committed step, of rank 0 alone, and every worker's process, so that one can be killed.
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

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--every", type=int, required=True, help="steps between checkpoints")
parser.add_argument("--width", type=int, default=1800)
options = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
(options.folder / f"{rank}.pid").write_text(str(os.getpid()))
torch.set_num_threads(1)
torch.manual_seed(1)
width = options.width
layers = nn.Sequential(
    nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
)
model = DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
data = TensorDataset(torch.randn(4032, width), torch.randn(4032, width))
sampler = DistributedSampler(data, seed=1)
checkpoint = options.folder / "checkpoint.pt"
step = 0
if checkpoint.exists():
    kept = torch.load(checkpoint)
    layers.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    step = kept["step"]
steps_per_epoch = len(sampler) // options.batch
with (options.folder / "steps.jsonl").open("a") as notes:
    while True:
        sampler.set_epoch(step // steps_per_epoch)
        for index, (inputs, targets) in enumerate(DataLoader(data, options.batch, sampler=sampler, drop_last=True)):
            if index < step % steps_per_epoch:
                continue
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if rank == 0:
                print(json.dumps({"start": start, "step": step, "time": time.time()}), file=notes, flush=True)
            if rank == 0 and step % options.every == 0:
                partial = options.folder / "checkpoint.partial"
                torch.save({"model": layers.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, partial)
                partial.replace(checkpoint)
