"""Members of a plan that holds take no step until another plan takes its place, and lose nothing. Real processes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from heterotrain import contract
from heterotrain import worker_metrics as table
from heterotrain.contract import TrainingConfig
from trainer.gang import Gang
from trainer.test_equality import train
from trainer.test_lifecycle import assert_each_sample_once_per_epoch
from trainer.test_survivors import assert_the_same_from_then_on
from trainer.test_transitions import ADAM, CONFIG, EPOCHS, LASTING, SCRIPT, assert_the_same, seen_once

pytestmark = pytest.mark.processes

SEEN_SECONDS = 1.0
"""So long it is looked whether nobody takes a step; a step takes some milliseconds."""


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Gang:
    return train(tmp_path_factory.mktemp("calm") / "run", CONFIG, (40, 40, 16), options=ADAM)


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path), *ADAM, LASTING], (40, 40, 16), CONFIG) as gang:
        gang.await_step(3)
        yield gang


def let_go_on(gang: Gang) -> None:
    """The scripts may come to their ends."""
    (gang.folder / "go").touch()


def assert_hold(gang: Gang, *numbers: int) -> None:
    for number in numbers:
        gang.await_phase(number, contract.PHASE_HOLDING)
    before = [gang.metric(number, table.STEP.name) for number in numbers]
    time.sleep(SEEN_SECONDS)
    assert [gang.metric(number, table.STEP.name) for number in numbers] == before
    assert len(set(before)) == 1


def test_the_others_hold_after_one_is_killed_and_go_on_with_the_next(gang: Gang, calm: Gang) -> None:
    gang.processes[1].kill()
    gang.change({0: 50, 2: 46}, holds=True)
    assert_hold(gang, 0, 2)
    gang.start(0)
    gang.change({0: 40, 2: 40, 3: 16})
    gang.await_generation(0, 2, 3)
    let_go_on(gang)
    gang.succeed(0, 2, 3)
    assert_the_same_from_then_on(gang, calm, 0, 2, 3)
    assert_each_sample_once_per_epoch(seen_once(gang.folder), EPOCHS)


def test_who_joins_members_that_hold_holds_with_them(gang: Gang, calm: Gang) -> None:
    gang.change({0: 96}, holds=True)
    assert_hold(gang, 0)
    gang.start(0)
    gang.change({0: 50, 3: 46}, holds=True)
    assert_hold(gang, 0, 3)
    gang.publish(60, 36)
    let_go_on(gang)
    gang.succeed(0, 3)
    assert_the_same(gang, calm, 0, 3)


def test_a_member_that_is_killed_while_all_hold_lets_nobody_train(gang: Gang, calm: Gang) -> None:
    gang.publish(40, 40, 16, holds=True)
    assert_hold(gang, 0, 1, 2)
    gang.processes[0].kill()
    gang.await_log(1, "group of 2 workers formed again")
    assert_hold(gang, 1, 2)
    gang.change({1: 50, 2: 46})
    gang.await_generation(1, 2)
    let_go_on(gang)
    gang.succeed(1, 2)
    assert_the_same_from_then_on(gang, calm, 1, 2)


def test_members_that_hold_do_not_wait_for_the_end_of_an_epoch(tmp_path: Path) -> None:
    one_epoch = TrainingConfig(epochs=1, seed=7)
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path), *ADAM, LASTING], (4, 4), one_epoch) as gang:
        gang.await_step(3)
        gang.publish(4, 4, holds=True)
        assert_hold(gang, 0, 1)
        gang.plan = replace(gang.plan, apply_at="epoch")
        gang.publish(6, 2)
        let_go_on(gang)
        gang.succeed()
    assert_each_sample_once_per_epoch(seen_once(tmp_path), 1)


def test_who_is_asked_to_stop_while_all_hold_leaves_and_the_others_hold_on(gang: Gang) -> None:
    gang.publish(40, 40, 16, holds=True)
    assert_hold(gang, 0, 1, 2)
    gang.processes[0].send_signal(signal.SIGTERM)
    assert gang.wait_for(0) == contract.EXIT_PREEMPTED
    assert_hold(gang, 1, 2)
    gang.stop()
    assert gang.wait() == [contract.EXIT_PREEMPTED] * 3
    assert gang.ending(1).asked_to_stop


def test_members_that_begin_to_hold_write_a_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    config = replace(CONFIG, checkpoint_path=str(folder), checkpoint_every_steps=1_000_000)
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path), *ADAM, LASTING], (56, 40), config) as gang:
        gang.await_step(3)
        gang.publish(56, 40, holds=True)
        assert_hold(gang, 0, 1)
        step = int(gang.metric(0, table.STEP.name) or 0)
        assert [path.name for path in folder.iterdir()] == [f"step-{step:010d}.pt"]
        gang.publish(40, 56)
        let_go_on(gang)
        gang.succeed()
    assert_each_sample_once_per_epoch(seen_once(tmp_path), EPOCHS)


def test_another_member_writes_the_checkpoint_again_if_the_leader_is_killed_meanwhile(tmp_path: Path) -> None:
    """It may have been killed before the checkpoint was whole, as it is here."""
    folder = tmp_path / "checkpoints"
    config = replace(CONFIG, checkpoint_path=str(folder), checkpoint_every_steps=1_000_000)
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path), *ADAM, LASTING], (40, 40, 16), config) as gang:
        gang.await_step(3)
        gang.publish(40, 40, 16, holds=True)
        assert_hold(gang, 0, 1, 2)
        [written] = folder.iterdir()
        gang.processes[0].kill()
        written.unlink()
        gang.await_log(1, "group of 2 workers formed again")
        gang.await_log(1, f"checkpoint of step {int(gang.metric(1, table.STEP.name) or 0)} written")
        assert [path.name for path in folder.iterdir()] == [written.name]
