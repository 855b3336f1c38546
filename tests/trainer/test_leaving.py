"""How a worker leaves: before it is a member, in the middle, after the last step; and how a script ends the job."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from heterotrain import contract
from heterotrain.contract import TrainingConfig
from heterotrain.groups.generation import GROUP_SECONDS
from heterotrain.training.leaving import Leaving
from heterotrain.training.saving import Saving
from trainer.gang import STAY, Gang

pytestmark = pytest.mark.processes

SCRIPT = """
import os, sys, time, torch, heterotrain
from torch import nn
s = heterotrain.join()
name = os.environ["HETEROTRAIN_WORKER"]
torch.manual_seed(0)
m = nn.Linear(3, 1)
o = torch.optim.SGD(m.parameters(), lr=0.01)
d = torch.utils.data.TensorDataset(torch.arange(96.0).reshape(32, 3) / 96, torch.ones(32, 1))
m, o, bs = s.prepare(m, o, d)
def train(x, y):
    s.scale(nn.functional.mse_loss(m(x), y)).backward()
    o.step(); o.zero_grad()
"""


def script(folder: Path, loop: str) -> list[str]:
    path = folder / "script.py"
    path.write_text(SCRIPT + loop)
    return [str(path)]


WHOLE = "for x, y in bs: train(x, y)"


@pytest.mark.parametrize("kind", ["dies", "hangs"])
def test_who_waits_for_groups_is_bounded_and_listens(tmp_path: Path, kind: str) -> None:
    command = ["tests/trainer/scripts/break_groups.py", "w-1", kind, *script(tmp_path, WHOLE)]
    with Gang(tmp_path, command, (4, 4), TrainingConfig(steps=3)) as gang:
        gang.await_log(0, "attempt 1.1 to form the group failed, trying again")
        gang.processes[0].send_signal(signal.SIGTERM)
        assert gang.wait_for(0) == contract.EXIT_PREEMPTED
    assert gang.ending(0).asked_to_stop


def test_groups_that_cannot_be_made_are_tried_once_more_before_a_worker_is_taken_for_hung() -> None:
    assert TrainingConfig().progress_timeout_seconds > 2 * GROUP_SECONDS


def test_who_is_asked_to_stop_before_all_have_met_says_so(tmp_path: Path) -> None:
    """The third worker never comes; the leader, whose startup deadline is ten minutes, need not wait for the second."""
    loop = "if name == 'w-2': time.sleep(3600)\n" + WHOLE
    with Gang(tmp_path, script(tmp_path, loop), (4, 2, 2), TrainingConfig(steps=3), environment=STAY) as gang:
        for rank in range(2):
            gang.await_phase(rank, contract.PHASE_STARTING)
        time.sleep(1)
        gang.processes[1].send_signal(signal.SIGTERM)
        assert gang.wait_for(1) == contract.EXIT_PREEMPTED
        assert gang.wait_for(0) == 1
    assert "w-1 left: it was asked to stop before all had met" in gang.ending(0).message


def test_a_slow_peer_is_waited_for_longer_than_the_timeout_before_groups_are_given_up(tmp_path: Path) -> None:
    loop = "for x, y in bs:\n    if name == 'w-1': time.sleep(0.7)\n    train(x, y)"
    command = ["tests/trainer/scripts/break_collective.py", "w-0", "before", "3", *script(tmp_path, loop)]
    config = TrainingConfig(steps=4, progress_timeout_seconds=0.2)
    with Gang(tmp_path, command, (4, 4), config) as gang:
        gang.succeed()
    assert "workers formed again at step 2" in gang.logs()


def test_a_script_may_leave_the_loop_once_the_last_step_is_committed(tmp_path: Path) -> None:
    loop = (
        "def run():\n    for step, (x, y) in enumerate(bs):\n        train(x, y)\n"
        "        if step == 7 and name == 'w-0': return\n        if step == 7: break\nrun()\nprint('after', s.step)"
    )
    config = TrainingConfig(steps=8, checkpoint_path=str(tmp_path / "checkpoints"))
    with Gang(tmp_path, script(tmp_path, loop), (4, 2, 2), config) as gang:
        gang.succeed()
    assert gang.logs().count("after 8") == 3
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-0000000008.pt"]


@pytest.mark.parametrize(
    ("leaving", "code", "mine"),
    [
        ("break", 0, "the script ended before the job's last step (step 3 of 1000)"),
        ("raise ValueError('no such column')", 1, "ValueError: no such column"),
        ("sys.exit('enough')", 1, "the script ended before the job's last step (step 3 of 1000)"),
    ],
)
@pytest.mark.parametrize("environment", [{}, STAY], ids=["", "members stay"])
def test_who_leaves_early_is_not_waited_for(
    tmp_path: Path, leaving: str, code: int, mine: str, environment: dict[str, str]
) -> None:
    """The others go on, or if all are needed end, too, and name who left."""
    loop = f"for x, y in bs:\n    train(x, y)\n    if name == 'w-1' and s.step == 3: {leaving}\n"
    # The process goes on for longer than anybody should wait for it.
    loop += "if name == 'w-1': time.sleep(7)"
    with Gang(tmp_path, script(tmp_path, loop), (4, 2, 2), TrainingConfig(steps=1000), environment=environment) as gang:
        others = [gang.wait_for(rank) for rank in (0, 2)]
        assert gang.wait_for(1) == code
    left = "w-1 left: its script left the loop over the batches after step 3 of 1000, by a break, a return"
    for rank in (0, 2):
        assert gang.ending(rank).finished is not bool(environment)
        assert (left in gang.ending(rank).message) is bool(environment)
        assert not gang.ending(rank).script_error
    assert others == ([1, 1] if environment else [0, 0])
    assert gang.ending(1).message == mine
    assert gang.ending(1).script_error == (code == 1 and "ValueError" in mine)


def test_who_catches_what_ended_its_loop_is_not_waited_for(tmp_path: Path) -> None:
    loop = (
        "try:\n    for x, y in bs:\n        train(x, y)\n"
        "        if name == 'w-1' and s.step == 3: raise ValueError('no such column')\n"
        "except ValueError: time.sleep(7)"
    )
    with Gang(tmp_path, script(tmp_path, loop), (4, 2, 2), TrainingConfig(steps=1000), environment=STAY) as gang:
        assert gang.wait() == [1, 0, 1]
    for rank in (0, 2):
        assert "w-1 left: its script left the loop over the batches after step 3 of 1000" in gang.ending(rank).message
    assert gang.ending(1).message == "the script ended before the job's last step (step 3 of 1000)"


@pytest.mark.parametrize("then", ["break", "pass"])
@pytest.mark.parametrize("batches", [(4, 2, 2), (8, 0, 0)])
def test_a_script_ends_the_job_well_for_all(tmp_path: Path, then: str, batches: tuple[int, ...]) -> None:
    loop = (
        f"for x, y in bs:\n    train(x, y)\n    if name == 'w-0' and s.step == 21:\n        s.stop('converged'); {then}"
    )
    config = TrainingConfig(steps=100_000, checkpoint_path=str(tmp_path / "checkpoints"))
    with Gang(tmp_path, script(tmp_path, loop), batches, config) as gang:
        gang.succeed()
    steps = {gang.ending(rank).step for rank in range(3)}
    assert len(steps) == 1
    assert 21 <= steps.copy().pop() <= 21 + 2 * 16
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [f"step-{steps.pop():010d}.pt"]
    assert "the script ends the job: converged" in gang.logs()


def test_a_pause_is_a_phase_and_its_step_is_not_measured(tmp_path: Path) -> None:
    loop = (
        "for x, y in bs:\n    train(x, y)\n"
        "    if name == 'w-0' and s.step == 5:\n        with s.pause('validation'):\n"
        f"            while not os.path.exists('{tmp_path}/go'): time.sleep(0.05)"
    )
    with Gang(tmp_path, script(tmp_path, loop), (4, 4), TrainingConfig(steps=9)) as gang:
        gang.await_log(0, "paused for validation")
        gang.await_phase(0, contract.PHASE_PAUSED)
        (tmp_path / "go").touch()
        gang.succeed()
    assert [record.mark for record in gang.series(0)][5] == "pause"


def test_a_loop_over_epochs_around_the_whole_loop_is_harmless(tmp_path: Path) -> None:
    loop = "for epoch in range(3):\n    for x, y in bs: train(x, y)\nprint('steps', s.step)"
    with Gang(tmp_path, script(tmp_path, loop), (4, 4), TrainingConfig(epochs=3)) as gang:
        gang.succeed()
    assert gang.logs().count("steps 12") == 2
    assert "write `for epoch in session.epochs():`" in gang.logs()


EPOCHS = """
s.evaluate(d, lambda m, b: {"loss": nn.functional.mse_loss(m(b[0]), b[1], reduction="sum")})
for epoch in s.epochs():
    for x, y in bs: train(x, y)
    print("epoch", name, epoch, s.step, s.steps_per_epoch, len(bs), s.total_steps, s.world_size, s.global_batch_size)
    print("measured", name, epoch, s.metrics["loss"])
