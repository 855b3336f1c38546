"""Parts of the training library that need no other worker."""

from __future__ import annotations

from collections import OrderedDict, deque, namedtuple
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import heterotrain
from heterotrain import contract
from heterotrain.contract import Member, Plan, TrainingConfig
from heterotrain.data.order import KEYED, LARGE, PERMUTATION, Order
from heterotrain.data.sampler import Position, Rules, Share, epoch_order
from heterotrain.data.split import Split
from heterotrain.gradients.accumulation import Accumulator
from heterotrain.gradients.counting import checked_count
from heterotrain.gradients.precision import Arithmetic, in_float32
from heterotrain.gradients.reduction import Witness
from heterotrain.gradients.wire import StagedWire
from heterotrain.groups.assembly import MembershipError
from heterotrain.groups.convening.roster import Number
from heterotrain.groups.generation import CollectiveError, Generation
from heterotrain.groups.sockets import SocketCutter
from heterotrain.job.worker import MissingDeviceError, choose_device
from heterotrain.origin import Origin
from heterotrain.state import checkpoint
from heterotrain.state.batch_norm import has_batch_norm
from heterotrain.state.buffers import SharedBuffers
from heterotrain.state.checkpoint import CheckpointError
from heterotrain.state.hyperparameters import Hyperparameters
from heterotrain.state.training_state import TrainingState
from heterotrain.training.running_step import RunningStep
from heterotrain.training.server_line import ServerLostError

CPU = torch.device("cpu")
Pair = namedtuple("Pair", ["one", "other"])


@pytest.fixture
def generation() -> Iterator[Generation]:
    """The groups of a job of one worker, in this process."""
    generation = Generation(Plan(1, 1, "step", (Member("a", "", "", "", 1),)), Number(1, 0), 0, SocketCutter())
    generation.make_groups(dist.HashStore())
    yield generation
    generation.leave()


def test_gradients_of_micro_batches_add_up_whatever_the_script_does_to_them_meanwhile() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    inputs = torch.randn(4, 3)
    model(inputs).square().sum().backward()
    whole = [parameter.grad for parameter in model.parameters()]
    accumulator = Accumulator(model)
    accumulator.collect()
    for part in inputs[:3].split(1):
        model.zero_grad(set_to_none=False)
        model(part).square().sum().backward()
        assert nn.utils.clip_grad_norm_(model.parameters(), 1e-6) == 0
        assert all(parameter.grad is None for parameter in model.parameters())
    accumulator.release()
    model.zero_grad()
    model(inputs[3:]).square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    accumulator.add_to(list(model.parameters()), gradients)
    torch.testing.assert_close(gradients, whole)


def test_a_witness_sees_that_gradients_were_clipped_or_changed_their_signs() -> None:
    model = nn.Linear(3, 1)
    model(torch.ones(2, 3)).sum().backward()
    witness = Witness()
    parameters = list(model.parameters())
    witness.saw(parameters, [each.grad for each in parameters if each.grad is not None])
    assert not witness.changed
    for parameter in parameters:
        parameter.grad.neg_()
    assert witness.changed
    for parameter in parameters:
        parameter.grad.neg_()
    assert not witness.changed
    nn.utils.clip_grad_norm_(parameters, 0.1)
    assert witness.changed


def test_hyperparameters_are_what_a_step_computes_with_and_not_how() -> None:
    parameters = [{"params": [nn.Parameter(torch.ones(()))]}, {"params": [nn.Parameter(torch.ones(2))], "lr": 0.5}]
    here = torch.optim.AdamW(deepcopy(parameters), lr=0.1, foreach=True)
    there = torch.optim.AdamW(deepcopy(parameters), lr=torch.tensor(0.1), fused=True)
    one, other = Hyperparameters(here), Hyperparameters(there)
    one.settle()
    other.settle()
    assert one.names == other.names
    assert {"lr", "weight_decay", "betas[0]", "maximize"} <= set(one.names)
    here.param_groups[0].update(lr=0.3, betas=(0.5, 0.6))
    other.take([float(each) for each in one.values()])
    assert [float(each) for each in other.values()] == pytest.approx([float(each) for each in one.values()])
    assert there.param_groups[0]["lr"].item() == pytest.approx(0.3)
    assert there.param_groups[0]["betas"] == (0.5, 0.6)


