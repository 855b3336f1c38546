"""Asynchronous jobs: what their servers train is what their ledgers say, whoever comes, goes, and fails meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from heterotrain.contract import TrainingConfig
from trainer.served import ServedGang, assert_each_sample_once, replay
from trainer.story import EXACT, SCRIPT, SEED, difference, in_plain_loop, undisturbed

TWO_EPOCHS = TrainingConfig(epochs=2, seed=SEED)


def command(folder: Path, *options: str) -> list[str]:
    return [SCRIPT, "--out", str(folder), *options]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_one_worker_and_a_server_train_as_plain_pytorch(tmp_path: Path, optimizer: str) -> None:
    with ServedGang(tmp_path, command(tmp_path, "--optimizer", optimizer), [96], TWO_EPOCHS) as gang:
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
