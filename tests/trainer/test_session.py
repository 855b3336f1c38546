"""What a session offers a script, and what it refuses; alone, in this process."""

from __future__ import annotations

import copy
import io
import math
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DataParallel
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, default_collate

import heterotrain
from heterotrain.data.once import first_here
from heterotrain.gradients.gradient_sum import GradientSum
from heterotrain.gradients.reduction import Reducing
from heterotrain.groups.sockets import SocketCutter
from heterotrain.state.checkpoint import CheckpointError
from trainer.alone import DATA, prepared, run, sgd, train
from trainer.gang import REPOSITORY


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 2, sparse=True)


class Lazy(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.LazyLinear(2))


@pytest.mark.parametrize(
    ("model", "optimizer", "error", "message"),
    [
        (Sparse(), sgd, TypeError, "words: its gradients are sparse"),
        (nn.Linear(1, 1), lambda m: torch.optim.LBFGS(m.parameters()), TypeError, "LBFGS computes the loss several"),
        (nn.Linear(1, 1), lambda m: torch.optim.SparseAdam(m.parameters()), TypeError, "only dense ones are summed"),
        (nn.Linear(1, 1), lambda m: [sgd(m), sgd(m)], TypeError, "optimizer: expected one, found several"),
        (nn.Linear(1, 1), lambda m: m, TypeError, "expected a torch.optim.Optimizer, found Linear"),
        (Lazy(), lambda _: sgd(nn.Linear(1, 1)), TypeError, "0.weight: has no shape yet"),
        (DataParallel(nn.Linear(1, 1)), sgd, TypeError, "DataParallel sums gradients over workers by itself"),
        (
            nn.Linear(1, 1),
            lambda m: sgd(m, nn.Linear(3, 2)),
            ValueError,
            r"holds 2 parameters.*\(2, 3\), \(2,\).*\[model",
        ),
        (nn.Embedding(5, 2, max_norm=1.0), sgd, TypeError, "max_norm changes weights in forward"),
        (len, lambda _: sgd(nn.Linear(1, 1)), TypeError, "expected a torch.nn.Module"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_a_reason(
    model: Any, optimizer: Callable[[Any], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        heterotrain.join().prepare(model, optimizer(model), DATA)


class Holding(nn.Linear):
    """A layer with a buffer."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(2, 1)
        self.register_buffer("held", tensor)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.eye(2).to_sparse(), "held: is sparse.*put them together in forward"),
        (torch.ones(2, device="meta"), "held: is on the meta device"),
        (torch.ones(1).expand(3), "held: its elements lie in the same memory"),
        (torch.zeros(2, dtype=torch.uint8).view(torch.uint4), "held: is of torch.uint4"),
        (nn.UninitializedBuffer(), "held: has no shape yet"),
    ],
)
def test_what_cannot_be_brought_to_other_workers_is_refused_by_name(tensor: torch.Tensor, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        prepared(Holding(tensor))
    with pytest.raises(TypeError, match=f"average.{message}"):
        prepared()[0].register(average=Holding(tensor))


class Adapted(nn.Linear):
    """A model whose state is its trained bias alone; `strict`: which it then cannot load."""

    def __init__(self, *, strict: bool, keeps: str = "bias") -> None:
        super().__init__(2, 1)
        self.weight.requires_grad_(False)
        self.strict, self.keeps = strict, keeps

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {name: each for name, each in super().state_dict(*args, **kwargs).items() if name == self.keeps}

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        return super().load_state_dict(state_dict, strict=self.strict)


class Growing(nn.Linear):
    """A model that makes a buffer in its first forward."""

    def __init__(self) -> None:
        super().__init__(2, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "scale"):
            self.register_buffer("scale", torch.ones(1))
        return super().forward(inputs)


@pytest.mark.parametrize(
    ("model", "registered", "message"),
    [
        (Adapted(strict=True), {}, 'the model: .*its own state_dict.*Missing key.*"weight"'),
        (Adapted(strict=False, keeps="weight"), {}, "the model: .*lacks bias, which is trained"),
        (nn.Linear(2, 1), {"average": Adapted(strict=True)}, "object 'average': .*Missing key.*\"weight\""),
        (Growing(), {}, "the model: .*scale.* since the loop began"),
    ],
)
def test_a_model_that_could_not_load_its_own_checkpoint_is_found_out_in_the_first_step(
    model: nn.Module, registered: dict[str, Any], message: str
) -> None:
    session, *parts = prepared(model)
    session.register(**registered)
    with pytest.raises(CheckpointError, match=message):
        run(session, *parts)
    assert session.step <= 1


class InHalf(nn.Linear):
    """A model whose state is half as precise as its weights."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {name: each.half() for name, each in super().state_dict(*args, **kwargs).items()}


def test_asking_whether_a_state_can_be_loaded_changes_nothing() -> None:
    model = InHalf(2, 1)
    before = model.weight.clone()
    _, _, _, batches = prepared(model)
    next(iter(batches))
    assert torch.equal(model.weight, before)
    run(*prepared(Adapted(strict=False)))


SCALED = "s.scale((m(x) - y).mean()).backward()"


@pytest.mark.parametrize(
    ("given", "loop", "message"),
    [
        ("s.prepare(m, o, iter([]))", "", "the data set has no length"),
        ("s.scale(torch.ones(1))", "", r"before session\.prepare"),
        ("s.prepare(m, o, d); s.prepare(m, o, d)", "", "called already"),
        ("s.prepare(m, o, d)[1].step()", "", "without a new batch"),
        ("s.register(thing=m)", "", r"between session\.prepare\(\) and the loop"),
        ("s.prepare(m, o, d); s.register(thing=3)", "", "thing: has no state_dict"),
        ("s.prepare(m, o, d, counted=True, backward_passes=2)", "", "counted: has one count"),
        ("", "pass", r"optimizer\.step\(\) was not called"),
        ("", "(m(x) - y).mean().backward(); o.step()", r"did not go through session\.scale\(\)"),
        ("", f"{SCALED}; {SCALED}; o.step()", r"backward\(\) was called 2 times for one batch"),
        (
            "",
            "loss = s.scale((m(x) - y).mean()); loss.backward(retain_graph=True); loss.backward(); o.step()",
            r"backward\(\) was called 2 times for one batch",
        ),
        ("passes = 2", f"{SCALED}; o.step()", r"called 1 times through what session\.scale\(\) returned, where 2 was"),
        ("", f"{SCALED}; m(x).mean().backward(); o.step()", r"from a loss that did not go through session\.scale\(\)"),
        ("", f"{SCALED}; o.step()", "gradients of the batch before were there still"),
        (
            "from torch.utils.checkpoint import checkpoint",
            "s.scale(checkpoint(m, x.requires_grad_(), use_reentrant=True).mean()).backward()",
            "call it with use_reentrant=False",
        ),
    ],
)
def test_a_script_that_errs_is_told_how(given: str, loop: str, message: str) -> None:
    session, model = heterotrain.join(batch_size=4, epochs=2), nn.Linear(2, 1)
    here: dict[str, Any] = {"s": session, "m": model, "o": sgd(model), "d": DATA, "torch": torch, "passes": 1}
    program = f"{given}\n"
    if loop:
        program += f"m, o, bs = s.prepare(m, o, d, backward_passes=passes)\nfor x, y in bs: {loop}"
    with pytest.raises((RuntimeError, TypeError, ValueError), match=message):
        exec(program, here)


WITHOUT_GUARD = """
import heterotrain, torch
session = heterotrain.join(batch_size=4, steps=2)
model = torch.nn.Linear(2, 1)
data = torch.utils.data.DataLoader([torch.ones(2)] * 8, num_workers=1, multiprocessing_context="spawn")
for batch in session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data)[2]: pass
"""


@pytest.mark.processes
def test_a_script_that_its_own_processes_import_is_told_of_the_main_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WITHOUT_GUARD)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "join() was called in SpawnProcess-1, a process that multiprocessing has started" in done.stderr
    assert 'put what the script does under `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]


def test_loops_of_the_scripts_own_may_go_around_the_loop_over_batches(caplog: pytest.LogCaptureFixture) -> None:
    session, model, optimizer, batches = prepared()
    for _ in session.epochs():
        for number, _ in enumerate(train(session, model, optimizer, batches), 1):
            if number == session.steps_per_epoch:
                break  # where it ends anyway
    assert session.step == 6
    session, model, optimizer, batches = prepared()
    for _ in range(3):
        run(session, model, optimizer, batches)
    assert session.step == 6
    assert "write `for epoch in session.epochs():`" in caplog.text


def test_parameters_that_the_optimizer_lacks_are_named_and_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1))
    before = [each.clone() for each in model[1].parameters()]
    run(*prepared(model, sgd(model[0])))
    assert "the optimizer has not 1.weight, 1.bias" in caplog.text
    assert all(torch.equal(one, other) for one, other in zip(before, model[1].parameters(), strict=True))
    assert all(each.grad is None for each in model[1].parameters())


def test_alone_too_gradients_of_all_passes_add_up_after_the_last_one() -> None:
    own = nn.Linear(2, 1)
    session, model, optimizer, batches = prepared(own, epochs=1, backward_passes=2)
    for inputs, targets in batches:
        losses = [(model(inputs) - targets).square().mean(), model(inputs).square().mean()]
        wanted = torch.autograd.grad(sum(losses), list(own.parameters()), retain_graph=True)
        session.scale(losses[0]).backward()
        assert own.weight.grad is None
        session.scale(losses[1]).backward()
        assert torch.allclose(own.weight.grad, wanted[0])
        optimizer.step()
        optimizer.zero_grad()


def test_a_backward_that_raised_is_named_when_its_batch_is_committed() -> None:
    own = nn.Linear(2, 1)
    session, model, optimizer, batches = prepared(own)
    own.weight.register_hook(lambda _: 1 / 0)
    inputs, targets = next(iter(batches))
    with pytest.raises(ZeroDivisionError):
        session.scale((model(inputs) - targets).square().mean()).backward()
    with pytest.raises(RuntimeError, match="did not come to its end"):
        optimizer.step()


def test_what_a_script_computes_its_loop_from_is_known_before_it() -> None:
    session, model, optimizer, batches = prepared()
    assert (session.total_steps, session.steps_per_epoch, len(batches)) == (6, 3, 3)
    assert (session.global_batch_size, session.world_size, session.leader) == (4, 1, True)
    assert math.isnan(session.loss)
    schedule = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=session.total_steps)
    session.register(schedule=schedule)
    for step in train(session, model, optimizer, batches):
        with torch.no_grad():
            assert session.loss > 0
        assert schedule.last_epoch == step
    with pytest.raises(RuntimeError, match=r"after session\.prepare"):
        _ = heterotrain.join(epochs=3).total_steps
    assert heterotrain.join(steps=9).total_steps == 9


def test_the_loss_is_that_of_the_global_batch_and_not_the_weighted_share() -> None:
    session, model, optimizer, batches = prepared(epochs=1)
    for inputs, targets in batches:
        loss = (model(inputs) - targets).square().mean()
        session.scale(loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert session.loss == pytest.approx(loss.item())


def test_parts_are_unfrozen_and_given_to_the_optimizer_between_two_epochs() -> None:
    own = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    own[0].requires_grad_(False)
    before = own[0].weight.clone()
    session, model, optimizer, batches = prepared(own, sgd(own[1]))
    for epoch in session.epochs():
        if epoch == 1:
            assert torch.equal(own[0].weight, before)
            for _ in range(2):  # a script that goes on from a checkpoint adds what the optimizer has from it
                optimizer.add_param_group({"params": own[0].requires_grad_(True).parameters(), "lr": 0.01})
        run(session, model, optimizer, batches)
    assert len(optimizer.param_groups) == 2
    assert not torch.equal(own[0].weight, before)


@pytest.mark.parametrize("counted", [False, True])
def test_the_loss_of_an_epoch_is_the_mean_over_its_samples_or_over_what_is_counted(counted: bool) -> None:
    session = heterotrain.join(batch_size=5, epochs=2)
    own = nn.Linear(2, 1)
    model, optimizer, batches = session.prepare(own, sgd(own), DATA, counted=counted)
    for _ in session.epochs():
        total, divisor = 0.0, 0
        for inputs, targets in batches:
            losses = (model(inputs) - targets).square()
            chosen = losses[inputs[:, :1] > 0.2] if counted else losses
            total, divisor = total + chosen.sum().item(), divisor + len(chosen)
            count = len(chosen) if counted else None
            session.scale(chosen.mean() if len(chosen) else losses.sum() * 0, count).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert session.epoch_loss == pytest.approx(total / divisor)


@pytest.mark.parametrize("title", ["Several optimizers", "A state that is carried from batch to batch"])
def test_the_ways_round_that_are_documented_train(title: str) -> None:
    text = (REPOSITORY / "docs" / "training-script.md").read_text()
    code = text.partition(f"## {title}")[2].partition("```python\n")[2].partition("```")[0]
    session = heterotrain.join(batch_size=4, epochs=2)
    steps = torch.arange(96.0).reshape(12, 8, 1) / 96
    own = nn.RNN(1, 1, batch_first=True)
    here: dict[str, Any] = {"torch": torch, "session": session, "model": own, "criterion": nn.functional.mse_loss}
    here |= {"sgd": torch.optim.SGD([own.weight_hh_l0], lr=0.1, momentum=0.9), "optimizer": sgd(own)}
    here |= {"adam": torch.optim.Adam([own.weight_ih_l0, own.bias_hh_l0, own.bias_ih_l0])}
    here["dataset"] = here["stretches"] = torch.utils.data.TensorDataset(steps, steps)
    before = [each.clone() for each in own.parameters()]
    exec(code, here)
    model, optimizer = here["model"], here["optimizer"]
    for inputs, targets in here["batches"] if "Together" in code else ():
        session.scale((model(inputs)[0] - targets).square().mean()).backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.zero_grad()
    assert session.step == 6
    assert not any(torch.equal(one, other) for one, other in zip(before, own.parameters(), strict=True))
    assert len(optimizer.state) == (4 if "Together" in code else 0)


def test_copies_of_a_prepared_model_are_of_the_scripts_own() -> None:
    own = nn.Linear(2, 1)
    session, model, optimizer, batches = prepared(own)
    copied = copy.deepcopy(model)
    stream = io.BytesIO()
    torch.save([model, optimizer], stream)
    stream.seek(0)
    with torch.serialization.safe_globals([nn.Linear, torch.optim.SGD, defaultdict, dict]):
        loaded, reloaded = torch.load(stream, weights_only=True)
    assert type(reloaded) is torch.optim.SGD
    for each in (copied, loaded, copy.copy(model)):
        assert type(each) is nn.Linear
        assert torch.equal(each.weight, own.weight)
    assert isinstance(model, nn.Linear)
    assert repr(model) == repr(own)
    run(session, model, optimizer, batches)
    assert not torch.equal(copied.weight, own.weight)


def test_what_is_saved_of_a_model_that_trained_is_what_the_script_alone_would_have_saved() -> None:
    own = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    plain = copy.deepcopy(own)
    session, model, optimizer, batches = prepared(own)
    GradientSum(own, Reducing(), torch.device("cpu"), always_touch=False).without_samples()
    saved = []
    for _ in train(session, model, optimizer, batches):
        plain.load_state_dict(own.state_dict())
        for each in (model, plain):
            stream = io.BytesIO()
            torch.save(each, stream)
            saved.append(stream.getvalue())
    assert saved[0::2] == saved[1::2]


def test_a_prepared_model_is_changed_as_the_scripts_own() -> None:
    own = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 1))
    _, model, _, _ = prepared(own)
    assert [*model.children()] == [*own]
    assert not model.eval().training
    assert not any(each.training for each in own.modules())
    assert model.double() is model
    assert {each.dtype for each in own.parameters()} == {torch.float64}


