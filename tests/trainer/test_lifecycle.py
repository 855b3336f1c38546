"""A worker's life: it joins, resumes, stops in order, refuses bad plans, and reports how it ended. Real processes."""

import dataclasses
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from heterotrain import contract
from heterotrain import worker_metrics as table
from heterotrain.contract import TrainingConfig
from heterotrain.workloads.digits import digits
from trainer.gang import STAY, Gang

pytestmark = pytest.mark.processes

SCRIPT = "tests/trainer/scripts/train.py"


def samples_seen(folder: Path, generation: int = 1) -> dict[int, list[tuple[int, int]]]:
    """Step -> (epoch, index) of the samples that the workers of a generation were given in it."""
    seen: dict[int, list[tuple[int, int]]] = {}
    for path in folder.glob(f"uid-{generation}-*.samples"):
        for line in path.read_text().splitlines():
            step, epoch, indices = line.split(" ")
            seen.setdefault(int(step), []).extend((int(epoch), int(index)) for index in indices.split(","))
    return seen


def assert_each_sample_once_per_epoch(steps: dict[int, list[tuple[int, int]]], epochs: int) -> None:
    counts = Counter(each for samples in steps.values() for each in samples)
    assert set(counts.values()) == {1}
    assert set(counts) == {(epoch, index) for epoch in range(epochs) for index in range(len(digits()))}


def test_every_sample_exactly_once_while_batches_change(tmp_path: Path) -> None:
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path)], (30, 30, 4), TrainingConfig(epochs=6, seed=3)) as gang:
        for number, batches in enumerate([(10, 10, 44), (64, 0, 0), (21, 21, 22)]):
            gang.await_step(4 + 29 * number)
            gang.follow(*batches)
        gang.succeed()
    assert len({record.version for record in gang.series(0)}) == 4
    assert_each_sample_once_per_epoch(samples_seen(tmp_path), 6)


def test_after_a_kill_the_job_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    config = TrainingConfig(
        epochs=2, seed=3, checkpoint_path=str(tmp_path / "checkpoints"), checkpoint_every_steps=10, checkpoint_keep=2
    )
    command = [SCRIPT, "--out", str(tmp_path)]
    with Gang(tmp_path, command, (30, 30, 4), config) as gang:
        gang.await_metric(0, table.CHECKPOINT_STEP.name, 20)
        gang.stop(signal.SIGKILL)
        gang.wait()
    # Another mix of workers goes on: nothing of a rank is in a checkpoint.
    with Gang(tmp_path, command, (50, 14), config, generation=2) as second:
        second.succeed()
    first_steps = [second.series(rank)[0].step for rank in range(2)]
    assert first_steps[0] == first_steps[1] >= 20
    assert first_steps[0] % 10 == 0
    # What the first workers did beyond the checkpoint is lost, and done again by other owners.
    before = {step: samples for step, samples in samples_seen(tmp_path, 1).items() if step < first_steps[0]}
    assert_each_sample_once_per_epoch(before | samples_seen(tmp_path, 2), 2)
    assert len(list((tmp_path / "checkpoints").glob("step-*.pt"))) == 2


def test_a_job_that_was_created_again_says_what_it_went_on_from_or_why_it_cannot(tmp_path: Path) -> None:
    config = TrainingConfig(steps=60, seed=3, checkpoint_path=str(tmp_path / "checkpoints"), checkpoint_every_steps=5)
    command = [SCRIPT, "--out", str(tmp_path)]
    with Gang(tmp_path, command, (32, 32), config, environment={contract.ENV_JOB_UID: "one"}) as gang:
        gang.await_step(10)
        gang.stop()
        gang.wait()
    again = {contract.ENV_JOB_UID: "another"}
    with Gang(tmp_path, command, (32, 32), config, generation=2, environment=again) as gang:
        gang.await_metric(0, table.RESUMED_STEP.name, 10)
        assert gang.metric(1, table.RESUMED_STEP.name) is None
        gang.succeed()
    wider = [*command, "--width", "40"]
    with Gang(tmp_path, wider, (32, 32), config, generation=3, environment=again) as gang:
        assert gang.wait_for(0) == 1
        assert gang.ending(0).fatal
        assert "does not fit" in gang.ending(0).message
        assert "spec.checkpoint.resume: Never" in gang.ending(0).message


