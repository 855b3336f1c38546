"""What members tell one another as they meet. The groups are stand-ins, for what matters is who had seen what when the
attempt before broke, at a moment that real processes seldom hit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn

from heterotrain.data.sampler import Position
from heterotrain.training import group as group_module
from heterotrain.training.group import Group


def group_of(model: nn.Module, **exchange: Any) -> Group:
    """The group of one worker that has trained with others."""
    state = MagicMock(position=Position(step=5))
    transition = SimpleNamespace()
    group = Group(
        subject=MagicMock(module=model, tensors=lambda: [*model.parameters(), *model.buffers()]),
        state=state,
        plans=MagicMock(rank=0),
        losses=MagicMock(),
        exchange=MagicMock(transition=transition, **exchange),
        clock=MagicMock(),
        evaluation=MagicMock(),
    )
    group._gathering = MagicMock(has_met=True)
    return group


def test_whoever_knows_that_the_script_ended_the_job_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that ended it may be lost, and others may not have read what it said."""
    monkeypatch.setattr(group_module, "sum_over_ranks", lambda reported, generation: None)  # it is the only one
    group = group_of(nn.Linear(1, 1), done=False, done_agreed=True)
    _, _, ended, _ = group._report(MagicMock(world_size=1, rank=0))
    assert ended.tolist() == [1]


def test_statistics_of_those_who_trained_stay_theirs_where_one_that_has_the_state_meets_them_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a failure they were not merged: those of one worker for all would count as what the others have seen."""
    model = nn.BatchNorm1d(2)
    group = group_of(model)
    group.buffers.saw(7)
    model.running_mean = torch.full((2,), 3.0)
    steps, new, nobody = torch.tensor([5, 5]), torch.tensor([0, 1]), torch.tensor([0, 0])
    monkeypatch.setattr(group, "_report", lambda generation: torch.stack([steps, new, nobody, nobody]))
    monkeypatch.setattr(group_module, "broadcast_document", lambda document, source, generation: b"")
    monkeypatch.setattr(group_module, "parse_facts", lambda document: MagicMock())

    def take(tensors: list[torch.Tensor], source: int, generation: object) -> None:
        with torch.no_grad():
            for each in tensors:
                each.zero_()

    monkeypatch.setattr(group_module, "broadcast_tensors", take)
    monkeypatch.setattr(group, "_facts", lambda again: b"")
    group._agree(MagicMock(world_size=2, rank=0), again=True)
    assert model.weight.tolist() == [0.0, 0.0], "parameters are taken over"
    assert model.running_mean is not None
    assert model.running_mean.tolist() == [3.0, 3.0]
