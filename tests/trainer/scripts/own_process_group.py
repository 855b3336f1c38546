"""A script that trains, and sums numbers of its own over torch.distributed's default process group.

usage: own_process_group.py WHEN --out FOLDER

WHEN `before` the loop, or `within` it, the script makes that group.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import heterotrain

WORKERS = 2

parser = argparse.ArgumentParser()
parser.add_argument("when", choices=["before", "within"])
parser.add_argument("--out", type=Path, required=True)
options = parser.parse_args()
name = os.environ["HETEROTRAIN_WORKER"]
rank = int(name.rpartition("-")[2])


def meet() -> None:
    assert not dist.is_initialized()
    dist.init_process_group("gloo", init_method=f"file://{options.out}/own-group", rank=rank, world_size=WORKERS)


session = heterotrain.join()
model = nn.Linear(4, 1)
data = TensorDataset(torch.arange(96.0).reshape(24, 4) / 96, torch.ones(24, 1))
model, optimizer, batches = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
if options.when == "before":
    meet()
sums = []
for inputs, targets in batches:
    if options.when == "within" and not sums:
        meet()
    own = torch.tensor([float(rank + 1)])
    dist.all_reduce(own)
    sums.append(own)
    session.scale(nn.functional.mse_loss(model(inputs), targets)).backward()
    optimizer.step()
    optimizer.zero_grad()
assert dist.get_world_size() == WORKERS
dist.destroy_process_group()
torch.save(dict(model.state_dict()) | {"sums": torch.cat(sums)}, options.out / f"{name}.pt")
