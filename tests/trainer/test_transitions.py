"""Members change while the others train: nobody restarts, no sample is lost, the model is the same. Real processes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from heterotrain import contract
from heterotrain import worker_metrics as table
from heterotrain.contract import TrainingConfig
from trainer.gang import Gang
from trainer.test_equality import difference, train
from trainer.test_lifecycle import assert_each_sample_once_per_epoch, samples_seen

pytestmark = pytest.mark.processes

SCRIPT = "tests/trainer/scripts/train.py"
EPOCHS = 10
CONFIG = TrainingConfig(epochs=EPOCHS, seed=7)
ADAM = ("--optimizer", "adam")
OTHER_LIBRARY = "tests/trainer/scripts/other_library.py"
LASTING = "--lasting"  # until what is to happen has happened


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Gang:
    return train(tmp_path_factory.mktemp("calm") / "run", CONFIG, (40, 40, 16), options=ADAM)


def assert_the_same(gang: Gang, calm: Gang, *numbers: int) -> None:
    """The job's losses and the final models of these workers are those of the undisturbed run."""
    losses, expected = gang.losses(), calm.losses()
    assert losses.keys() == expected.keys()
    assert max(abs(losses[step] - expected[step]) for step in losses) < 1e-10
    for number in numbers:
        assert difference(gang.saved(number), calm.saved()) < 1e-10


def seen_once(folder: Path) -> dict[int, list[tuple[int, int]]]:
    """As `samples_seen`, but what a step that was done again saw twice counts once."""
    return {step: list(dict.fromkeys(samples)) for step, samples in samples_seen(folder).items()}


def test_the_same_members_go_over_to_new_groups_again_and_again(tmp_path: Path, calm: Gang) -> None:
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path), *ADAM, LASTING], (40, 40, 16), CONFIG) as gang:
        gang.await_step(1)
        for batches in ((30, 30, 36), (90, 6, 0), (32, 32, 32)):
            gang.change(dict(enumerate(batches)))
            gang.await_generation(0, 1, 2)
        (tmp_path / "go").touch()
        gang.succeed()
    assert_the_same(gang, calm, 0, 1, 2)
    assert all(gang.metric(rank, table.STEPS_REPLAYED.name) is None for rank in range(3))


def test_workers_leave_in_order_and_the_others_go_on(tmp_path: Path, calm: Gang) -> None:
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path), *ADAM, LASTING], (40, 30, 16, 10), CONFIG) as gang:
        gang.await_step(5)
        gang.change({0: 50, 2: 30, 3: 16})  # one from the middle
        assert gang.wait_for(1) == 0
        gang.await_generation(0, 2, 3)
        gang.change({0: 96})  # two at once
        (tmp_path / "go").touch()
        gang.succeed(0)
        assert [process.wait(timeout=60) for process in gang.processes] == [0] * 4
    assert_the_same(gang, calm, 0)
    for number in (1, 2, 3):
        ending = gang.ending(number)
        assert ending.left and not ending.finished and not ending.asked_to_stop
        assert ending.step == gang.series(number)[-1].step + 1
        assert not (tmp_path / f"w-{number}.pt").exists()  # the end of the script is for workers that reach it
    assert_each_sample_once_per_epoch(samples_seen(tmp_path), EPOCHS)


def test_workers_join_and_one_is_swapped_for_another(tmp_path: Path, calm: Gang) -> None:
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path), *ADAM, LASTING, "--apart"], (96,), CONFIG) as gang:
        gang.start(0)
        gang.start(0)
        gang.await_step(3)
        gang.change({0: 40, 1: 40, 2: 16})
        gang.await_generation(0, 1, 2)
        gang.start(0)
        gang.change({0: 40, 2: 40, 3: 16})
        assert gang.wait_for(1) == 0
        gang.await_generation(0, 2, 3)
        (tmp_path / "go").touch()
        gang.succeed(0, 2, 3)
    assert_the_same(gang, calm, 0, 2, 3)
    assert gang.ending(1).left
    assert gang.series(1)[0].step >= 3
    assert_each_sample_once_per_epoch(samples_seen(tmp_path), EPOCHS)
    assert all(gang.metric(number, table.STEPS_REPLAYED.name) is None for number in range(4))


