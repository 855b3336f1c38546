"""A worker, and the server, of `asp_chaos.py`: a linear model in float64 that waits a little instead of computing."""

from __future__ import annotations

import argparse
import os
import random
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import heterotrain

SAMPLES, FEATURES, RATE, MOMENTUM = 400, 6, 0.01, 0.5


def dataset() -> TensorDataset:
    """Its samples."""
    drawn = torch.Generator().manual_seed(3)
    inputs = torch.randn(SAMPLES, FEATURES, generator=drawn, dtype=torch.float64)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    """What it trains, as before the first update."""
    torch.manual_seed(1)
    model = nn.Linear(FEATURES, 1, dtype=torch.float64)
    return model, torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)


def main() -> None:
    """Train, slowly until there is a file `go`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pace", type=float, required=True, help="seconds of an update, on average")
    parser.add_argument("--loaders", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    name = os.environ["HETEROTRAIN_UID"]
    pauses = random.Random(name)
    session = heterotrain.join()
    model, optimizer = model_and_optimizer()
    loader = DataLoader(dataset(), batch_size=8, num_workers=options.loaders)
    model, optimizer, batches = session.prepare(model, optimizer, loader)
    session.register(schedule=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999))
    for inputs, targets in batches:
        if not (options.out / "go").exists():
            time.sleep(2 * options.pace * pauses.random())
        session.scale((model(inputs) - targets).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.save(model.state_dict(), options.out / f"{name}.{'server' if session.leader else 'worker'}.pt")


if __name__ == "__main__":
    main()
