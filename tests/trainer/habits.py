"""Training loops with habits that scripts have, each as what it computes and what it does by hand in its loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset, Subset

from heterotrain.sampler import epoch_order
from heterotrain.workloads.digits import digits

SAMPLES, BATCH, EPOCHS, SEED = 148, 24, 6, 7
CLIP_NORM = 0.5
KINDS = ("losses", "modules", "rates", "lacking", "average", "tied")

Losses = Callable[[torch.Tensor, torch.Tensor], Iterator[torch.Tensor]]


@dataclass
class Habit:
    """`losses` yields one loss for each backward pass; `by_hand` is called in the loop, before the optimizer's step."""

    modules: list[nn.Module]
    optimizer: torch.optim.Optimizer
    losses: Losses
    passes: int = 1
    by_hand: Callable[[Sequence[dict[str, Any]], int], None] = lambda _groups, _step: None
    average: AveragedModel | None = None
    dataset: Dataset[Any] = field(default_factory=lambda: Subset(digits(), range(SAMPLES)))

    def weights(self) -> dict[str, torch.Tensor]:
        """All parameters, by place and name, and their moving averages."""
        modules = [*self.modules, *([self.average] if self.average else [])]
        return {
            f"{place}.{name}": value.detach()
            for place, module in enumerate(modules)
            for name, value in module.state_dict().items()
        }


class Temperature(nn.Module):
    """A criterion with a learned parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.logarithm = nn.Parameter(torch.zeros(()))

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits * self.logarithm.exp(), labels)


class Tied(nn.Module):
    """An autoencoder whose decoder is its encoder, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 64) / 8)
        self.out = nn.Linear(16, 10)
        self.decoder = nn.Linear(16, 64, bias=False)
        self.decoder.weight = nn.Parameter(torch.randn(64, 16) / 8)
        self.encoder = nn.Linear(64, 16, bias=False)
        self.encoder.weight = self.weight


def _backbone() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.GELU(), nn.Linear(24, 10))


def habit(kind: str) -> Habit:
    """Always with the same first weights, in float64."""
    torch.manual_seed(1)
    model = _backbone().double()

    def cross_entropy(inputs: torch.Tensor, labels: torch.Tensor) -> Iterator[torch.Tensor]:
        yield functional.cross_entropy(model(inputs.double()), labels)

    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if kind == "losses":

        def two_losses(inputs: torch.Tensor, labels: torch.Tensor) -> Iterator[torch.Tensor]:
            logits = model(inputs.double())
            loss = functional.cross_entropy(logits, labels)
            yield loss
            yield logits.square().mean() / 10 + loss * 0

        return Habit([model], sgd, two_losses, passes=2)
    if kind == "modules":
        criterion = Temperature().double()

        def learned(inputs: torch.Tensor, labels: torch.Tensor) -> Iterator[torch.Tensor]:
            yield criterion(model(inputs.double()), labels)

        both = [*model.parameters(), *criterion.parameters()]
        return Habit([model, criterion], torch.optim.Adam(both, lr=0.01), learned)
    if kind == "rates":
        adam = torch.optim.AdamW(
            [{"params": [*model[1].parameters()]}, {"params": [*model[3].parameters()], "weight_decay": 0.2}], lr=0.01
        )

        def cosine(groups: Sequence[dict[str, Any]], step: int) -> None:
            for group in groups:
                group["lr"] = 0.01 * (1 + math.cos(step / 10)) / 2
            groups[1]["weight_decay"] = 0.2 / (1 + step)
            groups[0]["betas"] = (0.9 - 0.01 * (step % 3), 0.99)

        return Habit([model], adam, cross_entropy, by_hand=cosine)
    if kind == "lacking":
        model.append(nn.Linear(10, 10).double())
        kept = torch.optim.SGD([*model[1].parameters(), *model[3].parameters()], lr=0.1, momentum=0.9)
        return Habit([model], kept, cross_entropy)
    if kind == "average":
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        return Habit([model], sgd, cross_entropy, average=average)
    tied = Tied().double()

    def reconstruction(inputs: torch.Tensor, labels: torch.Tensor) -> Iterator[torch.Tensor]:
        flat = inputs.double().flatten(1)
        code = tied.encoder(flat)
        again = tied.encoder(functional.linear(code, tied.encoder.weight.T))  # a second use of the same weight
        decoded = functional.mse_loss(tied.decoder(code), flat)
        yield functional.cross_entropy(tied.out(code), labels) + decoded + again.square().mean()

    return Habit([tied], torch.optim.SGD(tied.parameters(), lr=0.05, momentum=0.9), reconstruction)


def train_plainly(kind: str) -> dict[str, torch.Tensor]:
    """The weights after the loop that everybody knows, over whole global batches, without the library's session."""
    each = habit(kind)
    step = 0
    for epoch in range(EPOCHS):
        for indices in epoch_order(SAMPLES, SEED, epoch).split(BATCH):
            items = [each.dataset[index] for index in indices.tolist()]
            inputs, labels = (torch.stack(column) for column in zip(*items, strict=True))
            each.by_hand(each.optimizer.param_groups, step)
            for loss in each.losses(inputs, labels):
                loss.backward(retain_graph=True)
            nn.utils.clip_grad_norm_([p for module in each.modules for p in module.parameters()], CLIP_NORM)
            each.optimizer.step()
            for module in each.modules:
                module.zero_grad()
            if each.average is not None:
                each.average.update_parameters(each.modules[0])
            step += 1
    return each.weights()
