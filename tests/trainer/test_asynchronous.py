"""What a worker of an asynchronous job computes of its samples, and what travels to and from its server."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from heterotrain.contract import ASP, ERRORS_THAT_PASS, Member, Plan, Server, TrainingConfig
from heterotrain.data.order import Order
from heterotrain.gradients.counting import LossKind
from heterotrain.groups.assembly import MembershipError
from heterotrain.groups.peering.messages import Enter, Grant
from heterotrain.groups.peering.server import PeerServer
from heterotrain.job.planfile import PlanFile
from heterotrain.job.plans import Plans
from heterotrain.job.worker import StopRequest, Worker
from heterotrain.reporting.metrics import Series, WorkerMetrics
from heterotrain.training.applying import Applying
from heterotrain.training.asynchronous import Asynchronous
from heterotrain.training.context import Context
from heterotrain.training.layout import Layout, are_finite
from heterotrain.training.parts import Parts, put_together
from heterotrain.training.server_line import ServerLine, ServerLostError
from heterotrain.training.step_parts import StepParts
from heterotrain.training.subject import Subject
from trainer.alone import prepared


def put_together_worker(
    folder: Path, model: nn.Module, loss: LossKind | None = None, global_batch_size: int | None = None
) -> Parts:
    """A worker of a job of twelve samples, which has no plan yet."""
    config = TrainingConfig(epochs=1, mode=ASP)
    worker = Worker("job", "a", "uid", "cpu", folder, config, global_batch_size, 0, None, folder / "end")
    plans = Plans(None, PlanFile(folder))
    context = Context(config, worker, plans, WorkerMetrics("job", "a", "cpu", bool), Series(None), StopRequest())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    subject = Subject(model, optimizer, torch.device("cpu"), Order(12, 0), loss=loss or LossKind("mean"))
    return put_together(context, subject)


def asynchronous(folder: Path, model: nn.Module, loss: LossKind, micro: int) -> Asynchronous:
    """A worker's step that was given the first twelve samples."""
    parts = put_together_worker(folder, model, loss)
    step = parts.step
    assert isinstance(step, Asynchronous)
    parts.context.plans.adopt(Plan(1, 1, "step", (Member("a", "uid", "127.0.0.1:1", "cpu", 12, micro),)), 0)
    step._grant = Grant("x", 1, (0, 0, 12), (), (0, 0, 0), False, False, "", "{}")
    return step


@pytest.mark.parametrize("micro", [0, 5])
def test_a_worker_whose_loss_is_counted_sends_the_gradient_of_the_mean_over_what_its_batch_counts(
    tmp_path: Path, micro: int
) -> None:
    torch.manual_seed(0)
    inputs, counts = torch.randn(12, 3), torch.tensor([5, 0, 0, 0, 2, 1, 7, 0, 3, 1, 0, 2])
    model = nn.Linear(3, 1)
    losses = model(inputs).flatten().square() * counts
    expected = torch.autograd.grad(losses.sum() / counts.sum(), [*model.parameters()])
    step = asynchronous(tmp_path, model, LossKind("mean", counted=True), micro)
    step.begin()
    while True:
        share = step.share
        assert share is not None
        part = slice(share.start, share.stop)
        losses = model(inputs[part]).flatten().square() * counts[part]
        count = counts[part].sum()
        torch.autograd.backward(step.scale(losses.sum() / count.clamp(min=1), count))
        if step._step.is_last_part:
            break
        assert not step.commit()
        assert step.next_part()
    found = [each.grad for each in model.parameters()]
    assert all(torch.allclose(one, other) for one, other in zip(found, expected, strict=True) if one is not None)
    loss = step._losses.commit()
    assert loss is not None and torch.isclose(loss, (model(inputs).flatten().square() * counts).sum() / counts.sum())


def test_running_statistics_move_by_a_workers_share_and_all_else_is_taken_over() -> None:
    frozen, normalises = nn.Linear(2, 4), nn.BatchNorm1d(4)
    model = nn.Sequential(frozen, normalises, nn.Linear(4, 1))
    assert normalises.running_mean is not None and normalises.num_batches_tracked is not None
    frozen.weight.requires_grad_(False)
    trained = [each for each in model.parameters() if each.requires_grad]
    there = Layout(model, trained)
    room, whole = there.room(), there.room(whole=True)
    assert 0 < there.size < there.whole_size
    there.write(whole, whole=True)
    sent = whole.numpy().tobytes()
    with torch.no_grad():
        frozen.weight.zero_()
        normalises.running_mean.fill_(4.0)
        normalises.num_batches_tracked.fill_(7)
    there.write(room)
    for part in there.incoming(whole, whole=True):
        part[:], sent = sent[: len(part)], sent[len(part) :]
    there.settle(whole, whole=True)
    assert frozen.weight.any(), "frozen parameters travel with all the others"
    there.move_buffers(room, 0.25)
    assert normalises.running_mean.tolist() == [1.0] * 4
    assert normalises.num_batches_tracked == 7
    there.move_buffers(room, 1.0)
    assert normalises.running_mean.tolist() == [4.0] * 4


