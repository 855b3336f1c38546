"""Models of three kinds with augmented data, loss and optimizer, to be trained by a session and, to compare, by plain
PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, Subset, default_collate

import heterotrain
from heterotrain.data.augmentation import Draw, drawing
from heterotrain.data.sampler import epoch_order
from heterotrain.workloads.digits import DigitsCNN, digits
from heterotrain.workloads.gpt import GPT
from heterotrain.workloads.resnet import resnet18
from heterotrain.workloads.synthetic import SyntheticImages, SyntheticTokens

PADDING = -100
CLIP_NORM = 0.5
VOCABULARY = 12


@dataclass(frozen=True, slots=True)
class Subject:
    """`loss` makes a mean over a batch of outputs and targets; `count` says over how many, if not over samples."""

    model: nn.Module
    dataset: Augmented
    batch_size: int
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    optimizer: torch.optim.Optimizer
    count: Callable[[torch.Tensor], torch.Tensor] | None = None

    def schedule(self) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=3, gamma=0.8)


class PaddedTokens(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Sequences of unequal length, padded; one in seven has no tokens at all."""

    def __init__(self, samples: int) -> None:
        self.whole = SyntheticTokens(samples, length=8, vocabulary=VOCABULARY, choices=2)

    def __len__(self) -> int:
        return len(self.whole)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, following = self.whole[index]
        following = following.clone()
        following[0 if index % 7 == 0 else 1 + index % 8 :] = PADDING
        return tokens, following


class Augmented(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Images under noise, sequences in which some tokens are others; no two epochs show the same."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # all of them have one; torch's base class declares none

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = self.dataset[index]
        generator = heterotrain.sample_generator()
        if inputs.is_floating_point():
            return inputs + torch.randn(inputs.shape, generator=generator) / 10, targets
        others = torch.randint(VOCABULARY, inputs.shape, generator=generator)
        return torch.where(torch.rand(inputs.shape, generator=generator) < 0.1, others, inputs), targets


def _token_loss(logits: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=PADDING)


def _tokens(following: torch.Tensor) -> torch.Tensor:
    return (following != PADDING).sum()


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def subject(name: str) -> Subject:
    """In the default dtype, and always with the same first weights."""
    torch.manual_seed(1)
    if name == "cnn":
        model: nn.Module = DigitsCNN(4)
        return Subject(model, Augmented(Subset(digits(), range(148))), 24, functional.cross_entropy, _sgd(model))
    if name == "resnet18":
        model = resnet18(width=4)
        # At 8x8 the last groups would be of two values, which normalising makes a step: rounding would grow to 1e-6.
        return Subject(model, Augmented(SyntheticImages(50, size=16)), 16, functional.cross_entropy, _sgd(model))
    model = GPT(VOCABULARY, context=8, width=16, depth=1, heads=2)
    adam = torch.optim.AdamW(model.parameters(), lr=0.01)
    return Subject(model, Augmented(PaddedTokens(50)), 16, _token_loss, adam, _tokens)


def train_plainly(name: str, epochs: int, seed: int) -> dict[str, torch.Tensor]:
    """The weights after a plain PyTorch loop over whole global batches, without the library's session."""
    each = subject(name)
    schedule = each.schedule()
    samples = len(each.dataset)
    for epoch in range(epochs):
        for indices in epoch_order(samples, seed, epoch).split(each.batch_size):
            items = []
            for index in indices.tolist():
                with drawing(Draw(seed, epoch, index)):
                    items.append(each.dataset[index])
            inputs, targets = default_collate(items)
            each.loss(each.model(inputs), targets).backward()
            nn.utils.clip_grad_norm_(each.model.parameters(), CLIP_NORM)
            each.optimizer.step()
            schedule.step()
            each.optimizer.zero_grad()
    return dict(each.model.state_dict())