def other_weights(model: nn.Sequential) -> None:
    model.load_state_dict({name: each + 1 for name, each in model.state_dict().items()}, assign=True)


def other_parameter(model: nn.Sequential) -> None:
    model[1].bias = nn.Parameter(torch.zeros(1))


def other_layer(model: nn.Sequential) -> None:
    model[1] = nn.Linear(2, 1)


@pytest.mark.parametrize(
    ("replace", "before", "within"),
    [
        (other_weights, "0.weight, 0.bias, 1.weight, 1.bias", "weight, bias, weight, bias"),
        (other_parameter, "1.bias", "bias"),
        (other_layer, "1.weight, 1.bias", "1"),
    ],
)
def test_parameters_that_others_have_replaced_are_named(
    replace: Callable[[nn.Sequential], None], before: str, within: str
) -> None:
    for name, in_loop in [(before, False), (within, True)]:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        session, prepared_model, optimizer, batches = prepared(model)
        if not in_loop:
            replace(model)
        with pytest.raises(RuntimeError, match=f"^{name} of the model: replaced .* without assign=True"):
            for step in train(session, prepared_model, optimizer, batches):
                if step == 2:
                    replace(model)
        assert session.step == (2 if in_loop else 0)


@pytest.mark.parametrize("raw", [True, False])
def test_a_plateau_schedule_that_is_stepped_in_the_loop_is_refused_at_once(raw: bool) -> None:
    plain = nn.Linear(2, 1)
    own, other = sgd(plain), sgd(nn.Linear(2, 1))
    session, model, optimizer, batches = prepared(plain, own)
    plateau, free = (lr_scheduler.ReduceLROnPlateau(each) for each in (own if raw else optimizer, other))
    with pytest.raises(RuntimeError, match="ReduceLROnPlateau was stepped in the loop"):
        for _ in session.epochs():
            plateau.step(0.5)
            for step in train(session, model, optimizer, batches):
                free.step(0.5)
                if step == 2:
                    plateau.step(0.5)
    assert session.step == 2
    plateau.step(0.5)