def test_members_that_stay_leave_at_one_step_with_a_checkpoint_if_one_is_asked_to_stop(tmp_path: Path) -> None:
    config = TrainingConfig(epochs=50, seed=3, checkpoint_path=str(tmp_path / "checkpoints"))
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path)], (30, 30, 4), config, environment=STAY) as gang:
        gang.await_step(5)
        gang.processes[1].send_signal(signal.SIGTERM)  # one is asked, all agree
        assert gang.wait() == [contract.EXIT_PREEMPTED] * 3
    steps = {gang.series(rank)[-1].step + 1 for rank in range(3)}
    assert len(steps) == 1
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [f"step-{steps.pop():010d}.pt"]
    assert all(gang.ending(rank).asked_to_stop for rank in range(3))
    assert gang.ending(1).message.startswith("asked to stop")
    assert gang.ending(0).message.startswith("another worker was asked to stop")


def test_asked_to_stop_after_a_peer_died_the_others_still_save(tmp_path: Path) -> None:
    config = TrainingConfig(epochs=50, seed=3, checkpoint_path=str(tmp_path / "checkpoints"))
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path)], (30, 30, 4), config) as gang:
        gang.await_step(5)
        gang.processes[2].kill()
        gang.await_metric(0, table.STEPS_REPLAYED.name, 1)
        gang.stop()
        assert gang.wait() == [contract.EXIT_PREEMPTED, contract.EXIT_PREEMPTED, -signal.SIGKILL]
    committed = max(gang.series(rank)[-1].step for rank in range(2)) + 1  # they may be asked at different steps
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [f"step-{committed:010d}.pt"]


def test_asked_to_stop_beside_a_peer_that_is_frozen_the_leader_still_saves(tmp_path: Path) -> None:
    config = TrainingConfig(epochs=50, seed=3, checkpoint_path=str(tmp_path / "checkpoints"))
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path)], (30, 34), config) as gang:
        gang.await_step(5)
        gang.processes[1].send_signal(signal.SIGSTOP)
        gang.stop()
        # Kubernetes grants 30 s, and a busy machine some more.
        assert gang.wait_for(0) == contract.EXIT_PREEMPTED
    committed = gang.series(0)[-1].step + 1
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [f"step-{committed:010d}.pt"]


def test_without_its_peer_a_worker_that_needs_it_gives_up_and_names_it(tmp_path: Path) -> None:
    config = TrainingConfig(epochs=50, seed=3, progress_timeout_seconds=2)
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path)], (30, 30, 4), config, environment=STAY) as gang:
        gang.await_step(5)
        gang.processes[2].kill()
        assert gang.wait()[0] == 1
    assert "gave up waiting for w-2" in gang.ending(0).message
    assert not gang.ending(0).finished


def test_bad_plans_are_refused_and_training_goes_on(tmp_path: Path) -> None:
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path)], (30, 30, 4), TrainingConfig(epochs=6, seed=3)) as gang:
        gang.await_step(5)
        good = gang.plan.to_json()
        bad = [
            "not a plan",
            good.replace('"schema": 1', '"schema": 9'),
            good.replace('"version": 10', '"version": 9'),
            good.replace('"version": 10', '"version": 11').replace('"globalBatchSize": 64', '"globalBatchSize": 63'),
            good.replace('"version": 10', '"version": 11').replace('"generation": 1', '"generation": 2'),
        ]
        for number, document in enumerate(bad):
            gang.write(document)
            gang.await_metric(0, table.PLANS_REJECTED.name, number + 1)
        gang.publish(20, 20, 24)
        gang.succeed()
    assert {record.version for record in gang.series(1)} == {10, 11}
    assert "newer than 1" in gang.logs()


