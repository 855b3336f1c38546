"""A worker that is created beside training warms up alone, and nothing of it is left but time that is known. Real
processes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from heterotrain import contract
from heterotrain import worker_metrics as table
from heterotrain.contract import TrainingConfig
from trainer.gang import Gang

pytestmark = pytest.mark.processes

SCRIPT = "tests/trainer/scripts/train_warm.py"
STEPS = 30
CONFIG = TrainingConfig(steps=STEPS, seed=3)
WARM = {contract.ENV_WARM_UP: "1"}
BATCHES = (24, 40)


def trained(folder: Path, environment: dict[str, str], kind: str = "plain", config: TrainingConfig = CONFIG) -> Gang:
    folder.mkdir()
    command = [SCRIPT, str(folder), kind]
    with Gang(folder, command, BATCHES, config, environment=environment, micro=(10, 0)) as gang:
        gang.succeed()
    return gang


def notes(gang: Gang, number: int) -> list[str]:
    return (gang.folder / f"w-{number}.notes").read_text().splitlines()


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Gang:
    return trained(tmp_path_factory.mktemp("cold") / "run", {})


def assert_the_same_bits(gang: Gang, cold: Gang) -> None:
    for number in range(len(BATCHES)):
        found, expected = gang.saved(number), cold.saved(number)
        assert found.keys() == expected.keys()
        assert [key for key in found if not torch.equal(found[key], expected[key])] == []


def test_a_warm_up_leaves_no_trace_in_what_is_trained(tmp_path: Path, cold: Gang) -> None:
    gang = trained(tmp_path / "run", WARM)
    assert_the_same_bits(gang, cold)
    assert gang.losses() == cold.losses()
    for number in range(len(BATCHES)):
        # 3 steps with the batch of its group, whose median is that of the first of two, and 2 with half as many.
        sizes = [line.split()[1] for line in notes(gang, number) if line.startswith("warming")]
        assert sizes == 3 * ["8"] * 3 + 2 * ["6"] * 2
        assert {line.split(maxsplit=2)[2] for line in notes(gang, number) if line.startswith("warming")} == {
            "0 False 2 64"
        }
        rest = [line for line in notes(gang, number) if not line.startswith("warming")]
        assert rest == notes(cold, number) == [f"after {step}" for step in range(1, STEPS + 1)]


@pytest.mark.long
def test_in_a_loop_over_epochs_a_warm_up_is_an_epoch_of_its_own(tmp_path: Path) -> None:
    config = TrainingConfig(epochs=2, seed=3)
    cold = trained(tmp_path / "cold", {}, "epochs", config)
    warm = trained(tmp_path / "warm", WARM, "epochs", config)
    assert_the_same_bits(warm, cold)
    epochs = [line for line in notes(warm, 0) if line.startswith(("epoch", "measured"))]
    usual = [line for line in notes(cold, 0) if line.startswith(("epoch", "measured"))]
    assert epochs == ["epoch 0 True", "measured nan", *usual]
    assert usual == ["epoch 0 False", "measured later", "epoch 1 False", "measured later"]


def test_who_is_asked_to_stop_or_fails_while_it_warms_up_ends_at_once(tmp_path: Path) -> None:
    with Gang(tmp_path, [SCRIPT, str(tmp_path), "waits"], (64,), CONFIG, environment=WARM) as gang:
        gang.start(0)
        gang.await_phase(1, contract.PHASE_WARMING)
        gang.await_log(1, "waiting in the loop")
        gang.processes[1].send_signal(signal.SIGTERM)
        assert gang.wait_for(1) == contract.EXIT_PREEMPTED
        assert not gang.ending(1).script_error
        gang.start(0, command=[SCRIPT, str(tmp_path), "fails"])
        assert gang.wait_for(2) == 1
        assert gang.ending(2).script_error
        assert "this sample is no good" in gang.ending(2).message


@pytest.mark.long
def test_without_a_plan_there_is_nothing_to_warm_up_for(tmp_path: Path) -> None:
    command = ["tests/trainer/scripts/train.py", "--out", str(tmp_path)]
    with Gang(tmp_path, command, (64,), CONFIG, environment=WARM) as gang:
        (gang.plan_dir / contract.PLAN_FILE).unlink()
        gang.start(0)
        gang.await_phase(1, contract.PHASE_WAITING)
        assert gang.metric(1, table.WARM_UP_SECONDS.name) is None
