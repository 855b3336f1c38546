"""How a worker leaves: before it is a member, in the middle, after the last step; and how a script ends the job."""

from __future__ import annotations

import re
import signal
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from heterotrain import contract
from heterotrain.contract import Termination, TrainingConfig
from heterotrain.training.leaving import Leaving, last_words
from heterotrain.training.saving import Saving
from trainer.gang import STAY, Gang
from trainer.story import BREAK, DISTURBED

LONG = pytest.mark.long

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
EARLY = (
    "the script left the loop over the batches after step 3 of 1000, by a break, a return or an exception; a script "
    "that wants to end the job calls session.stop()"
)
CAUGHT = "an error that the script catches"


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["hangs", pytest.param("dies", marks=LONG)])
def test_who_waits_for_groups_is_bounded_and_listens(tmp_path: Path, kind: str) -> None:
    command = [DISTURBED, "first-groups", "w-1", kind, *script(tmp_path, WHOLE)]
    with Gang(tmp_path, command, (4, 4), TrainingConfig(steps=3)) as gang:
        gang.await_log(0, "attempt 1.1 to form the group failed, trying again")
        gang.processes[0].send_signal(signal.SIGTERM)
        assert gang.wait_for(0) == contract.EXIT_PREEMPTED
    assert gang.ending(0).asked_to_stop


@pytest.mark.processes
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


@pytest.mark.processes
def test_a_slow_peer_is_waited_for_longer_than_the_timeout_before_groups_are_given_up(tmp_path: Path) -> None:
    loop = "for x, y in bs:\n    if name == 'w-1': time.sleep(0.7)\n    train(x, y)"
    command = [*BREAK, "w-0", "before", "3", *script(tmp_path, loop)]
    config = TrainingConfig(steps=4, progress_timeout_seconds=0.2)
    with Gang(tmp_path, command, (4, 4), config) as gang:
        gang.succeed()
    assert "workers formed again at step 2" in gang.logs()


AWAIT_PLAN = """
import pathlib
while not (pathlib.Path(os.environ["HETEROTRAIN_PLAN_DIR"]) / "plan.json").exists(): time.sleep(0.01)
"""


@pytest.mark.processes
def test_a_script_knows_its_leader_may_pause_and_may_leave_the_loop_once_the_last_step_is_committed(
    tmp_path: Path,
) -> None:
    loop = (
        "print('before', name, s.leader)\n"
        "def run():\n    for step, (x, y) in enumerate(bs):\n        train(x, y)\n"
        "        if name == 'w-0' and step == 4:\n            with s.pause('validation'):\n"
        f"                while not os.path.exists('{tmp_path}/go'): time.sleep(0.05)\n"
        "        if step == 7 and name == 'w-0': return\n        if step == 7: break\n"
        "run()\nprint('after', s.step, name, s.leader)"
    )
    config = TrainingConfig(steps=8, checkpoint_path=str(tmp_path / "checkpoints"))
    with Gang(tmp_path, script(tmp_path, AWAIT_PLAN + loop), (4, 2, 2), config) as gang:
        gang.await_log(0, "paused for validation")
        gang.await_phase(0, contract.PHASE_PAUSED)
        (tmp_path / "go").touch()
        gang.succeed()
        logs = gang.logs()
    for rank in range(3):
        assert f"before w-{rank} {rank == 0}" in logs, "with a plan the leader is known before the loop"
        assert f"after 8 w-{rank} {rank == 0}" in logs
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-0000000008.pt"]
    assert [record.mark for record in gang.series(0)][5] == "pause", "a step with a pause is not measured"


@pytest.mark.processes
@LONG
def test_without_a_plan_it_is_said_what_to_do_instead_of_asking_for_the_leader(tmp_path: Path) -> None:
    command = script(tmp_path, "print(s.leader)")
    path = Path(command[0])
    path.write_text(f"import os; os.environ[{contract.ENV_PLAN_DIR!r}] += '/none'\n{path.read_text()}")
    with Gang(tmp_path, command, (4,), TrainingConfig(steps=2)) as gang:
        assert gang.wait() == [1]
    assert "session.leader is known only once the loop over the batches has begun" in gang.ending(0).message
    assert "session.first_here(path)" in gang.ending(0).message


