"""Training loops with habits that scripts have, each as what it computes and what it does by hand in its loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset, Subset

from heterotrain.data.sampler import epoch_order
from heterotrain.workloads.digits import digits

SAMPLES, BATCH, EPOCHS, SEED = 148, 24, 6, 7
CLIP_NORM = 0.5
KINDS = ("losses", "modules", "rates", "lacking", "average", "tied", "signs", "hooks", "target", "uneven")

Losses = Callable[[torch.Tensor, torch.Tensor], Iterator[torch.Tensor]]


@dataclass
class Habit:
    """`losses` yields one loss for each backward pass. The loop calls `by_hand` before them and `to_gradients` after
    them, and `after_step` is called after the optimizer's step."""

    modules: list[nn.Module]
    optimizer: torch.optim.Optimizer
    losses: Losses
    passes: int = 1
    by_hand: Callable[[Sequence[dict[str, Any]], int], None] = lambda _groups, _step: None
    average: AveragedModel | None = None
    to_gradients: Callable[[Sequence[nn.Parameter]], None] = lambda _parameters: None
    after_step: Callable[[], object] | None = None
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
        return Habit([model], sgd, cross_entropy, average=average, after_step=lambda: average.update_parameters(model))
    if kind == "signs":

        def turn(parameters: Sequence[nn.Parameter]) -> None:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.neg_()

        return Habit([model], sgd, cross_entropy, to_gradients=turn)
    if kind == "hooks":

        def halve(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            parameter.grad.mul_(0.5)

        model[1].weight.register_hook(lambda gradient: gradient * 0.5)
        model[3].bias.register_post_accumulate_grad_hook(halve)
        return Habit([model], sgd, cross_entropy)
    if kind == "target":
        target = deepcopy(model).requires_grad_(False)

        def agree(inputs: torch.Tensor, labels: torch.Tensor) -> Iterator[torch.Tensor]:
            logits = model(inputs.double())
            with torch.no_grad():
                wanted = target(inputs.double())
            yield functional.cross_entropy(logits, labels) + functional.mse_loss(logits, wanted)

        def follow() -> None:
            for own, theirs in zip(target.parameters(), model.parameters(), strict=True):
                own.data.lerp_(theirs.data, 0.1)

        return Habit([model, target], sgd, agree, after_step=follow)
    if kind == "uneven":
        side = nn.Linear(10, 10).double()

        def first_more(inputs: torch.Tensor, labels: torch.Tensor) -> Iterator[torch.Tensor]:
            logits = model(inputs.double())
            yield functional.cross_entropy(logits + side(logits), labels)
            yield logits.square().mean() / 10

        both = torch.optim.SGD([*model.parameters(), *side.parameters()], lr=0.1, momentum=0.9)
        return Habit([model, side], both, first_more, passes=2)
    tied = Tied().double()

    def reconstruction(inputs: torch.Tensor, labels: torch.Tensor) -> Iterator[torch.Tensor]:
        flat = inputs.double().flatten(1)
        code = tied.encoder(flat)
        again = tied.encoder(functional.linear(code, tied.encoder.weight.T))  # a second use of the same weight
        decoded = functional.mse_loss(tied.decoder(code), flat)
        yield functional.cross_entropy(tied.out(code), labels) + decoded + again.square().mean()

    return Habit([tied], torch.optim.SGD(tied.parameters(), lr=0.05, momentum=0.9), reconstruction)


def train_plainly(kind: str) -> dict[str, torch.Tensor]:
    """The weights after a plain PyTorch loop over whole global batches, without the library's session."""
    each = habit(kind)
    step = 0
    for epoch in range(EPOCHS):
        for indices in epoch_order(SAMPLES, SEED, epoch).split(BATCH):
            items = [each.dataset[index] for index in indices.tolist()]
            inputs, labels = (torch.stack(column) for column in zip(*items, strict=True))
            each.by_hand(each.optimizer.param_groups, step)
            for loss in each.losses(inputs, labels):
                loss.backward(retain_graph=True)
            parameters = [parameter for module in each.modules for parameter in module.parameters()]
            each.to_gradients(parameters)
            nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
            each.optimizer.step()
            for module in each.modules:
                module.zero_grad()
            if each.after_step is not None:
                each.after_step()
            step += 1
    return each.weights()
