"""A session alone in the test's own process, with a little data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import heterotrain

DATA = TensorDataset(torch.arange(24.0).reshape(12, 2) / 24, torch.ones(12, 1))


def sgd(*modules: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD([each for module in modules for each in module.parameters()], lr=0.1)


def prepared(
    model: Any = None, optimizer: Any = None, data: Any = DATA, *, epochs: int = 2, **options: Any
) -> tuple[heterotrain.Session, Any, Any, Any]:
    session = heterotrain.join(batch_size=4, epochs=epochs)
    model = nn.Linear(2, 1) if model is None else model
    return session, *session.prepare(model, optimizer or sgd(model), data, **options)


def train(session: heterotrain.Session, model: Any, optimizer: Any, batches: Any) -> Iterator[int]:
    for inputs, targets in batches:
        session.scale((model(inputs) - targets).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield session.step


def run(session: heterotrain.Session, model: Any, optimizer: Any, batches: Any) -> None:
    for _ in train(session, model, optimizer, batches):
        pass