def used(**rates: float) -> int:
    """The checksum after ten steps, with a learning rate of 0.1 but for steps such as `step_3`."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(()))], lr=0.1)
    hyperparameters = Hyperparameters(optimizer)
    hyperparameters.settle()
    for step in range(10):
        optimizer.param_groups[0]["lr"] = rates.get(f"step_{step}", 0.1)
        hyperparameters.used(step, hyperparameters.values())
    return hyperparameters.checksum


def test_a_checksum_of_hyperparameters_covers_each_step_and_not_only_the_newest() -> None:
    assert used() == used()
    assert len({used(), used(step_3=0.2), used(step_4=0.2), used(step_3=0.2, step_4=0.2), used(step_3=0.3)}) == 5


def test_a_worker_without_samples_takes_over_from_the_first_that_has_some_and_one_with_many_takes_passes() -> None:
    members = (Member("a", "", "", "", 0), Member("b", "", "", "", 7, 3), Member("c", "", "", "", 2))
    steps = [
        RunningStep.at(Position(4, 1, 10), Split.of(Plan(1, 1, "step", members)), rank, Rules(100)) for rank in range(3)
    ]
    assert [step.source for step in steps] == [1, 1, 1]
    assert [step.own_samples for step in steps] == [0, 7, 2]
    for step in steps:
        step.open_part()
    assert [step.share for step in steps] == [None, Share(1, 10, 12), Share(1, 17, 19)]
    assert [step.is_last_part for step in steps] == [True, False, True]
    assert RunningStep.at(Position(), Split.of(Plan(1, 1, "step", members[1:])), 0, Rules(100)).source is None


def test_a_staged_bucket_is_summed_in_place_and_broken_groups_are_reported(generation: Generation) -> None:
    wire = StagedWire(generation, CPU)
    buckets = [torch.full((size,), float(size)) for size in (3, 5, 3)]
    sums = [wire.sum(bucket).wait() for bucket in buckets]
    assert [each.tolist() for each in sums] == [[3.0] * 3, [5.0] * 5, [3.0] * 3]
    assert all(one is other for one, other in zip(sums, buckets, strict=True))
    generation.break_up("lost a peer")
    with pytest.raises(RuntimeError, match="lost a peer"):
        wire.sum(buckets[0]).wait()


def test_bfloat16_is_what_the_model_computes_in_and_not_what_the_script_sees() -> None:
    model, seen = nn.Linear(4, 2), []
    model.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    for precision in ("bfloat16", "float32"):
        arithmetic = Arithmetic(precision, CPU)
        outputs = arithmetic.run(lambda: {"logits": model(torch.ones(1, 4))})
        assert outputs["logits"].dtype == torch.float32
        outputs["logits"].sum().backward()
    assert seen == [torch.bfloat16, torch.float32]
    assert model.weight.grad is not None
    assert model.weight.grad.dtype == torch.float32
    with pytest.raises(ValueError, match="float32, bfloat16"):
        Arithmetic("float8", CPU)


def test_outputs_of_any_kind_become_float32() -> None:
    low = torch.ones(1, dtype=torch.bfloat16)
    outputs = in_float32(OrderedDict(a=[low, (low, 3)], b=Pair(low.double(), None)))
    assert isinstance(outputs, OrderedDict)
    assert outputs["a"][0].dtype == outputs["a"][1][0].dtype == torch.float32
    assert outputs["b"] == Pair(torch.ones(1).double(), None)


@pytest.mark.parametrize("count", [-1, float("nan"), torch.tensor(float("inf"))])
def test_a_count_that_is_none_is_refused(count: float) -> None:
    with pytest.raises(ValueError, match="count"):
        checked_count(count)


def test_batch_norm_is_found_and_sync_batch_norm_refused() -> None:
    assert has_batch_norm(nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)))
    assert not has_batch_norm(nn.Sequential(nn.GroupNorm(1, 1), nn.LayerNorm(1), nn.InstanceNorm2d(1)))
    with pytest.raises(TypeError, match=r"0: SyncBatchNorm"):
        has_batch_norm(nn.Sequential(nn.SyncBatchNorm(1)))


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "TorchScript"])
def test_who_lags_behind_keeps_the_buffers_that_have_seen_its_own_samples(*, compiled: bool) -> None:
    model: Any = torch.jit.script(nn.BatchNorm1d(2)) if compiled else nn.BatchNorm1d(2)
    buffers = SharedBuffers(model)
    others = {name: torch.full_like(value, 7) for name, value in model.state_dict().items()}
    for samples, expected in ((0, 7.0), (4, 3.0)):
        model.running_mean.fill_(3)
        buffers.saw(samples)
        with buffers.kept():
            model.load_state_dict(others)
        assert model.running_mean.tolist() == [expected, expected]
        assert model.weight.tolist() == [7, 7]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_promised_gpu_that_is_missing_fails_clearly_or_is_done_without() -> None:
    with pytest.raises(RuntimeError, match="onMissingDevice: UseCPU"):
        choose_device(TrainingConfig(device="gpu"))
    assert choose_device(TrainingConfig(device="gpu", on_missing_device="UseCPU")) == CPU


def test_alone_weighted_samples_make_a_weighted_mean_and_a_count_must_be_as_announced() -> None:
    torch.manual_seed(0)
    session = heterotrain.join(batch_size=4)
    model = nn.Linear(2, 1)
    plain = deepcopy(model)
    inputs, targets, weights = torch.randn(8, 2), torch.randn(8), torch.tensor([1.0, 2, 3, 4, 0, 0, 0, 0])
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    data = TensorDataset(inputs, targets, weights)
    elastic, optimizer, batches = session.prepare(model, sgd, data, loss="sum", counted=True)
    for some, wanted, weight in batches:
        loss = (weight * (elastic(some).flatten() - wanted).square()).sum()
        with pytest.raises(ValueError, match="needs a count"):
            session.scale(loss)
        scaled = session.scale(loss, count=weight.sum())
        with pytest.raises(RuntimeError, match="twice"):
            session.scale(loss, count=weight.sum())
        scaled.backward()
        optimizer.step()
        optimizer.zero_grad()
    order = epoch_order(8, 0, 0)
    for part in order.split(4):
        if weights[part].sum():
            loss = (weights[part] * (plain(inputs[part]).flatten() - targets[part]).square()).sum() / weights[
                part
            ].sum()
            gradients = torch.autograd.grad(loss, list(plain.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(plain.parameters(), gradients, strict=True):
                    parameter.sub_(gradient)
    torch.testing.assert_close(list(model.parameters()), list(plain.parameters()))


class Keeper:
    """What a script might register."""

    def __init__(self, state: object) -> None:
        self.state = state

    def state_dict(self) -> dict[str, object]:
        return {"state": self.state}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.state = state["state"]


def test_a_schedule_that_computes_with_numpy_can_be_resumed_from() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + numpy.cos(numpy.pi * step / 10)))
    optimizer.step()
    schedule.step()
    assert isinstance(optimizer.param_groups[0]["lr"], numpy.floating)
    state = TrainingState(model, optimizer, 8, TrainingConfig())
    state.registered["schedule"] = schedule
    rate = float(optimizer.param_groups[0]["lr"])
    packed = checkpoint.pack(state.whole())
    optimizer.param_groups[0]["lr"] = 0.0
    state.load(checkpoint.unpack(packed))
    assert optimizer.param_groups[0]["lr"] == rate


def state_of(job_uid: str, folder: Path, width: int = 1) -> TrainingState:
    model = nn.Linear(width, 1)
    config = TrainingConfig(steps=9, checkpoint_path=str(folder))
    return TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.5), 8, config, job_uid)


def saved_by(job_uid: str, folder: Path) -> None:
    state = state_of(job_uid, folder)
    state.position = state.position._replace(step=5)
    state.save(writes=True)
    state.release()


def test_a_job_goes_on_in_the_order_that_its_checkpoint_was_written_in() -> None:
    large = LARGE + 1

    def state_in(order: Order) -> TrainingState:
        model = nn.Linear(1, 1)
        return TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.5), large, TrainingConfig(), order=order)

    earlier, order = Order(large, 0), Order(large, 0)
    written = state_in(earlier).whole()
    assert (written["schema"], written["order"]) == (checkpoint.SCHEMA_WITH_ORDER, KEYED)
    earlier.kind = PERMUTATION  # as before there were others
    old = state_in(earlier).whole()
    assert old["schema"] == checkpoint.SCHEMA and "order" not in old
    state = state_in(order)
    for document in (old, written, old):
        state.load(document)
        assert order.kind == document.get("order", PERMUTATION)
        assert state.whole().get("order") == document.get("order")
    with pytest.raises(checkpoint.CheckpointError, match="order of samples is 'sorted', which this version does not"):
        state.load(written | {"order": "sorted"})


@pytest.mark.parametrize(
    ("wrote", "reads", "taken_over"),
    [
        ("one", "another", Origin(5, "one")),
        ("", "another", Origin(5, "")),
        ("one", "one", None),
        ("one", "", None),
    ],
    ids=["earlier job", "older library", "its own", "on one machine"],
)
def test_checkpoint_of_an_earlier_job_is_known_as_such(
    tmp_path: Path, wrote: str, reads: str, taken_over: Origin | None
) -> None:
    saved_by(wrote, tmp_path)
    state = state_of(reads, tmp_path)
    state.resume()
    assert state.position.step == 5
    assert state.taken_over == taken_over


@pytest.mark.parametrize(
    ("kept", "word"), [(deque([1]), "collections.deque"), (numpy.zeros(2), "numpy"), (lambda: 0, "cannot be stored")]
)
def test_what_no_checkpoint_could_be_resumed_with_is_refused_at_the_start(kept: object, word: str) -> None:
    session = heterotrain.join()
    model = nn.Linear(1, 1)
    data = TensorDataset(torch.zeros(4, 1))
    _, _, batches = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
    session.register(keeper=Keeper({"here": [kept]}))
    with pytest.raises(CheckpointError, match=f"registered object 'keeper': its state_dict.. holds .*{word}"):
        next(iter(batches))


def test_a_prepared_model_is_used_as_the_scripts_own() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1, bias=False)
            self.register_buffer("shift", torch.ones(1))
            self.temperature = 1.0

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.layer(inputs) * self.temperature + self.shift

    session = heterotrain.join()
    own = Scaled()
    model, _, _ = session.prepare(own, torch.optim.SGD(own.parameters(), lr=0.1), TensorDataset(torch.zeros(4, 1)))
    model.temperature = 0.0
    assert model(torch.ones(1)).item() == 1.0
    model.layer = nn.Identity()
    assert isinstance(own.layer, nn.Identity)
    assert [name for name, _ in model.named_buffers()] == ["shift"]
    assert dict(model.named_modules()).keys() == dict(own.named_modules()).keys()
    assert not model.eval().training
    assert not own.training


def test_errors_bear_the_names_that_the_contract_gives_them() -> None:
    assert MissingDeviceError.__name__ == contract.ERROR_MISSING_DEVICE
    passing = (MembershipError, ServerLostError, CollectiveError, CheckpointError)
    assert {each.__name__ for each in passing} == contract.ERRORS_THAT_PASS
