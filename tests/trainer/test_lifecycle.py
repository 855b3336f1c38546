"""How a script's end, its target and its schedules become the job's, with clear last words. Real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterotrain.contract import TrainingConfig
from trainer.gang import Gang

pytestmark = pytest.mark.processes

SCRIPT = "tests/trainer/scripts/train.py"

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


def test_a_job_ends_when_its_target_loss_is_reached(tmp_path: Path) -> None:
    config = TrainingConfig(epochs=40, seed=3, target_value=1.0, target_every_steps=10)
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path)], (30, 30, 4), config) as gang:
        gang.succeed()
    losses = gang.losses()
    last = max(losses)
    # the losses of up to sixteen steps are sent at once, some of them before the window of the target
    assert sum(losses[step] for step in range(last - 10, last)) / 10 <= 1.0
    assert last < 40 * 24 - 1


def test_a_script_that_errs_ends_with_clear_last_words(tmp_path: Path) -> None:
    """What errs in a loop is tested in one process."""
    script = tmp_path / "script.py"
    script.write_text("import heterotrain; heterotrain.join(); open('data.csv')")
    with Gang(tmp_path, [str(script)], (4,), TrainingConfig(epochs=2)) as gang:
        assert gang.wait() == [1]
    assert "No such file or directory: 'data.csv'" in gang.ending(0).message, gang.logs()
    assert not gang.ending(0).finished


def test_registered_schedules_follow_the_steps_also_of_a_worker_without_samples(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LOOP.format(register="s.register(schedule=schedule)", step=""))
    # The last step of each epoch has one sample, hence none for two of the three workers.
    with Gang(tmp_path, [str(script)], (24, 4, 4), TrainingConfig(epochs=2)) as gang:
        gang.succeed()
    assert gang.logs().count(f"learning rate {0.1 * 0.9**14:.6f}"[:-1]) == 3, gang.logs()


@pytest.mark.long
def test_a_schedule_stepped_by_the_script_alone_is_found_out(tmp_path: Path) -> None:
    """A worker without samples has the right rate in that step, but its own schedule has fallen behind."""
    script = tmp_path / "script.py"
    lag = "ExponentialLR(o, 0.9)", "torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step)"
    script.write_text(LOOP.replace(*lag).format(register="", step="schedule.step()"))
    with Gang(tmp_path, [str(script)], (24, 4, 4), TrainingConfig(epochs=9)) as gang:
        assert all(gang.wait())
    for rank in range(3):
        assert "have become different: hyperparameters of w-2 differ" in gang.ending(rank).message
        assert gang.ending(rank).fatal
