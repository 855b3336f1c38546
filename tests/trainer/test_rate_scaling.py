"""Learning rates that follow the batch: as a plain loop at such rates trains, and the script's own behind each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

from heterotrain.contract import TrainingConfig
from heterotrain.session import Session
from heterotrain.training.rate_scaling import RateScaling, rates
from trainer.alone import DATA, run
from trainer.story import in_double

pytestmark = pytest.mark.filterwarnings("ignore:.*lr_scheduler.step:UserWarning")


def lbfgs(parameters: list[nn.Parameter], scale: float) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(parameters, lr=0.1 * scale, max_iter=3)


def groups(parameters: list[nn.Parameter], scale: float) -> torch.optim.Optimizer:
    given = [{"params": [each], "lr": 0.1 * (1 + number) * scale} for number, each in enumerate(parameters)]
    return torch.optim.SGD(given, lr=7.0, momentum=0.9)


def fused(parameters: list[nn.Parameter], scale: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1 * scale, weight_decay=0.1, fused=True)


def tensor(parameters: list[nn.Parameter], scale: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=torch.tensor(0.1 * scale))


def shared_tensor(parameters: list[nn.Parameter], scale: float) -> torch.optim.Optimizer:
    rate = torch.tensor(0.1 * scale)
    return torch.optim.Adam([{"params": [each], "lr": rate} for each in parameters], lr=0.0)


def without_rate(parameters: list[nn.Parameter], scale: float) -> torch.optim.Optimizer:
    return torch.optim.Rprop([{"params": parameters, "lr": 0.1 * scale}, {"params": [], "lr": 1}])


@pytest.mark.parametrize("make", [lbfgs, groups, fused, tensor, shared_tensor, without_rate])
def test_any_optimizer_steps_at_the_scaled_rates_and_has_its_own_again(make: Callable[..., Any]) -> None:
    with in_double():
        models = []
        for scale, factor in ((1.0, 0.3), (0.3, 1.0)):
            torch.manual_seed(3)
            model = nn.Linear(2, 1)
            models.append(model)
            optimizer = make(list(model.parameters()), scale)
            before = [float(group["lr"]) for group in optimizer.param_groups]
            held = [group["lr"] for group in optimizer.param_groups]

            def closure(model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> torch.Tensor:
                optimizer.zero_grad()
                loss: torch.Tensor = (model(torch.ones(4, 2)) - torch.arange(4.0)[:, None]).square().mean()
                loss.backward()
                return loss

            for _ in range(5):
                with rates(optimizer, factor):
                    optimizer.step(closure)
                assert [float(group["lr"]) for group in optimizer.param_groups] == before
            assert all(own is group["lr"] for own, group in zip(held, optimizer.param_groups, strict=True))
        for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
            torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


def test_rates_are_put_back_after_an_error_but_not_over_what_a_hook_sets() -> None:
    optimizer = torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))]}, {"params": []}], lr=0.5)
    with pytest.raises(OSError), rates(optimizer, 2.0):
        assert [group["lr"] for group in optimizer.param_groups] == [1.0, 1.0]
        optimizer.param_groups[1]["lr"] = 0.25
        raise OSError
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25]


def test_rules_and_what_is_none() -> None:
    assert [RateScaling(rule, 64).factor(256) for rule in ("None", "Linear", "Sqrt")] == [1.0, 4.0, 2.0]
    assert RateScaling().factor(7) == 1.0
    for rule, batch, reason in (("Cubic", 64, "expected None, Linear or Sqrt, found 'Cubic'"), ("Sqrt", 0, "at least")):
        with pytest.raises(ValueError, match=reason):
            RateScaling(rule, batch)


def test_schedules_and_the_script_see_their_own_rates_and_a_smaller_last_step_has_those_of_the_others() -> None:
    with in_double():
        weights = []
        for lr, config in (
            (0.1, TrainingConfig(epochs=2, learning_rate_scaling="Linear", learning_rate_own_batch=2)),
            (0.25, TrainingConfig(epochs=2)),
        ):
            session = Session(None, config, 5)  # 12 samples: steps of 5, 5 and 2
            torch.manual_seed(3)
            model = nn.Linear(2, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
            prepared = session.prepare(model, optimizer, [tuple(t.double() for t in each) for each in DATA])
            session.register(schedule=ExponentialLR(optimizer, 0.9))
            run(session, *prepared)
            assert optimizer.param_groups[0]["lr"] == pytest.approx(lr * 0.9**6)
            weights.append(model.weight)
        torch.testing.assert_close(*weights, atol=1e-12, rtol=0)
