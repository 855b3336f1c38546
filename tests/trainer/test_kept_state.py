"""What a script's loop may change of a training can be put back to the bit, whatever it changes."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from heterotrain.state.kept_state import KeptState

CPU = torch.device("cpu")


class Training:
    """A model that has trained for a step, with everything that a script may hold of it."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.rate = torch.tensor(0.01)
        self.optimizer = torch.optim.AdamW(
            [{"params": self.model[0].parameters(), "lr": self.rate}, {"params": self.model[3].parameters()}]
        )
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.learn()

    def learn(self) -> None:
        self.model(torch.rand(6, 4)).sum().backward()
        self.optimizer.step()
        self.model.zero_grad()
        self.schedule.step()
        self.average.update_parameters(self.model)

    def keep(self) -> KeptState:
        registered = {"schedule": self.schedule, "average": self.average}
        return KeptState(self.model, self.optimizer, registered, CPU)

    def facts(self) -> list[object]:
        """All of it as bytes and numbers."""
        states = [state for parameter in self.model.parameters() for state in [self.optimizer.state.get(parameter, {})]]
        tensors = [
            *self.model.state_dict().values(),
            *self.average.state_dict().values(),
            *[state[key] for state in states for key in sorted(state)],
            torch.get_rng_state(),
        ]
        groups = [
            {key: float(value) if isinstance(value, torch.Tensor) else value for key, value in group.items()}
            for group in self.optimizer.param_groups
        ]
        return [
            [tensor.detach().numpy().tobytes() for tensor in tensors],
            [{key: value for key, value in group.items() if key != "params"} for group in groups],
            self.schedule.state_dict()["last_epoch"],
            [module.training for module in self.model.modules()],
            [parameter.grad is None for parameter in self.model.parameters()],
            random.getstate(),
            np.random.get_state()[1].tobytes(),  # type: ignore[index, union-attr]  # numpy's types name all its shapes
        ]


def add_group(training: Training) -> None:
    training.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def set_rates(training: Training) -> None:
    training.rate.fill_(3.0)
    training.optimizer.param_groups[1].update(lr=5.0, momentum=0.1)


def replace_buffer(training: Training) -> None:
    training.model[1].running_mean = torch.full((4,), 9.0)


def forget(training: Training) -> None:
    training.optimizer.state.clear()


@pytest.mark.parametrize(
    "change",
    [
        Training.learn,
        add_group,
        set_rates,
        replace_buffer,
        forget,
        lambda training: training.model.eval(),
        lambda training: training.model[0].weight.data.mul_(2),
        lambda training: training.model(torch.ones(3, 4)).sum().backward(),
        lambda training: training.schedule.step(),
        lambda _: torch.rand(1),
        lambda _: random.random(),
        lambda _: np.random.rand(),
    ],
)
def test_everything_is_as_it_was(change: Callable[[Training], object]) -> None:
    training = Training()
    before, kept = training.facts(), training.keep()
    change(training)
    assert training.facts() != before
    kept.restore()
    assert training.facts() == before


def test_what_others_hold_of_the_optimizer_stays_in_it() -> None:
    training = Training()
    groups, moments = training.optimizer.param_groups, dict(training.optimizer.state)
    kept = training.keep()
    set_rates(training)
    training.learn()
    kept.restore()
    assert training.optimizer.param_groups is groups
    assert groups[0]["lr"] is training.rate
    assert training.rate.item() == pytest.approx(0.01)
    assert all(training.optimizer.state[each] is state for each, state in moments.items())