def test_a_workers_schedules_are_those_of_the_step_also_after_a_server_that_was_lost(tmp_path: Path) -> None:
    step = asynchronous(tmp_path, nn.Linear(3, 1), LossKind("mean"), 0)
    optimizer = step._subject.optimizer
    step._subject.schedules.add("schedule", torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5), "step")
    taken: Any = SimpleNamespace(take=lambda _grant: None)
    step._line = taken
    news = '{"loss": 1.0, "epoch_loss": 1.0, "evaluation": {"step": -1, "values": {}}}'
    for at in (3, 1, 2, 4):  # the second server goes on from step 1
        step._take(Grant("x", 1, (0, 0, 12), (), (at, 0, 0), False, False, "", news))
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**4


def test_a_worker_that_waits_to_be_let_in_holds_nobody_up(tmp_path: Path) -> None:
    step, seen = asynchronous(tmp_path, nn.Linear(3, 1), LossKind("mean"), 0), []

    def enter(_message: Enter) -> None:
        seen.append(step.in_collective)
        step._stop.requested = True

    line: Any = SimpleNamespace(enter=enter)
    step._line = line
    step._enter()
    assert (seen, step.in_collective) == ([True], False)


def test_how_many_updates_there_will_be_is_not_known_before_there_is_a_plan(tmp_path: Path) -> None:
    # A schedule of as many steps as there are global batches would end long before the job.
    parts = put_together_worker(tmp_path, nn.Linear(3, 1), global_batch_size=6)
    assert parts.progress.total_steps == 0
    with pytest.raises(RuntimeError, match=r"known only once the loop .* training\.mode is ASP"):
        _ = parts.progress.steps_per_epoch
    parts.context.plans.adopt(Plan(1, 1, "step", tuple(Member(n, n, "127.0.0.1:1", "cpu", 3) for n in "ab")), 0)
    assert (parts.progress.total_steps, parts.progress.steps_per_epoch) == (4, 4)


def test_gradients_are_in_the_order_of_their_parameters_as_fused_optimizers_expect(tmp_path: Path) -> None:
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    parts = put_together_worker(tmp_path, model)
    applying = Applying(
        StepParts(parts.context, parts.subject, parts.state, parts.progress.rules, parts.group, parts.accounts)
    )
    room = applying.layout.room()
    gradients = [torch.randn(each.shape) for each in model.parameters()]
    for view, gradient in zip(applying.layout.gradients(room), gradients, strict=True):
        view.copy_(gradient)
    applying.put(room)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is not None and torch.equal(parameter.grad, gradient)
        assert parameter.grad.stride() == parameter.stride()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_is_no_number_shows(value: float, dtype: torch.dtype) -> None:
    assert are_finite([torch.ones(3, dtype=dtype), torch.empty(0, dtype=dtype)])
    assert not are_finite([torch.ones(3, dtype=dtype), torch.tensor([1.0, value], dtype=dtype)])


def test_a_worker_gives_a_lost_server_up_in_words_that_pass() -> None:
    peers = PeerServer("job", "a", "uid", secret=None, host="127.0.0.1")
    nowhere = Server("server", "its uid", "127.0.0.1:1")
    model = nn.Linear(2, 1)
    line = ServerLine(
        peers,
        Layout(model, [*model.parameters()]),
        find=lambda: nowhere,
        gives_up=lambda: False,
        silence_seconds=5.0,
        patience_seconds=0.3,
    )
    with pytest.raises(
        MembershipError, match=r"did not answer for 0\.3 s .*startupDeadlineSeconds.*its process is gone"
    ):
        line.enter(Enter("{}"))
    line.close()
    assert ServerLostError.__name__ in ERRORS_THAT_PASS


def test_metrics_that_the_server_has_not_measured_yet_are_not_numbers_at_a_worker() -> None:
    session, *_ = prepared()
    assert session._life is not None
    with pytest.raises(KeyError):
        session.metrics["accuracy"]
    evaluation = session._life.evaluation
    evaluation.is_elsewhere, evaluation.values = True, {"loss": 1.0}
    assert session.metrics["loss"] == 1.0
    assert math.isnan(session.metrics["accuracy"])
