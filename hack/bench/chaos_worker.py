"""A worker of chaos.py: a small perceptron in float64, with a schedule of its learning rate and an average of its
weights. It notes each sample that it trains on, and what it has open."""

from __future__ import annotations

import argparse
import os
import random
import threading
import time
from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

import heterotrain

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True, help="where notes and weights go; with a file `go` there, fast")
parser.add_argument("--steps", type=int, default=0, help="of a run alone")
parser.add_argument("--batch", type=int, default=1, help="of a run alone")
parser.add_argument("--pace", type=float, default=0.0, help="seconds of a step without the file `go`, on average")
parser.add_argument("--reserve", type=int, default=0, help="after so many steps go slowly without the file `go`")
parser.add_argument("--loaders", type=int, default=0, help="processes that load samples")
options = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
SAMPLES, FEATURES, CLASSES = 1000, 12, 4
EVERY = 10
"""Steps between two notes of what is open."""

name = os.environ.get("HETEROTRAIN_UID", "alone")
torch.manual_seed(1)
inputs, labels = torch.randn(SAMPLES, FEATURES), torch.randint(CLASSES, (SAMPLES,))


class Numbered(Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """Random samples, each with its index."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return inputs[index], labels[index], index


def note_samples(indices: torch.Tensor) -> None:
    """The samples of this process in the present step."""
    if len(indices) and not session.warming:
        samples.write(f"{session.step} {','.join(map(str, indices.tolist()))}\n")


def note_what_is_open() -> None:
    """Descriptors and threads of this process."""
    open_files.write(f"{session.step} {len(list(Path('/proc/self/fd').iterdir()))} {threading.active_count()}\n")


def step_slowly() -> None:
    """Take about as long as is asked for, unequally, so that faults meet workers in all parts of a step."""
    if (options.out / "go").exists():
        return
    time.sleep(0.5 if session.step >= options.reserve > 0 else 2 * options.pace * pauses.random())


session = heterotrain.join(batch_size=options.batch, steps=options.steps or None, seed=7)
samples = (options.out / f"{name}.samples").open("a", buffering=1)
open_files = (options.out / f"{name}.open").open("a", buffering=1)
pauses = random.Random(name)
model: nn.Module = nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, CLASSES))
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=40, gamma=0.9)
criterion = nn.CrossEntropyLoss()
loader = DataLoader(Numbered(), batch_size=options.batch, num_workers=options.loaders)
model, optimizer, batches = session.prepare(model, optimizer, loader, loss="mean")
session.register(schedule=schedule, average=average)
session.after_step(lambda: average.update_parameters(model))
for features, classes, indices in batches:
    note_samples(indices)
    if options.pace and not session.warming:
        step_slowly()
    if session.step % EVERY == 0 and not session.warming:
        note_what_is_open()
    session.scale(criterion(model(features), classes)).backward()
    optimizer.step()
    optimizer.zero_grad()
averaged = {f"average.{key}": value for key, value in average.module.state_dict().items()}
torch.save({**model.state_dict(), **averaged}, options.out / f"{name}.pt")