print("loss", name, s.loss, s.leader)
"""


# A checkpoint is written beside training.
DIE_AFTER = """
def die_after(file):
    while not os.path.exists(file): time.sleep(0.01)
    os.kill(os.getpid(), 9)
"""


def test_epochs_of_the_scripts_own_go_on_where_a_checkpoint_ends(tmp_path: Path) -> None:
    config = TrainingConfig(epochs=4, checkpoint_path=str(tmp_path / "checkpoints"), checkpoint_every_steps=6)
    dies = f"""train(x, y); s.step == 7 and die_after({str(tmp_path / "checkpoints" / "step-0000000006.pt")!r})"""
    path = script(tmp_path, DIE_AFTER + EPOCHS.replace("train(x, y)", dies))
    (tmp_path / "a").mkdir()
    with Gang(tmp_path / "a", path, (8, 0), config, environment=STAY) as gang:
        gang.wait()
    (tmp_path / "b").mkdir()
    with Gang(tmp_path / "b", script(tmp_path, EPOCHS), (0, 8), config, generation=2) as gang:
        gang.succeed()
        found = re.findall(r"epoch (w-\d) (\d) (\d+) (\d+) (\d+) (\d+) (\d) (\d)", gang.logs())
        losses = re.findall(r"loss w-\d (\S+) (\S+)", gang.logs())
        measured = set(re.findall(r"measured w-\d (\d) (\S+)", gang.logs()))
    assert {each[:3] for each in found} == {
        (f"w-{rank}", str(epoch), str(4 * epoch + 4)) for rank in (0, 1) for epoch in (1, 2, 3)
    }
    assert {each[3:] for each in found} == {("4", "4", "16", "2", "8")}
    assert len(measured) == 3
    assert losses[0][0] == losses[1][0] != "nan"
    assert {each[1] for each in losses} == {"True", "False"}


@pytest.mark.parametrize(
    ("last_step", "sizes"),
    [("Partial", [12, 12, 8] * 3), ("Drop", [12, 12] * 3), ("Carry", [12] * 8)],
)
def test_what_does_not_fill_a_step_goes_where_the_job_says(tmp_path: Path, last_step: str, sizes: list[int]) -> None:
    config = TrainingConfig(epochs=3, last_step=last_step, checkpoint_path=str(tmp_path), checkpoint_every_steps=100)
    loop = "for x, y in bs:\n    print('saw', *(round(v * 96) // 3 for v in x[:, 0].tolist()))\n    train(x, y)"
    with Gang(tmp_path, script(tmp_path, loop), (9, 3), config) as gang:
        gang.await_step(2)
        gang.publish(4, 8)
        gang.succeed()
        seen = [int(number) for line in re.findall(r"saw (.*)", gang.logs()) for number in line.split()]
    series = [gang.series(rank) for rank in range(2)]
    assert [sum(records[step].samples for records in series) for step in range(len(sizes))] == sizes
    counts = {seen.count(sample) for sample in range(32)}
    assert counts == {3} if last_step != "Drop" else max(counts) <= 3
    assert len(seen) == sum(sizes)


NORMALIZED = "nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))"


@pytest.mark.parametrize(("model", "batches"), [("nn.Linear(3, 1)", (18, 12)), (NORMALIZED, (20, 11))])
def test_a_job_is_measured_where_every_second_step_is_smaller(
    tmp_path: Path, model: str, batches: tuple[int, int]
) -> None:
    """With BatchNorm no step may have one sample, so the step before the last is smaller by one, too."""
    command = script(tmp_path, WHOLE)
    path = Path(command[0])
    path.write_text(path.read_text().replace("m = nn.Linear(3, 1)", f"m = {model}"))
    with Gang(tmp_path, command, batches, TrainingConfig(epochs=3)) as gang:
        gang.succeed()
    assert [record.mark for record in gang.series(0)] == ["first", "partial", "", "partial", "", "partial"]
    assert "an epoch of 32 samples has 2 steps" in gang.logs()


def test_peers_of_a_frozen_leader_still_learn_that_they_are_to_stop(tmp_path: Path) -> None:
    config = TrainingConfig(steps=100_000, progress_timeout_seconds=600)
    with Gang(tmp_path, script(tmp_path, WHOLE), (4, 2, 2), config) as gang:
        gang.await_step(5)
        gang.processes[0].send_signal(signal.SIGSTOP)
        # One ends, so the other one waits for the leader, which may go on elsewhere.
        gang.processes[2].kill()
        gang.await_log(1, "will be replayed")
        gang.processes[1].send_signal(signal.SIGTERM)
        assert gang.wait_for(1) == contract.EXIT_PREEMPTED


def test_an_epochs_loop_may_be_left_where_it_ends(tmp_path: Path) -> None:
    inner = "    for step, (x, y) in enumerate(bs, 1):\n        train(x, y)\n        if step == 4: break"
    loop = f"for epoch in s.epochs():\n{inner}"
    with Gang(tmp_path, script(tmp_path, loop), (4, 4), TrainingConfig(epochs=3)) as gang:
        gang.succeed()
    assert gang.ending(0).step == 12


@pytest.mark.parametrize(
    ("is_out", "may_lack_sums", "written"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_whoever_finishes_without_an_answer_of_the_others_writes_the_last_checkpoint(
    is_out: bool, may_lack_sums: bool, written: bool
) -> None:
    """Unless they have gone on without it, or sums may be missing in it. The group and the state stand in for those of
    a worker whose peers are lost with their machine, at the very end of the job."""
    saved: list[bool] = []
    group: Any = MagicMock(
        may_write=False, is_out=is_out, may_lack_sums=may_lack_sums, protocol=contract.MEMBERS_MAY_END
    )
    state: Any = SimpleNamespace(save=lambda *, writes, beside: saved.append(writes))
    context: Any = MagicMock()
    saving = Saving(context, state, group, MagicMock())
    leaving = Leaving(context, state, group=group, exchange=MagicMock(), accounts=MagicMock(), saving=saving)
    leaving.finish(alone=True)
    assert leaving.finished
    assert saved == [written]


@pytest.mark.parametrize("may_lack_sums", [False, True])
def test_a_leader_that_is_asked_to_stop_writes_no_step_in_which_sums_may_be_missing(
    may_lack_sums: bool, caplog: pytest.LogCaptureFixture
) -> None:
    saved: list[bool] = []
    group: Any = MagicMock(may_lack_sums=may_lack_sums, protocol=contract.MEMBERS_STAY)
    state: Any = SimpleNamespace(save=lambda *, writes, beside: saved.append(writes), position=SimpleNamespace(step=5))
    context: Any = MagicMock(plans=SimpleNamespace(rank=0))
    saving = Saving(context, state, group, MagicMock())
    leaving = Leaving(context, state, group=group, exchange=MagicMock(), accounts=MagicMock(), saving=saving)
    with pytest.raises(SystemExit):
        leaving.leave_on_request()
    assert saved == [not may_lack_sums]
    assert ("no checkpoint of step 5" in caplog.text) == may_lack_sums