class Few:
    """A sampler that has no length, so that its loader has none."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_batches_have_what_scripts_read_of_a_loader() -> None:
    loader = DataLoader(DATA, batch_size=3, shuffle=True, num_workers=0, collate_fn=default_collate, drop_last=True)
    session, _, _, batches = prepared(data=loader)
    assert batches.dataset is DATA and len(batches.dataset) == 12
    assert batches.sampler is loader.sampler and batches.collate_fn is default_collate
    assert (batches.num_workers, batches.pin_memory, batches.drop_last) == (0, False, False)
    assert batches.batch_size == session.global_batch_size == 4
    with pytest.raises(AttributeError, match="nothing"):
        _ = batches.nothing
    unsized = DataLoader(DATA, sampler=Few())
    assert prepared(data=unsized)[3].sampler is unsized.sampler
    plain = prepared()[3]
    assert plain.dataset is DATA and len(plain.sampler) == 12


def test_a_closure_is_run_once_and_its_loss_returned() -> None:
    session, model, optimizer, batches = prepared(epochs=1)
    calls = []
    for inputs, targets in batches:

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(inputs) - targets).square().mean()  # noqa: B023 - it is run at once
            session.scale(loss).backward()
            calls.append(loss.item())
            return loss

        assert optimizer.step(closure).item() == calls[-1]
    assert len(calls) == 3


def test_grad_scaler_is_refused_by_name_and_works_where_it_does_nothing() -> None:
    session, model, optimizer, batches = prepared(epochs=1)
    scaler, idle = torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu", enabled=False)
    for step, (inputs, targets) in enumerate(batches):
        loss = session.scale((model(inputs) - targets).square().mean())
        if step == 2:
            scaler.scale(loss).backward()
            with pytest.raises(TypeError, match="GradScaler is not supported"):
                scaler.step(optimizer)
            break
        idle.scale(loss).backward()
        idle.step(optimizer)
        optimizer.zero_grad()


def test_functions_after_a_step_see_it_committed() -> None:
    session, model, optimizer, batches = prepared()
    seen: list[int] = []
    session.after_step(lambda: seen.append(session.step))
    run(session, model, optimizer, batches)
    assert seen == [1, 2, 3, 4, 5, 6]
    with pytest.raises(RuntimeError, match=r"after_step\(\) belongs between"):
        session.after_step(print)


def test_a_gradient_penalty_and_forwards_of_the_scripts_own_model_are_a_part_of_the_loss() -> None:
    own = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    session, model, optimizer, batches = prepared(own)
    for inputs, targets in batches:
        inputs.requires_grad_()
        outputs = model(inputs)
        (slopes,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
        loss = (own(inputs) - targets).square().mean() + slopes.square().sum()
        session.scale(loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert session.step == 6


def test_a_parameter_group_added_in_the_loop_is_found_out() -> None:
    session, model, optimizer, batches = prepared()
    with pytest.raises(RuntimeError, match="a parameter group was added"):
        for step in train(session, model, optimizer, batches):
            if step == 2:
                optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def test_a_script_that_has_enough_ends_early_and_well() -> None:
    session, model, optimizer, batches = prepared()
    for step in train(session, model, optimizer, batches):
        if step == 2:
            session.stop("it is good enough")
    assert session.step == 2
    with pytest.raises(RuntimeError, match=r"used before session\.prepare"):
        heterotrain.join().stop("why")


def test_an_epoch_that_is_not_gone_through_is_an_error() -> None:
    session, *_ = prepared()
    with pytest.raises(RuntimeError, match="the loop over the batches of epoch 0 was not gone through"):
        for _ in session.epochs():
            pass


def test_the_first_process_prepares_while_others_wait_and_is_followed_if_it_fails(tmp_path: Path) -> None:
    marker, order = tmp_path / "data" / "ready", []

    def come(name: str) -> None:
        with first_here(marker) as first:
            order.append((name, first))

    with pytest.raises(OSError, match="disk"), first_here(marker) as first:
        assert first
        raise OSError("disk full")
    with first_here(marker) as first:
        assert first
        other = Thread(target=come, args=("other",))
        other.start()
        other.join(0.2)
        order.append(("mine", True))
    other.join()
    come("late")
    assert order == [("mine", True), ("other", False), ("late", False)]


def test_a_connection_of_another_thread_to_another_host_or_port_is_no_generations() -> None:
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        for host, ports, ends in (("10.0.0.7", [port], False), ("127.0.0.1", [], False), ("127.0.0.1", [port], True)):
            cutter = SocketCutter(hosts=(host,))
            with cutter.watch():
                near = socket.create_connection(listening.getsockname())
                far, _ = listening.accept()
            cutter.claim(ports)
            with near, far:
                cutter.cut()
                far.settimeout(5)
                if ends:
                    assert far.recv(1) == b""
                else:
                    near.sendall(b"x")
                    assert far.recv(1) == b"x"


def test_alone_what_is_measured_is_shown_unless_the_script_shows_logs_itself() -> None:
    program = (
        "import logging, sys, torch, heterotrain; from torch import nn\n"
        "if len(sys.argv) > 1: logging.basicConfig(level=logging.ERROR)\n"
        "s = heterotrain.join(batch_size=4); m = nn.Linear(2, 1)\n"
        "d = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))\n"
        "m, o, bs = s.prepare(m, torch.optim.SGD(m.parameters(), lr=0.1), d)\n"
        "s.evaluate(d, lambda m, b: {'mean': m(b[0]).sum()})\n"
        "for x, y in bs: s.scale((m(x) - y).square().mean()).backward(); o.step(); o.zero_grad()"
    )
    for arguments, shown in (([], 1), (["own"], 0)):
        command = [sys.executable, "-c", program, *arguments]
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
        assert ran.stderr.count("step 2: mean ") == shown, ran.stderr
