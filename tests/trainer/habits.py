"""Training loops with habits that scripts have, each as what it computes and what it does by hand in its loop; among
them models of three kinds with augmented data. Sessions train them, and to compare a plain PyTorch loop does."""

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
from torch.utils.data import Dataset, Subset, default_collate

import heterotrain
from heterotrain.data.augmentation import Draw, drawing
from heterotrain.data.sampler import epoch_order
from heterotrain.workloads.digits import DigitsCNN, digits
from heterotrain.workloads.gpt import GPT
from heterotrain.workloads.resnet import resnet18
from heterotrain.workloads.synthetic import SyntheticImages, SyntheticTokens

SAMPLES, EPOCHS, SEED = 148, 6, 7
CLIP_NORM = 0.5
PADDING = -100
VOCABULARY = 12
MODELS = ("cnn", "gpt", "resnet18")
KINDS = (*MODELS, "losses", "modules", "rates", "average", "tied", "hooks", "target", "uneven")

Losses = Callable[[torch.Tensor, torch.Tensor], Iterator[torch.Tensor]]


@dataclass
class Habit:
    """`losses` yields one loss for each backward pass. The loop calls `by_hand` before them, and `after_step`
    after the optimizer's step. `count` says over how many a loss is a mean, if not
    over samples. `called` is the model as the loop calls it, of those that another process loads samples for."""

    modules: list[nn.Module]
    optimizer: torch.optim.Optimizer
    losses: Losses
    passes: int = 1
    by_hand: Callable[[Sequence[dict[str, Any]], int], None] = lambda _groups, _step: None
    average: AveragedModel | None = None
    after_step: Callable[[], object] | None = None
    dataset: Dataset[Any] = field(default_factory=lambda: Subset(digits(), range(SAMPLES)))
    batch: int = 24
    count: Callable[[torch.Tensor], torch.Tensor] | None = None
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None
    called: Any = None

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


def _model(kind: str) -> Habit:
    """A model in a script that loads in a process, calls what `prepare` gave it, and has a schedule."""
    module: nn.Module
    if kind == "gpt":
        module = GPT(VOCABULARY, context=8, width=16, depth=1, heads=2)
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
        data: Dataset[Any] = PaddedTokens(50)
    else:
        # At 8x8 the last groups would be of two values, which normalising makes a step: rounding would grow to 1e-6.
        module = DigitsCNN(4) if kind == "cnn" else resnet18(width=4)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
        data = Subset(digits(), range(SAMPLES)) if kind == "cnn" else SyntheticImages(50, size=16)

    def mean(inputs: torch.Tensor, targets: torch.Tensor) -> Iterator[torch.Tensor]:
        outputs = made.called(inputs)
        yield _token_loss(outputs, targets) if kind == "gpt" else functional.cross_entropy(outputs, targets)

    made = Habit([module], optimizer, mean, dataset=Augmented(data), batch=24 if kind == "cnn" else 16, called=module)
    made.schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.8)
    made.count = _tokens if kind == "gpt" else None
    return made


def _backbone() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.GELU(), nn.Linear(24, 10))


def habit(kind: str) -> Habit:
    """Always with the same first weights, in the default dtype."""
    torch.manual_seed(1)
    if kind in MODELS:
        return _model(kind)
    model = _backbone()

    def cross_entropy(inputs: torch.Tensor, labels: torch.Tensor) -> Iterator[torch.Tensor]:
        yield functional.cross_entropy(model(inputs), labels)

    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if kind == "losses":

        def two_losses(inputs: torch.Tensor, labels: torch.Tensor) -> Iterator[torch.Tensor]:
            logits = model(inputs)
            loss = functional.cross_entropy(logits, labels)
            yield loss
            yield logits.square().mean() / 10 + loss * 0

        return Habit([model], sgd, two_losses, passes=2)
    if kind == "modules":
        criterion = Temperature()

        def learned(inputs: torch.Tensor, labels: torch.Tensor) -> Iterator[torch.Tensor]:
            yield criterion(model(inputs), labels)

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
    if kind == "average":
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        return Habit([model], sgd, cross_entropy, average=average, after_step=lambda: average.update_parameters(model))
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
            logits = model(inputs)
            with torch.no_grad():
                wanted = target(inputs)
            yield functional.cross_entropy(logits, labels) + functional.mse_loss(logits, wanted)

        def follow() -> None:
            for own, theirs in zip(target.parameters(), model.parameters(), strict=True):
                own.data.lerp_(theirs.data, 0.1)

        return Habit([model, target], sgd, agree, after_step=follow)
    if kind == "uneven":
        side = nn.Linear(10, 10)

        def first_more(inputs: torch.Tensor, labels: torch.Tensor) -> Iterator[torch.Tensor]:
            logits = model(inputs)
            yield functional.cross_entropy(logits + side(logits), labels)
            yield logits.square().mean() / 10

        both = torch.optim.SGD([*model.parameters(), *side.parameters()], lr=0.1, momentum=0.9)
        return Habit([model, side], both, first_more, passes=2)
    tied = Tied()

    def reconstruction(inputs: torch.Tensor, labels: torch.Tensor) -> Iterator[torch.Tensor]:
        flat = inputs.flatten(1)
        code = tied.encoder(flat)
        again = tied.encoder(functional.linear(code, tied.encoder.weight.T))  # a second use of the same weight
        decoded = functional.mse_loss(tied.decoder(code), flat)
        yield functional.cross_entropy(tied.out(code), labels) + decoded + again.square().mean()

    return Habit([tied], torch.optim.SGD(tied.parameters(), lr=0.05, momentum=0.9), reconstruction)


def train_plainly(kind: str) -> dict[str, torch.Tensor]:
    """The weights after a plain PyTorch loop over whole global batches, without the library's session."""
    each = habit(kind)
    step, samples = 0, len(each.dataset)  # type: ignore[arg-type]  # all have one; torch's base class declares none
    for epoch in range(EPOCHS):
        for indices in epoch_order(samples, SEED, epoch).split(each.batch):
            items = []
            for index in indices.tolist():
                with drawing(Draw(SEED, epoch, index)):
                    items.append(each.dataset[index])
            inputs, labels = default_collate(items)
            each.by_hand(each.optimizer.param_groups, step)
            for loss in each.losses(inputs, labels):
                loss.backward(retain_graph=True)
            parameters = [parameter for module in each.modules for parameter in module.parameters()]
            nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
            each.optimizer.step()
            for module in each.modules:
                module.zero_grad()
            if each.after_step is not None:
                each.after_step()
            if each.schedule is not None:
                each.schedule.step()
            step += 1
    return each.weights()