def test_plans_for_epochs_wait_for_the_next_one(tmp_path: Path) -> None:
    config = TrainingConfig(epochs=3, seed=3)
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path)], (30, 30, 4), config, apply_at="epoch") as gang:
        gang.await_step(3)
        gang.publish(20, 20, 24)
        gang.succeed()
    by_version = {version: {r.epoch for r in gang.series(2) if r.version == version} for version in (10, 11)}
    assert by_version[10].isdisjoint(by_version[11])
    assert by_version[11]


def test_a_job_ends_when_its_target_loss_is_reached(tmp_path: Path) -> None:
    config = TrainingConfig(epochs=40, seed=3, target_value=1.0, target_every_steps=10)
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path)], (30, 30, 4), config) as gang:
        gang.succeed()
    losses = gang.losses()
    last = max(losses)
    # the losses of up to sixteen steps are sent at once, some of them before the window of the target
    assert sum(losses[step] for step in range(last - 10, last)) / 10 <= 1.0
    assert last < 40 * 24 - 1


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise ValueError('no such file: data.csv')", "ValueError: no such file: data.csv"),
        ("pass", "ended before the job's last step"),
        ("s.prepare(m, o, iter([]))", "TypeError: the data set has no length"),
        ("s.prepare(m, o, [])", "ValueError: the data set is empty"),
        ("s.scale(torch.ones(1))", "before session.prepare"),
        ("s.prepare(m, o, d); s.prepare(m, o, d)", "called already"),
        ("[b for b in s.prepare(m, o, d)[2]]", "optimizer.step() was not called"),
        (
            "m, o, bs = s.prepare(m, o, d)\nfor x, y in bs:\n    (m(x) - y).mean().backward(); o.step()",
            "did not go through session.scale()",
        ),
        (
            "m, o, bs = s.prepare(m, o, d)\nfor x, y in bs:\n"
            "    s.scale((m(x) - y).mean()).backward(); s.scale((m(x) - y).mean()).backward(); o.step()",
            "backward() was called 2 times for one batch",
        ),
        (
            "m, o, bs = s.prepare(m, o, d)\nfor x, y in bs:\n"
            "    loss = s.scale((m(x) - y).mean()); loss.backward(retain_graph=True); loss.backward(); o.step()",
            "backward() was called 2 times for one batch",
        ),
        (
            "m, o, bs = s.prepare(m, o, d, backward_passes=2)\nfor x, y in bs:\n"
            "    s.scale((m(x) - y).mean()).backward(); o.step()",
            "backward() was called 1 times through what session.scale() returned, where 2 was expected",
        ),
        (
            "m, o, bs = s.prepare(m, o, d)\nfor x, y in bs:\n"
            "    s.scale((m(x) - y).mean()).backward(); m(x).mean().backward(); o.step()",
            "from a loss that did not go through session.scale()",
        ),
        (
            "m, o, bs = s.prepare(m, o, d)\nfor x, y in bs:\n    s.scale((m(x) - y).mean()).backward(); o.step()",
            "gradients of the batch before were there still",
        ),
        (
            "w, p, bs = s.prepare(m, o, d); s.register(r=torch.optim.lr_scheduler.ReduceLROnPlateau(o))",
            "ReduceLROnPlateau needs a metric",
        ),
        ("s.prepare(m, o, d)[1].step()", "without a new batch"),
        ("s.register(thing=m)", "between session.prepare() and the loop"),
        ("s.prepare(m, o, d); s.register(thing=3)", "TypeError: thing: has no state_dict"),
    ],
)
def test_a_script_that_errs_ends_with_clear_last_words(tmp_path: Path, program: str, message: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import heterotrain, torch\n"
        "s = heterotrain.join()\n"
        "m = torch.nn.Linear(2, 1); o = torch.optim.SGD(m.parameters(), lr=0.1)\n"
        "d = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))\n" + program
    )
    with Gang(tmp_path, [str(script)], (4,), TrainingConfig(epochs=2)) as gang:
        code = gang.wait()[0]
    ending = gang.ending(0)
    assert message in ending.message, gang.logs()
    assert not ending.finished
    assert (code == 0) == (program == "pass")


