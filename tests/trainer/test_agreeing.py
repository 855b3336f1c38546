"""What members tell one another as they meet. The groups are stand-ins, for what matters is who had seen what when the
attempt before broke, at a moment that real processes seldom hit."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn

from heterotrain.data.sampler import Position
from heterotrain.state.buffers import SharedBuffers
from heterotrain.training import agreeing
from heterotrain.training.agreeing import Agreement


def agreement_of(model: nn.Module, buffers: SharedBuffers, **exchange: Any) -> Agreement:
    """That of one worker which has trained with others."""
    return Agreement(
        subject=MagicMock(module=model, tensors=lambda: [*model.parameters(), *model.buffers()]),
        state=MagicMock(position=Position(step=5)),
        plans=MagicMock(rank=0),
        losses=MagicMock(),
        exchange=MagicMock(**exchange),
        evaluation=MagicMock(),
        buffers=buffers,
    )


def test_whoever_knows_that_the_script_ended_the_job_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that ended it may be lost, and others may not have read what it said."""
    monkeypatch.setattr(agreeing, "sum_over_ranks", lambda reported, generation: None)  # it is the only one
    model = nn.Linear(1, 1)
    agreement = agreement_of(model, SharedBuffers(model), done=False, done_agreed=True)
    _, _, ended, _ = agreement._report(MagicMock(world_size=1, rank=0), is_new=False)
    assert ended.tolist() == [1]


def test_statistics_of_those_who_trained_stay_theirs_where_one_that_has_the_state_meets_them_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a failure they were not merged: those of one worker for all would count as what the others have seen."""
    model = nn.BatchNorm1d(2)
    buffers = SharedBuffers(model)
    buffers.saw(7)
    agreement = agreement_of(model, buffers)
    model.running_mean = torch.full((2,), 3.0)
    steps, new, nobody = torch.tensor([5, 5]), torch.tensor([0, 1]), torch.tensor([0, 0])
    monkeypatch.setattr(agreement, "_report", lambda generation, is_new: torch.stack([steps, new, nobody, nobody]))
    monkeypatch.setattr(agreeing, "broadcast_document", lambda document, source, generation: b"")
    monkeypatch.setattr(agreeing, "parse_facts", lambda document: MagicMock())

    def take(tensors: list[torch.Tensor], source: int, generation: object) -> None:
        with torch.no_grad():
            for each in tensors:
                each.zero_()

    monkeypatch.setattr(agreeing, "broadcast_tensors", take)
    monkeypatch.setattr(agreement, "_facts", lambda again: b"")
    agreement.reach(MagicMock(world_size=2, rank=0), MagicMock(has_met=True), again=True)
    assert model.weight.tolist() == [0.0, 0.0], "parameters are taken over"
    assert model.running_mean is not None
    assert model.running_mean.tolist() == [3.0, 3.0]
