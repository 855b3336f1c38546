"""Every split trains the same model, whichever plans come and whatever breaks. This is the strongest test of the
training library. Real processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from heterotrain import worker_metrics as table
from heterotrain.contract import TrainingConfig
from trainer.gang import Gang
from trainer.story import (
    BREAK,
    CONFIG,
    SCRIPT,
    SEED,
    assert_each_sample_once_per_epoch,
    assert_hold,
    assert_left,
    assert_replayed,
    difference,
    end_as_undisturbed,
    samples_seen,
    story,
    undisturbed,
)

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(("optimizer", "loss"), [("sgd", "mean"), pytest.param("adam", "sum", marks=pytest.mark.long)])
def test_any_split_in_any_number_of_passes_trains_the_model_of_plain_pytorch(
    tmp_path: Path, optimizer: str, loss: str
) -> None:
    with story(tmp_path, (32, 32, 32), CONFIG, "--optimizer", optimizer, "--loss", loss) as gang:
        gang.await_step(5)
        # A document that is no plan, or one that cannot be followed, changes nothing and is counted.
        good = gang.plan.to_json()
        newer = good.replace('"version": 10', '"version": 11')
        for number, bad in enumerate(
            [
                "not a plan",
                good.replace('"schema": 1', '"schema": 9'),
                good.replace('"version": 10', '"version": 9'),
                newer.replace('"globalBatchSize": 96', '"globalBatchSize": 95'),
                newer.replace('"generation": 1', '"generation": 2'),
            ]
        ):
            gang.write(bad)
            gang.await_metric(0, table.PLANS_REJECTED.name, number + 1)
        # Batches change in the midst of epochs; a worker has no samples for a while, and then the leader has none.
        gang.follow(60, 36, 0)
        gang.follow(90, 5, 1, micro=(25, 2, 0))
        gang.follow(0, 48, 48, micro=(0, 7, 0))
        gang.follow(17, 29, 50)
        assert_replayed(gang, 0, 0, 1, 2)
        end_as_undisturbed(gang, 0, 1, 2, optimizer=optimizer)
    assert "newer than 1" in gang.logs()
    assert len({record.version for record in gang.series(1)}) == 5, "each good plan was followed"
    assert any(record.samples == 0 for record in gang.series(2))
    assert len(gang.losses()) == 13 * 16 >= 200


def test_plans_for_epochs_wait_for_the_next_one_but_not_for_who_holds_or_changes_members(tmp_path: Path) -> None:
    config, steps = replace(CONFIG, epochs=2), 188
    with story(tmp_path, (4, 4), config, apply_at="epoch") as gang:
        gang.await_step(3)
        # A change of members does not wait.
        gang.start(0)
        gang.change({0: 4, 2: 4})
        assert_left(gang, 1)
        gang.await_generation(0, 2)
        # Who holds does not wait either: it would be for ever.
        gang.plan = replace(gang.plan, apply_at="step")
        gang.publish(4, 4, holds=True)
        assert_hold(gang, 0, 2)
        gang.plan = replace(gang.plan, apply_at="epoch")
        at_once = gang.publish(5, 3).version
        for number in (0, 2):
            gang.await_metric(number, table.PLAN_VERSION.name, at_once)
        assert (gang.metric(0, table.STEP.name) or steps) < steps, "nothing of that waited for the epoch's end"
        gang.publish(6, 2)
        end_as_undisturbed(gang, 0, 2, batch=8, epochs=2)
    versions = [{record.version for record in gang.series(0) if record.epoch == epoch} for epoch in (0, 1)]
    assert at_once in versions[0], "who held went on at once"
    assert versions[1] == {gang.plan.version}, "the last plan waited for the next epoch"
    assert gang.plan.version not in versions[0], "and no longer"


def test_rates_follow_a_global_batch_that_changes_with_plans_passes_and_members(tmp_path: Path) -> None:
    config = replace(CONFIG, epochs=4, learning_rate_scaling="Linear", learning_rate_own_batch=48)
    with story(tmp_path, (24, 24), config) as gang:
        plans = [gang.plan]
        gang.await_step(3)
        plans.append(gang.follow(60, 12, micro=(25, 0)))
        assert gang.metric(1, table.LEARNING_RATE_FACTOR.name) == 1.5
        gang.start(0)
        plans.append(gang.change({1: 30, 0: 10, 2: 90}))
        gang.await_generation(0, 2)
        plans.append(gang.follow(0, 10, 20))

        def steps() -> list[tuple[int, float]]:
            batches = {plan.version: plan.global_batch_size for plan in plans}
            versions = {record.step: record.version for number in range(3) for record in gang.series(number)}
            assert set(versions.values()) == batches.keys(), "all of them were trained by"
            return [(batches[version], batches[version] / 48) for _, version in sorted(versions.items())]

        end_as_undisturbed(gang, 0, 1, 2, epochs=4, steps_of=steps)
        assert [gang.said(1, f"times {factor}, since") for factor in ("1.5", "2.708", "0.625")] == [1, 1, 1]
        assert gang.said(1, "learning rates are") == 3, "it is said when it changes"


@pytest.mark.parametrize(
    ("worker", "kind"),
    [
        ("w-0", "after"),
        *[
            pytest.param(*each, marks=pytest.mark.long)
            for each in [("w-1", "before"), ("w-0", "before"), ("w-2", "after")]
        ],
        pytest.param("w-1", "control", marks=pytest.mark.long),
    ],
)
def test_one_failing_collective_changes_nothing(tmp_path: Path, worker: str, kind: str) -> None:
    breaking = [*BREAK, worker, kind, "2" if kind == "control" else "12"]
    command = [*breaking, SCRIPT, "--out", str(tmp_path), "--optimizer", "adam"]
    with Gang(tmp_path, command, (40, 40, 16), replace(CONFIG, epochs=2)) as gang:
        gang.succeed()
    steps = [[record.step for record in gang.series(rank)] for rank in range(3)]
    # A worker whose part of a step arrived, but which did not learn of it, takes the others' result over.
    assert set().union(*steps) == set(range(32))
    assert all(len(each) == len(set(each)) >= 31 for each in steps)
    assert any(record.mark == "replay" for record in gang.series(0)), "nothing went wrong"
    assert difference(undisturbed(epochs=2).weights, gang.saved(0)) < 1e-12
    assert all(difference(gang.saved(0), gang.saved(rank)) == 0 for rank in (1, 2)), "replicas are equal to the bit"
    assert_each_sample_once_per_epoch(samples_seen(tmp_path), 2, steps_done_again=True)


@pytest.mark.long
def test_float32_stays_equal_at_first(tmp_path: Path) -> None:
    early = []
    for part, batches in (("uniform", (32, 32, 32)), ("unequal", (70, 20, 6))):
        command = [SCRIPT, "--out", str(tmp_path / part), "--dtype", "float32", "--lr", "0.001"]
        with Gang(tmp_path / part, command, batches, TrainingConfig(steps=20, seed=SEED)) as gang:
            gang.succeed()
            early.append(gang.saved())
    assert difference(*early) < 1e-5


@pytest.mark.long
def test_an_example_script_survives_a_failing_collective_unchanged(tmp_path: Path) -> None:
    found = []
    for folder, breaking in ((tmp_path / "calm", []), (tmp_path / "broken", [*BREAK, "w-1", "before", "12"])):
        config = TrainingConfig(steps=20, seed=SEED, checkpoint_path=str(folder / "checkpoints"))
        with Gang(folder, [*breaking, "examples/digits.py", "--width", "8"], (40, 40, 16), config) as gang:
            gang.succeed()
        assert any(record.mark == "replay" for record in gang.series(0)) == bool(breaking)
        found.append(torch.load(folder / "checkpoints" / "step-0000000020.pt", weights_only=True)["model"])
    assert difference(*found) < 1e-6
