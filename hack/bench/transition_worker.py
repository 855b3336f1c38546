"""A worker of transition.py: a perceptron of about 10 million parameters on random data."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

import heterotrain

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=1800)
options = parser.parse_args()

torch.manual_seed(1)
width = options.width
model: nn.Module = nn.Sequential(
    nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
# All steps of 12, 24, 32 samples are whole then, so that samples can be counted by step.
data = TensorDataset(torch.randn(4032, width), torch.randn(4032, width))
session = heterotrain.join(seed=1)
model, optimizer, batches = session.prepare(model, optimizer, data)
for inputs, targets in batches:
    session.scale((model(inputs) - targets).square().mean()).backward()
    optimizer.step()
    optimizer.zero_grad()
