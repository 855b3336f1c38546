"""A loss that is a mean over something else than samples is found in its graph, and warned of."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from heterotrain.gradients.mean_check import MeanCheck
from trainer.alone import prepared

CLASSES = torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("loss", "warns"),
    [
        (lambda x: nn.functional.cross_entropy(x, CLASSES), False),
        (lambda x: nn.functional.cross_entropy(x, CLASSES) * 2 + x.square().mean(), False),
        (lambda x: nn.functional.cross_entropy(x, CLASSES, weight=torch.tensor([1.0, 2, 1])), True),
        (lambda x: nn.functional.cross_entropy(x, CLASSES, ignore_index=1) + x.square().mean(), True),
        (lambda x: nn.functional.cross_entropy(x, CLASSES, ignore_index=1, reduction="sum") / 4, False),
        (lambda x: nn.functional.cross_entropy(x.T[None], torch.tensor([[0, 1, -100, 0]]), ignore_index=-100), True),
    ],
)
def test_a_mean_over_something_else_than_samples_is_warned_of_once(
    loss: Callable[[torch.Tensor], torch.Tensor], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    check = MeanCheck()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            check.look(loss(torch.randn(4, 3, requires_grad=True)), 4)
    assert caplog.text.count("the loss is no mean over samples") == warns


UNEVEN = torch.tensor([[0, 1, -100], [1, -100, -100], [2, 2, 1], [0, 0, 2]])
EVEN = torch.tensor([[0, 1, -100], [1, -100, 2], [2, 2, -100], [0, 0, -100]])


@pytest.mark.parametrize(("targets", "warns"), [(UNEVEN, True), (EVEN, False)])
@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 4, 1])])
def test_a_mean_over_as_many_targets_of_each_sample_is_one_over_samples(
    targets: torch.Tensor, warns: bool, weight: torch.Tensor | None, caplog: pytest.LogCaptureFixture
) -> None:
    logits = torch.randn(4, 3, 3, requires_grad=True)
    MeanCheck().look(nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), weight=weight), 4)
    assert ("the loss is no mean over samples" in caplog.text) == (warns or weight is not None)


CLASSIFIED = TensorDataset(torch.arange(24.0).reshape(12, 2) / 24, torch.arange(12) % 3)


@pytest.mark.parametrize(
    ("reduction", "counted", "warnings"), [("mean", False, 1), ("sum", False, 0), ("mean", True, 0), ("sum", True, 0)]
)
def test_a_session_looks_at_what_its_script_calls_a_mean_over_samples(
    reduction: Any, counted: bool, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A loss that is a sum, or a mean over what the script counts, is no mean over samples and need not be one."""
    weight = torch.tensor([1.0, 2, 4])
    session, model, optimizer, batches = prepared(nn.Linear(2, 3), data=CLASSIFIED, loss=reduction, counted=counted)
    for inputs, targets in batches:
        loss = nn.functional.cross_entropy(model(inputs), targets, weight=weight, reduction=reduction)
        session.scale(loss, **({"count": weight[targets].sum()} if counted else {})).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert session.step == 6
    assert caplog.text.count("the loss is no mean over samples") == warnings