LOOP = """
import heterotrain, torch
from torch.optim.lr_scheduler import ExponentialLR

s = heterotrain.join(batch_size=32)
torch.manual_seed(0)
m = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
o = torch.optim.SGD(m.parameters(), lr=0.1)
d = torch.utils.data.TensorDataset(torch.randn(193, 2), torch.randn(193, 1))
m, o, bs = s.prepare(m, o, d)
schedule = ExponentialLR(o, 0.9)
{register}
for x, y in bs:
    s.scale(torch.nn.functional.mse_loss(m(x), y)).backward()
    o.step(); o.zero_grad()
    {step}
print("learning rate", o.param_groups[0]["lr"])
"""


def test_registered_schedules_follow_the_steps_also_of_a_worker_without_samples(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LOOP.format(register="s.register(schedule=schedule)", step=""))
    # The last step of each epoch has one sample, hence none for two of the three workers.
    with Gang(tmp_path, [str(script)], (24, 4, 4), TrainingConfig(epochs=2)) as gang:
        gang.succeed()
    assert gang.logs().count(f"learning rate {0.1 * 0.9**14:.6f}"[:-1]) == 3, gang.logs()


def test_a_schedule_stepped_by_the_script_alone_is_found_out(tmp_path: Path) -> None:
    """A worker without samples has the right rate in that step, but its own schedule has fallen behind."""
    script = tmp_path / "script.py"
    lag = "ExponentialLR(o, 0.9)", "torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step)"
    script.write_text(LOOP.replace(*lag).format(register="", step="schedule.step()"))
    with Gang(tmp_path, [str(script)], (24, 4, 4), TrainingConfig(epochs=9)) as gang:
        assert all(gang.wait())
    for rank in range(3):
        ending = gang.ending(rank)
        assert "have become different: hyperparameters of w-2 differ" in ending.message
        assert ending.fatal


def test_a_promised_gpu_that_is_missing_fails_or_is_replaced_as_asked(tmp_path: Path) -> None:
    command = [SCRIPT, "--out", str(tmp_path)]
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    with Gang(tmp_path, command, (8,), TrainingConfig(steps=2, device="gpu"), environment=hidden) as gang:
        assert gang.wait() == [1]
    assert "torch finds no GPU here" in gang.ending(0).message
    allowed = TrainingConfig(steps=2, device="gpu", on_missing_device="UseCPU")
    with Gang(tmp_path, command, (8,), allowed, environment=hidden, generation=2) as gang:
        gang.succeed()


def test_a_full_disk_ends_the_job_and_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    config = TrainingConfig(epochs=5, seed=3, checkpoint_path=str(checkpoints), checkpoint_every_steps=10)
    command = [SCRIPT, "--out", str(tmp_path)]
    with Gang(tmp_path, command, (30, 30, 4), dataclasses.replace(config, steps=10, epochs=None)) as gang:
        gang.succeed()
    before = (checkpoints / "step-0000000010.pt").read_bytes()
    # A limit on the size of written files stands in for the full disk: it fails in the middle of the write as well.
    limited = [
        "-c",
        f"import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); "
        f"sys.argv = ['train.py', '--out', {str(tmp_path)!r}]; runpy.run_path({SCRIPT!r}, run_name='__main__')",
    ]
    with Gang(tmp_path, limited, (30, 30, 4), config, generation=2) as gang:
        assert gang.wait()[0] == 1
    assert "cannot write the checkpoint of step 20" in gang.ending(0).message
    assert "earlier checkpoints are untouched" in gang.ending(0).message
    assert [path.name for path in checkpoints.iterdir()] == ["step-0000000010.pt"]
    assert (checkpoints / "step-0000000010.pt").read_bytes() == before


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    config = TrainingConfig(steps=30, seed=3, checkpoint_path=str(checkpoints), checkpoint_every_steps=10)
    command = [SCRIPT, "--out", str(tmp_path)]
    with Gang(tmp_path, command, (30, 34), config) as gang:
        gang.succeed()
    os.truncate(checkpoints / "step-0000000030.pt", 1000)
    with Gang(tmp_path, command, (30, 34), config, generation=2) as gang:
        gang.succeed()
    assert gang.series(0)[0].step == 20
    assert "passed over" in gang.logs()
