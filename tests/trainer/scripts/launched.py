"""A training script for torchrun: each worker takes so many milliseconds for a sample, notes its batches, and saves its
weights. With `--dies-at` the last rank is killed there, the first time.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn

import heterotrain
from heterotrain.workloads.digits import DigitsCNN, digits

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--milliseconds", default="0", help="by rank, divided by commas")
parser.add_argument("--epochs", type=int, default=13)
parser.add_argument("--dies-at", type=int)
options = parser.parse_args()
torch.set_default_dtype(torch.float64)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
seconds = [float(each) / 1000 for each in options.milliseconds.split(",")][rank]
died = options.out / "died"

checkpoints = None if options.dies_at is None else options.out / "checkpoints"
session = heterotrain.join(
    batch_size=96, epochs=options.epochs, seed=7, checkpoints=checkpoints, checkpoint_every_steps=10
)
torch.manual_seed(1)
model = DigitsCNN(8)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
criterion = nn.CrossEntropyLoss()
model, optimizer, batches = session.prepare(model, optimizer, digits())
with (options.out / f"rank-{rank}.batches").open("a", buffering=1) as notes:
    for images, labels in batches:
        time.sleep(seconds * len(images))
        notes.write(f"{session.step} {len(images)}\n")
        if session.step == options.dies_at and rank == world - 1 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        session.scale(criterion(model(images), labels)).backward()
        optimizer.step()
        optimizer.zero_grad()
torch.save(model.state_dict(), options.out / f"rank-{rank}.pt")
