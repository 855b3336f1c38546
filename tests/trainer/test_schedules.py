"""Schedules that a script registers are stepped as they want it; those that cannot be are refused beforehand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.optim import lr_scheduler

from heterotrain.training.schedules import Every, Schedules
from trainer.alone import prepared, run, sgd, train


class Named:
    """A schedule of another library's kind."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, _state: dict[str, int]) -> None: ...


class TimmLike(Named):
    """A schedule of timm's, as far as a session knows one."""

    def __init__(self, *, t_in_epochs: bool, **lengths: int) -> None:
        super().__init__()
        self.t_in_epochs = t_in_epochs
        vars(self).update(lengths)

    def step(self, epoch: int) -> None:
        self.calls.append(("epoch", epoch))

    def step_update(self, num_updates: int) -> None:
        self.calls.append(("step", num_updates))


class PlateauLike(TimmLike):
    """timm's schedule that follows a metric, made of torch's."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(t_in_epochs=True)
        self.lr_scheduler = lr_scheduler.ReduceLROnPlateau(optimizer)


class Plain(Named):
    def step(self) -> None:
        self.calls.append(("step", len(self.calls)))


class Demanding(Named):
    def step(self, metric: float) -> None: ...


def test_torch_warns_of_no_process_whose_script_has_had_no_batch(recwarn: pytest.WarningsRecorder) -> None:
    schedules = Schedules()
    schedules.add("schedule", lr_scheduler.ExponentialLR(sgd(nn.Linear(1, 1)), 0.5), "step")
    schedules.step(1, 0, epochs=0)
    assert not recwarn.list


def test_schedules_are_stepped_by_step_or_by_epoch_whosever_they_are() -> None:
    session, model, optimizer, batches = prepared(epochs=2)
    updates, epochs = TimmLike(t_in_epochs=False), TimmLike(t_in_epochs=True)
    by_epoch, plain = lr_scheduler.StepLR(optimizer, 1, 0.5), Plain()
    session.register(every="epoch", by_epoch=by_epoch, epochs=epochs)
    session.register(updates=updates, plain=plain)
    rates = []
    for _ in train(session, model, optimizer, batches):
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.05, 0.025])
    assert updates.calls == [("step", step) for step in range(1, 7)]
    assert epochs.calls == [("epoch", 1), ("epoch", 2)]
    assert len(plain.calls) == 6


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lr_scheduler.ReduceLROnPlateau, "ReduceLROnPlateau needs a metric"),
        (lambda _: Demanding(), "asks for arguments"),
        (PlateauLike, "ReduceLROnPlateau needs a metric"),
        (lambda _: sgd(nn.Linear(1, 1)), "an optimizer that is registered would never be stepped"),
    ],
)
def test_what_has_a_step_and_cannot_be_stepped_is_refused(made: Callable[[Any], Any], message: str) -> None:
    session, _, optimizer, _ = prepared()
    with pytest.raises(TypeError, match=f"thing: .*{message}"):
        session.register(thing=made(optimizer))


@pytest.mark.parametrize(("in_epochs", "wanted", "given"), [(True, "epoch", "step"), (False, "step", "epoch")])
def test_a_schedule_that_counts_otherwise_than_it_is_stepped_is_refused(
    in_epochs: bool, wanted: Every, given: Every
) -> None:
    """It would never move."""
    session, *_ = prepared()
    with pytest.raises(ValueError, match=f"rate: .* counts {wanted}s.*every='{wanted}'"):
        session.register(every=given, rate=TimmLike(t_in_epochs=in_epochs))
    session.register(every=wanted, rate=TimmLike(t_in_epochs=in_epochs))


Made = Callable[[torch.optim.Optimizer, int], Any]


def cosine_after_warm_up(optimizer: torch.optim.Optimizer, calls: int) -> Any:
    warm_up = lr_scheduler.LinearLR(optimizer, total_iters=1)
    return lr_scheduler.SequentialLR(optimizer, [warm_up, lr_scheduler.CosineAnnealingLR(optimizer, calls - 1)], [1])


class CyclesLike(TimmLike):
    """A cosine of timm's with several cycles."""

    def get_cycle_length(self, cycles: int = 0) -> int:
        return self.t_initial * max(1, cycles or self.cycle_limit)


@pytest.mark.parametrize(
    "make",
    [
        lr_scheduler.CosineAnnealingLR,
        cosine_after_warm_up,
        lambda optimizer, calls: transformers.get_linear_schedule_with_warmup(optimizer, 1, calls),
        lambda optimizer, calls: transformers.get_cosine_schedule_with_warmup(optimizer, 1, calls),
        lambda _, calls: TimmLike(t_in_epochs=False, t_initial=calls),
        lambda _, calls: CyclesLike(t_in_epochs=False, t_initial=calls // 3, cycle_limit=3),
    ],
    ids=[
        "cosine",
        "warm-up, then cosine",
        "transformers, linear",
        "transformers, cosine",
        "timm",
        "timm, three cycles",
    ],
)
def test_the_length_of_a_schedule_is_known_whosever_it_is(make: Made, caplog: pytest.LogCaptureFixture) -> None:
    for calls in (6, 3):
        session, model, optimizer, batches = prepared()
        session.register(rate=make(optimizer, calls))
        run(session, model, optimizer, batches)
        assert ("'rate'" in caplog.text) == (calls != 6)
    assert "is made for 3 calls, the job has 6 steps" in caplog.text


def test_a_schedule_of_another_length_than_the_jobs_is_named_before_training(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session, _, optimizer, batches = prepared()
    session.register(one=lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5))
    with pytest.raises(ValueError, match=r"'one' \(OneCycleLR\) is made for 5 calls, the job has 6 steps"):
        next(iter(batches))
    session, model, optimizer, batches = prepared()
    session.register(cosine=lr_scheduler.CosineAnnealingLR(optimizer, T_max=3))
    run(session, model, optimizer, batches)
    assert "'cosine' (CosineAnnealingLR) is made for 3 calls" in caplog.text


def test_a_schedule_that_is_too_short_for_an_asynchronous_jobs_updates_is_refused() -> None:
    schedules = Schedules()
    schedules.add("one", lr_scheduler.OneCycleLR(sgd(nn.Linear(1, 1)), 0.1, total_steps=96), "step")
    refused = "is made for 96 calls, the job has about 265 steps, for each worker's batch is an update"
    with pytest.raises(ValueError, match=refused):
        list(schedules.remarks(265, 6, of_updates=True))
    assert not list(schedules.remarks(100, 6, of_updates=True))  # how many there will be depends on the workers
    with pytest.raises(ValueError, match="the job has 100 steps, for each worker's batch is an update"):
        list(schedules.remarks(100, None, of_updates=True))