@pytest.mark.processes
@pytest.mark.parametrize(
    ("leaving", "code", "mine", "environment"),
    [
        ("break", 0, EARLY, {}),
        ("raise ValueError('no such column')", 1, "ValueError: no such column", STAY),
        pytest.param("break", 0, EARLY, STAY, marks=LONG),
        pytest.param("raise ValueError('no such column')", 1, "ValueError: no such column", {}, marks=LONG),
        pytest.param("sys.exit('enough')", 1, EARLY, {}, marks=LONG),
        pytest.param("sys.exit('enough')", 1, EARLY, STAY, marks=LONG),
        (CAUGHT, 0, "ValueError: no such column", STAY),
    ],
)
def test_who_leaves_early_is_not_waited_for(
    tmp_path: Path, leaving: str, code: int, mine: str, environment: dict[str, str]
) -> None:
    """The others go on, or if all are needed end, too, and name who left."""
    does = "raise ValueError('no such column')" if leaving == CAUGHT else leaving
    loop = f"for x, y in bs:\n    train(x, y)\n    if name == 'w-1' and s.step == 3: {does}\n"
    if leaving == CAUGHT:
        loop = f"try:\n{textwrap.indent(loop, '    ')}except ValueError: pass\n"
    # The process goes on for longer than anybody should wait for it.
    loop += "if name == 'w-1': time.sleep(3)"
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
    assert gang.ending(1).script_error, "the same step will likely do it again"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("then", "batches"),
    [
        ("break", (8, 0, 0)),
        *[pytest.param(*each, marks=LONG) for each in [("pass", (8, 0, 0)), ("break", (4, 2, 2)), ("pass", (4, 2, 2))]],
    ],
)
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


@pytest.mark.processes
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
    (tmp_path / "c").mkdir()
    with Gang(tmp_path / "c", script(tmp_path, EPOCHS), (8, 0), config, generation=3) as gang:
        gang.succeed()
        assert set(re.findall(r"epoch w-0 (\d) (\d+)", gang.logs())) == {("3", "16")}, "what comes after its batches"
        assert f"measured w-0 3 {dict(measured)['3']}" in gang.logs()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("last_step", "sizes"),
    [
        ("Carry", [12] * 8),
        pytest.param("Partial", [12, 12, 8] * 3, marks=LONG),
        pytest.param("Drop", [12, 12] * 3, marks=LONG),
    ],
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


@pytest.mark.processes
def test_peers_of_a_frozen_leader_still_learn_that_they_are_to_stop(tmp_path: Path) -> None:
    config = TrainingConfig(steps=100_000, progress_timeout_seconds=600, heartbeat_timeout_seconds=1.5)
    with Gang(tmp_path, [DISTURBED, "short-stop", *script(tmp_path, WHOLE)], (4, 2, 2), config) as gang:
        gang.await_step(5)
        gang.processes[0].send_signal(signal.SIGSTOP)
        # One ends, so the other one waits for the leader, which may go on elsewhere.
        gang.processes[2].kill()
        gang.await_log(1, "waiting for w-0")
        gang.processes[1].send_signal(signal.SIGTERM)
        assert gang.wait_for(1) == contract.EXIT_PREEMPTED


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
    state: Any = SimpleNamespace(save=lambda *, writes, beside: saved.append(writes), release=list)
    said: list[Termination] = []
    context: Any = MagicMock(plans=SimpleNamespace(rank=1, leads=False))
    context.farewell.write = lambda: said.append(last_words("", leaving, context.stop, context.metrics.state, 9))
    saving = Saving(context, state, group, MagicMock())
    leaving = Leaving(context, state, group=group, exchange=MagicMock(), accounts=MagicMock(), saving=saving)
    leaving.finish(alone=True)
    assert saved == [written]
    [words] = said
    assert (words.finished, words.leader, words.step) == (True, False, 9), "they stay if it is killed from now on"


@pytest.mark.parametrize("may_lack_sums", [False, True])
def test_a_leader_that_is_asked_to_stop_writes_no_step_in_which_sums_may_be_missing(
    may_lack_sums: bool, caplog: pytest.LogCaptureFixture
) -> None:
    saved: list[bool] = []
    group: Any = MagicMock(may_lack_sums=may_lack_sums, protocol=contract.MEMBERS_STAY)
    state: Any = SimpleNamespace(
        release=list, save=lambda *, writes, beside: saved.append(writes), position=SimpleNamespace(step=5)
    )
    context: Any = MagicMock(plans=SimpleNamespace(rank=0, leads=True))
    saving = Saving(context, state, group, MagicMock())
    leaving = Leaving(context, state, group=group, exchange=MagicMock(), accounts=MagicMock(), saving=saving)
    with pytest.raises(SystemExit):
        leaving.leave_on_request()
    assert saved == [not may_lack_sums]
    assert ("no checkpoint of step 5" in caplog.text) == may_lack_sums
