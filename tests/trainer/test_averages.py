"""Moving averages, and other modules that follow the model, are the same on all workers, or the job says so."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from heterotrain.contract import Member, TrainingConfig
from heterotrain.data.sampler import Position
from heterotrain.state.hyperparameters import Hyperparameters
from heterotrain.state.replica_check import ReplicaChecksum, ReplicaError
from heterotrain.state.replica_watch import ReplicaWatch
from heterotrain.state.training_state import TrainingState
from trainer.alone import prepared, run, sgd, train
from trainer.gang import Gang

SCRIPT = """
import copy, os, torch, heterotrain
from torch import nn
from torch.optim.swa_utils import AveragedModel
s = heterotrain.join()
name = os.environ["HETEROTRAIN_WORKER"]
torch.manual_seed(len(name) + int(name[-1]))
m = nn.Linear(3, 1)
o = torch.optim.SGD(m.parameters(), lr=0.01)
d = torch.utils.data.TensorDataset(torch.arange(96.0).reshape(32, 3) / 96, torch.ones(32, 1))
average, own = AveragedModel(m), copy.deepcopy(m)
m, o, bs = s.prepare(m, o, d)
s.register(average=average, own=own)
{before}
for x, y in bs:
    s.scale(nn.functional.mse_loss(m(x), y)).backward()
    o.step(); o.zero_grad()
    {after}
torch.save(average.state_dict() | own.state_dict(), f"{out}/{name}.pt")
"""
UPDATE = "average.update_parameters(m)"


def script(folder: Path, *, before: str = "", after: str = "pass") -> list[str]:
    path = folder / "script.py"
    path.write_text(SCRIPT.replace("{before}", before).replace("{after}", after).replace("{out}", str(folder)))
    return [str(path)]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("batches", "micro"),
    [((3, 3, 2), (0, 0, 1)), pytest.param((4, 4, 0), (0, 0, 0), marks=pytest.mark.long)],
    ids=["several passes", "no samples"],
)
def test_an_average_that_is_updated_in_the_loop_stops_the_job_before_it_is_in_a_checkpoint(
    tmp_path: Path, batches: tuple[int, ...], micro: tuple[int, ...]
) -> None:
    config = TrainingConfig(steps=12, checkpoint_path=str(tmp_path / "checkpoints"), checkpoint_every_steps=4)
    with Gang(tmp_path, script(tmp_path, after=UPDATE), batches, config, micro=micro) as gang:
        assert gang.wait() == [1, 1, 1]
        logs = gang.logs()
    for rank in range(3):
        ending = gang.ending(rank)
        assert ending.fatal
        assert (
            "parameters of registered modules (average, own) of w-2 differ from the others' at step 4" in ending.message
        )
        assert "last checkpoint known to be equal: none" in ending.message
        assert "session.after_step() runs on all, once a step" in ending.message
    assert "registered 'average' is changed in the loop" in logs
    assert not list(tmp_path.glob("checkpoints/*.pt"))


@pytest.mark.processes
@pytest.mark.long
def test_registered_modules_begin_as_the_first_workers_and_are_the_same_at_the_end(tmp_path: Path) -> None:
    """Workers that seed differently have made different ones."""
    command = script(tmp_path, before=f"s.after_step(lambda: {UPDATE})")
    with Gang(tmp_path, command, (4, 0, 4), TrainingConfig(steps=6), micro=(1, 0, 0)) as gang:
        gang.succeed()
        saved = [gang.saved(rank) for rank in range(3)]
        assert not gang.has_said("is changed in the loop")
    torch.testing.assert_close(saved[1], saved[0], rtol=0, atol=0)
    torch.testing.assert_close(saved[2], saved[0], rtol=0, atol=0)
    torch.manual_seed(3)
    torch.testing.assert_close(saved[0]["weight"], nn.Linear(3, 1).weight.detach(), rtol=0, atol=0)


def by_other_numbers(average: AveragedModel, model: nn.Module) -> None:
    for kept, new in zip(average.parameters(), model.parameters(), strict=True):
        kept.data = 0.9 * kept.data + 0.1 * new.data


def by_its_state(average: AveragedModel, model: nn.Module) -> None:
    with torch.no_grad():
        for kept, new in zip(average.module.state_dict().values(), model.state_dict().values(), strict=True):
            kept.lerp_(new, 0.1)


@pytest.mark.parametrize("update", [AveragedModel.update_parameters, by_other_numbers, by_its_state])
def test_an_average_that_is_updated_in_the_loop_is_warned_of_once_also_alone(
    update: Callable[[AveragedModel, nn.Module], None], caplog: pytest.LogCaptureFixture
) -> None:
    own = nn.Linear(2, 1)
    session, model, optimizer, batches = prepared(own)
    average = AveragedModel(own)
    session.register(average=average)
    for _ in train(session, model, optimizer, batches):
        update(average, own)
    assert caplog.text.count("registered 'average' is changed in the loop") == 1


def test_an_average_that_is_updated_after_steps_or_between_epochs_is_not_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is outside the loop over the batches runs on all workers."""
    own = nn.Linear(2, 1)
    session, model, optimizer, batches = prepared(own)
    by_step, by_hook, by_epoch, target = AveragedModel(own), AveragedModel(own), AveragedModel(own), copy.deepcopy(own)
    session.register(by_step=by_step, by_hook=by_hook, by_epoch=by_epoch, target=target)
    session.after_step(lambda: by_step.update_parameters(own))
    optimizer.register_step_post_hook(lambda *_: by_hook.update_parameters(own))
    for _ in session.epochs():
        run(session, model, optimizer, batches)
        by_epoch.update_parameters(own)
    assert [int(each.n_averaged) for each in (by_step, by_hook, by_epoch)] == [6, 6, 2]
    assert "is changed in the loop" not in caplog.text


def test_registered_modules_were_equal_where_they_were_compared_last_and_not_where_the_model_was() -> None:
    model, average = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer = sgd(model)
    state = TrainingState(model, optimizer, 12, TrainingConfig())
    state.registered["average"], state.registered["counts"] = average, nn.BatchNorm1d(2, affine=False)
    state.saved_steps = [4, 8]
    watch = ReplicaWatch(Hyperparameters(optimizer), ReplicaChecksum(model, optimizer), state)
    members = [Member(f"w-{rank}", "", "", "", 4) for rank in range(3)]
    state.position = Position(step=4)
    watch.compare([watch.whole()] * 3, members)
    state.position = Position(step=9)
    watch.compare([watch.checksums(1)] * 3, members)
    state.position = Position(step=12)
    usual = watch.whole()
    with torch.no_grad():
        average.weight += 1
    with pytest.raises(
        ReplicaError, match=r"registered modules \(average\) of w-1 .* equal at step 4 still; .*checkpoint of step 4;"
    ):
        watch.compare([usual, watch.whole(), usual], members)
