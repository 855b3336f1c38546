"""Which worker is to print is known before the loop wherever there is a plan already."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterotrain import contract
from heterotrain.contract import TrainingConfig
from trainer.gang import Gang

pytestmark = pytest.mark.processes

SCRIPT = f"""
import os, pathlib, time, heterotrain, torch
from torch import nn
name = os.environ[{contract.ENV_WORKER!r}]
plan = pathlib.Path(os.environ[{contract.ENV_PLAN_DIR!r}]) / {contract.PLAN_FILE!r}
s = heterotrain.join()
m = nn.Linear(3, 1)
d = torch.utils.data.TensorDataset(torch.ones(8, 3), torch.ones(8, 1))
m, o, bs = s.prepare(m, torch.optim.SGD(m.parameters(), lr=0.01), d)
"""

LOOP = """
while not plan.exists(): time.sleep(0.01)
print("before", name, s.leader)
for x, y in bs:
    s.scale(nn.functional.mse_loss(m(x), y)).backward()
    o.step(); o.zero_grad()
print("after", name, s.leader)
"""

WITHOUT_A_PLAN = f"import os; os.environ[{contract.ENV_PLAN_DIR!r}] += '/none'\n"


def script(folder: Path, text: str) -> list[str]:
    path = folder / "script.py"
    path.write_text(text)
    return [str(path)]


def test_with_a_plan_the_leader_is_known_before_the_loop(tmp_path: Path) -> None:
    with Gang(tmp_path, script(tmp_path, SCRIPT + LOOP), (4, 4), TrainingConfig(steps=2)) as gang:
        gang.succeed()
        logs = gang.logs()
    for when in ("before", "after"):
        assert f"{when} w-0 True" in logs
        assert f"{when} w-1 False" in logs


def test_without_a_plan_it_is_said_what_to_do_instead(tmp_path: Path) -> None:
    command = script(tmp_path, f"{WITHOUT_A_PLAN}{SCRIPT}\nprint(s.leader)")
    with Gang(tmp_path, command, (4,), TrainingConfig(steps=2)) as gang:
        assert gang.wait() == [1]
    assert "session.leader is known only once the loop over the batches has begun" in gang.ending(0).message
    assert "session.first_here(path)" in gang.ending(0).message
