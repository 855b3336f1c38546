"""Asynchronous jobs: what their servers train is what their ledgers say, whoever comes, goes, and fails meanwhile."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from heterotrain import worker_metrics as table
from heterotrain.contract import TrainingConfig
from trainer.served import ServedGang, assert_each_sample_once, replay
from trainer.story import EXACT, SCRIPT, SEED, difference, in_plain_loop, undisturbed

pytestmark = pytest.mark.processes

TWO_EPOCHS = TrainingConfig(epochs=2, seed=SEED)


def command(folder: Path, *options: str) -> list[str]:
    return [SCRIPT, "--out", str(folder), *options]


@pytest.mark.parametrize(("optimizer", "push"), [("sgd", "Gradients"), ("adam", "Gradients"), ("adam", "Model")])
def test_one_worker_and_a_server_train_as_plain_pytorch(tmp_path: Path, optimizer: str, push: str) -> None:
    config = replace(TWO_EPOCHS, push=push)
    with ServedGang(tmp_path, command(tmp_path, "--optimizer", optimizer), [96], config, micro=[40]) as gang:
        gang.succeed()
        assert [gang.ending(number).leader for number in (0, gang.server)] == [False, True]
        for number in (0, gang.server):
            worst = difference(gang.saved(number), undisturbed(96, 2, optimizer).weights)
            assert worst < EXACT, f"w-{number}'s weights differ by {worst:.1e} from those of a plain loop"


def test_without_staleness_the_weights_are_those_of_synchronous_training(tmp_path: Path) -> None:
    config = replace(TWO_EPOCHS, max_staleness=0, learning_rate_scaling="Linear", learning_rate_own_batch=100)
    with ServedGang(tmp_path, command(tmp_path, "--optimizer", "plain"), [50, 30, 20], config) as gang:
        gang.succeed()
        synchronous = in_plain_loop([(100, 1.0)] * 30, 2, "plain")
        worst = difference(gang.saved(gang.server), synchronous.weights)
        assert worst < EXACT, f"weights differ by {worst:.1e} from those of whole global batches"
        updates = gang.updates()
        assert {each.version for each in updates} == set(range(0, 90, 3)), "all of a round are of one version"
        assert_each_sample_once(updates, 2)
        assert difference(gang.saved(gang.server), replay(updates, "plain")) < EXACT


def test_every_sample_is_applied_once_whoever_is_killed_or_joins(tmp_path: Path) -> None:
    config = replace(
        TWO_EPOCHS,
        epochs=4,
        checkpoint_path=str(tmp_path / "checkpoints"),
        checkpoint_every_steps=10,
        heartbeat_timeout_seconds=2.0,
    )
    with ServedGang(tmp_path, command(tmp_path, "--optimizer", "adam", "--lasting"), [32, 24, 16], config) as gang:
        first = gang.server
        gang.await_metric(first, table.STEP.name, 12)
        gang.processes[1].kill()
        joiner = len(gang.members)
        gang.start(20)
        gang.change({0: 32, 2: 16, joiner: 20})
        gang.await_log(first, f"{gang.members[joiner].name} has entered")
        gang.await_metric(first, table.CHECKPOINT_STEP.name, 20)
        gang.processes[first].kill()
        second = gang.serve()
        for number in (0, 2, joiner):
            gang.await_log(number, "the parameter server is lost")
        gang.await_log(second, "has entered", times=3)
        (tmp_path / "go").touch()
        gang.succeed(0, 2, joiner, second)
        later = gang.updates(second)
        updates = [*(each for each in gang.updates(first) if each.step < later[0].step), *later]
        assert_each_sample_once(updates, 4)
        assert {each.worker for each in updates} == {"w-0", "w-1", "w-2", f"w-{joiner}"}
        expected = replay(updates, "adam")
        for number in (0, 2, joiner, second):
            worst = difference(gang.saved(number), expected)
            assert worst < EXACT, f"w-{number}'s weights differ by {worst:.1e} from those of a replay of the ledger"


SCRIPT_BY_EPOCHS = """
import json, os, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import TensorDataset
import heterotrain

session = heterotrain.join()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
teacher = nn.Linear(2, 8).requires_grad_(False)
data = TensorDataset(torch.randn(200, 2), torch.randn(200, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
(model, teacher), optimizer, batches = session.prepare([model, teacher], optimizer, data)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
session.register(schedule=schedule)
seen = {"after": 0, "epochs": [], "accuracy": []}
try:
    session.total_steps
except RuntimeError as error:
    seen["length"] = str(error)
def count():
    seen["after"] += 1
    with torch.no_grad():
        model[0].bias.mul_(0.9)
        teacher.weight.lerp_(model[0].weight, 0.1)
session.after_step(count)
session.evaluate(data, lambda models, batch: {"error": (models[0](batch[0]) - batch[1]).square().sum()})
for epoch in session.epochs():
    for inputs, targets in batches:
        session.scale((model(inputs) - targets).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if epoch == 2 and os.environ["HETEROTRAIN_WORKER"] == "w-0":
            session.stop("enough")
    seen["epochs"].append(epoch)
    seen["error"] = session.metrics.get("error")
seen |= {"step": session.step, "leader": session.leader, "mean": model[1].running_mean.tolist()}
seen["changed"] = [model[0].bias.tolist(), teacher.weight.tolist()]
seen["rate"] = schedule.get_last_lr()[0]
Path(os.environ["HETEROTRAIN_TERMINATION_LOG"]).with_suffix(".seen").write_text(json.dumps(seen))
"""


def test_scripts_have_epochs_evaluations_and_an_end_of_their_own(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT_BY_EPOCHS)
    config = TrainingConfig(epochs=50, seed=SEED, max_staleness=2)
    with ServedGang(tmp_path, [str(script)], [20, 12], config) as gang:
        gang.succeed()
        seen = [json.loads((tmp_path / f"{each.uid}.seen").read_text()) for each in gang.members]
        server, *workers = seen[gang.server], seen[0], seen[1]
        evaluated = [record.step for record in gang.evaluations(gang.server)]
    assert server["leader"] and not any(each["leader"] for each in workers)
    assert server["epochs"] == [0, 1, 2], "the server stops when a worker's script says so"
    assert server["after"] == server["step"] == evaluated[-1], "after_step and evaluate see each step of the job"
    assert len(evaluated) == 3
    assert "goes with training.steps" in server["length"], "how many updates epochs take is not known before the loop"
    assert {each["step"] for each in workers} == {server["step"]}
    assert all(each["error"] == server["error"] for each in workers), "workers learn what the server has measured"
    assert all(each["mean"] == server["mean"] != [0.0] * 8 for each in workers), "and its running statistics"
    assert all(each["changed"] == server["changed"] for each in workers), "and what after_step has changed there"
    assert server["rate"] == pytest.approx(0.1 * 0.99 ** server["step"])