def test_a_worker_that_joins_warms_up_before_it_says_that_it_waits(tmp_path: Path, calm: Gang) -> None:
    warm = {contract.ENV_WARM_UP: "1"}
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path), *ADAM, LASTING], (60, 36), CONFIG, environment=warm) as gang:
        gang.await_step(3)
        gang.start(0)
        gang.await_phase(2, contract.PHASE_WAITING)
        assert [batch for batch, seconds in gang.by_label(2, table.WARM_UP_SECONDS).items() if seconds > 0] == [36, 18]
        assert gang.metric(2, table.STEP.name) == 0
        gang.change({0: 40, 1: 40, 2: 16})
        gang.await_generation(0, 1, 2)
        assert gang.by_label(2, table.WARM_UP_SECONDS) == {}
        (tmp_path / "go").touch()
        gang.succeed()
    assert_the_same(gang, calm, 0, 1, 2)
    assert gang.series(2)[0].step >= 3
    assert_each_sample_once_per_epoch(samples_seen(tmp_path), EPOCHS)


def test_a_change_of_members_does_not_wait_for_the_end_of_an_epoch(tmp_path: Path) -> None:
    one_epoch = TrainingConfig(epochs=1, seed=7)
    command = [SCRIPT, "--out", str(tmp_path), *ADAM, LASTING]
    with Gang(tmp_path, command, (4, 4), one_epoch, apply_at="epoch") as gang:
        gang.start(0)
        gang.await_step(3)
        gang.change({0: 4, 2: 4})
        assert gang.wait_for(1) == 0
        gang.await_generation(0, 2)
        (tmp_path / "go").touch()
        gang.succeed(0, 2)
    assert_each_sample_once_per_epoch(samples_seen(tmp_path), 1)


def broken(worker: str, kind: str) -> list[str]:
    return ["tests/trainer/scripts/break_transition.py", worker, kind, SCRIPT]


@pytest.mark.parametrize("kind", ["breaks-preparing", "breaks-prepared"])
@pytest.mark.parametrize("worker", ["w-0", "w-1"])
def test_groups_that_break_while_the_next_are_made_are_made_again_and_so_are_those(
    tmp_path: Path, calm: Gang, worker: str, kind: str
) -> None:
    with Gang(tmp_path, [*broken(worker, kind), "--out", str(tmp_path), *ADAM, LASTING], (40, 40, 16), CONFIG) as gang:
        gang.start(0)
        gang.await_step(3)
        gang.change({0: 40, 1: 30, 3: 26})
        assert gang.wait_for(2) == 0
        gang.await_generation(0, 1, 3)
        (tmp_path / "go").touch()
        gang.succeed(0, 1, 3)
        assert "formed again" in gang.logs()
    assert_the_same(gang, calm, 0, 1, 3)
    assert_each_sample_once_per_epoch(seen_once(tmp_path), EPOCHS)


@pytest.mark.parametrize("worker", ["w-0", "w-1", "w-2"])
def test_a_worker_that_misses_the_end_of_a_generation_follows_those_who_went_on(
    tmp_path: Path, calm: Gang, worker: str
) -> None:
    command = [*broken(worker, "misses-the-end"), "--out", str(tmp_path), *ADAM, LASTING]
    with Gang(tmp_path, command, (40, 40, 16), CONFIG) as gang:
        gang.start(0)
        gang.await_step(3)
        gang.change({0: 40, 1: 30, 3: 26})
        assert gang.wait_for(2) == 0
        gang.await_generation(0, 1, 3)
        (tmp_path / "go").touch()
        gang.succeed(0, 1, 3)
        assert worker == "w-2" or "formed again" in gang.logs()  # that one was to leave anyway
    assert gang.ending(2).left
    assert_the_same(gang, calm, 0, 1, 3)


def test_a_joiner_that_dies_stops_nobody_and_another_takes_its_place(tmp_path: Path, calm: Gang) -> None:
    command = [*broken("w-2", "dies-preparing"), "--out", str(tmp_path), *ADAM, LASTING]
    with Gang(tmp_path, command, (48, 48), CONFIG) as gang:
        gang.start(0)
        gang.await_step(3)
        gang.change({0: 40, 1: 40, 2: 16})
        assert gang.wait_for(2) == -signal.SIGKILL
        gang.start(0)
        gang.change({0: 40, 1: 40, 3: 16}, continues=1)
        gang.await_generation(0, 1, 3)
        (tmp_path / "go").touch()
        gang.succeed(0, 1, 3)
    assert_the_same(gang, calm, 0, 1, 3)
    assert_each_sample_once_per_epoch(samples_seen(tmp_path), EPOCHS)
    assert {record.version for record in gang.series(0)} == {10, 12}


@pytest.mark.parametrize(
    ("script", "options", "trait"),
    [
        ([SCRIPT], ("--width", "9"), "model"),
        ([SCRIPT], ("--registers", "average"), "set of registered objects"),
        ([OTHER_LIBRARY, "w-2", "other", SCRIPT], (), "library"),
    ],
)
def test_a_joiner_whose_script_or_library_is_another_is_refused_alone(
    tmp_path: Path, calm: Gang, script: list[str], options: tuple[str, ...], trait: str
) -> None:
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path), *ADAM, LASTING], (48, 48), CONFIG) as gang:
        gang.start(0, command=[*script, "--out", str(tmp_path), *ADAM, *options])
        gang.await_step(3)
        gang.change({0: 40, 1: 40, 2: 16})
        assert gang.wait_for(2) == 1
        assert f"w-2 has another {trait} than w-0" in gang.ending(2).message
        gang.await_log(0, f"plan 11 cannot be followed: w-2 has another {trait} than w-0")
        gang.change({0: 60, 1: 36}, continues=1)
        gang.await_generation(0, 1)
        (tmp_path / "go").touch()
        gang.succeed(0, 1)
    assert_the_same(gang, calm, 0, 1)


def test_a_joiner_with_a_library_that_does_not_compare_itself_is_refused_by_the_members(
    tmp_path: Path, calm: Gang
) -> None:
    older = [OTHER_LIBRARY, "w-2", "older", SCRIPT, "--out", str(tmp_path), *ADAM]
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path), *ADAM, LASTING], (48, 48), CONFIG) as gang:
        gang.start(0, command=older)
        gang.await_step(3)
        gang.change({0: 40, 1: 40, 2: 16})
        gang.await_log(0, "plan 11 cannot be followed: w-2 has another library than w-0 (unsaid and ")
        gang.change({0: 60, 1: 36}, continues=1)
        gang.await_generation(0, 1)
        (tmp_path / "go").touch()
        gang.succeed(0, 1)
    assert_the_same(gang, calm, 0, 1)


def test_a_joiner_that_is_asked_to_stop_leaves_alone(tmp_path: Path, calm: Gang) -> None:
    with Gang(tmp_path, [SCRIPT, "--out", str(tmp_path), *ADAM, LASTING], (48, 48), CONFIG) as gang:
        gang.await_step(3)
        gang.start(0)
        gang.await_phase(2, contract.PHASE_WAITING)
        gang.processes[1].send_signal(signal.SIGSTOP)  # so that the groups with the joiner are not made yet
        gang.change({0: 40, 1: 40, 2: 16})
        gang.await_phase(2, contract.PHASE_STARTING)
        gang.processes[2].send_signal(signal.SIGTERM)
        assert gang.wait_for(2) == contract.EXIT_PREEMPTED
        gang.processes[1].send_signal(signal.SIGCONT)
        (tmp_path / "go").touch()
        gang.succeed(0, 1)
    assert_the_same(gang, calm, 0, 1)
