"""Members change while the others train: nobody restarts, no sample is lost, the model is the same. Real processes."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from heterotrain import contract
from heterotrain import worker_metrics as table
from trainer.story import (
    BREAK_TRANSITION,
    CONFIG,
    DISTURBED,
    assert_hold,
    assert_left,
    assert_preempted,
    assert_replayed,
    command,
    end_as_undisturbed,
    formed,
    send,
    story,
)

pytestmark = pytest.mark.processes

OTHER_LIBRARY = (DISTURBED, "library")


def test_workers_warm_up_join_are_swapped_and_leave_while_the_others_train(tmp_path: Path) -> None:
    with story(tmp_path, (60, 36), CONFIG, "--apart", environment={contract.ENV_WARM_UP: "1"}) as gang:
        gang.await_step(3)
        # Who is created beside training warms up, with the batches that it may get, before it says that it waits.
        gang.start(0)
        gang.await_phase(2, contract.PHASE_WAITING)
        assert [batch for batch, seconds in gang.by_label(2, table.WARM_UP_SECONDS).items() if seconds > 0] == [36, 18]
        assert gang.metric(2, table.STEP.name) == 0
        # It joins.
        gang.change({0: 40, 1: 40, 2: 16})
        gang.await_generation(0, 1, 2)
        assert gang.by_label(2, table.WARM_UP_SECONDS) == {}
        # The same members go over to other groups, some without samples.
        gang.change({0: 90, 1: 6, 2: 0})
        gang.await_generation(0, 1, 2)
        # The leader is swapped for another worker.
        gang.start(0)
        gang.change({1: 40, 2: 40, 3: 16})
        assert_left(gang, 0)
        gang.await_generation(1, 2, 3)
        # One leaves from the middle.
        gang.change({1: 50, 3: 46})
        assert_left(gang, 2)
        gang.await_generation(1, 3)
        # Two join at once, and two leave at once.
        gang.start(0)
        gang.start(0)
        gang.change({1: 30, 3: 30, 4: 20, 5: 16})
        gang.await_generation(1, 3, 4, 5)
        assert_replayed(gang, 0, 1, 3)
        gang.change({4: 50, 5: 46})
        assert_left(gang, 1, 3)
        gang.await_generation(4, 5)
        end_as_undisturbed(gang, 4, 5)
    assert gang.series(5)[0].step > gang.series(2)[0].step >= 3, "who joins begins where the others are"


def test_a_joiner_that_dies_or_is_another_or_is_asked_to_stop_stops_nobody(tmp_path: Path) -> None:
    with story(tmp_path, (48, 48)) as gang:

        def joins(*options: str, breaking: tuple[str, ...] = ()) -> int:
            number = len(gang.members)
            gang.start(0, command=command(tmp_path, *options, breaking=breaking))
            gang.change({0: 40, 1: 40, number: 16}, continues=1)
            return number

        def assert_refused(number: int, trait: str) -> None:
            assert gang.wait_for(number) == 1
            assert f"w-{number} has another {trait} than w-0" in gang.ending(number).message
            says = f"plan {gang.plan.version} cannot be followed: w-{number} has another {trait} than w-0"
            gang.await_log(0, says)

        gang.await_step(3)
        # It dies while groups with it are made.
        assert gang.wait_for(joins(breaking=(*BREAK_TRANSITION, "w-2", "dies-preparing"))) == -signal.SIGKILL
        # Its model, what it registers or its library are others; an older library does not compare itself.
        assert_refused(joins("--width", "9"), "model")
        assert_refused(joins("--registers", "average"), "set of registered objects")
        assert_refused(joins(breaking=(*OTHER_LIBRARY, "w-5", "other")), "library")
        older = joins(breaking=(*OTHER_LIBRARY, f"w-{len(gang.members)}", "older"))
        gang.await_log(
            0, f"plan {gang.plan.version} cannot be followed: w-{older} has another library than w-0 (unsaid"
        )
        gang.processes[older].kill()
        # It is asked to stop before the groups with it are made.
        gang.start(0)
        gang.await_phase(7, contract.PHASE_WAITING)
        send(gang, signal.SIGSTOP, 1)
        gang.change({0: 40, 1: 40, 7: 16}, continues=1)
        gang.await_phase(7, contract.PHASE_STARTING)
        send(gang, signal.SIGTERM, 7)
        assert_preempted(gang, 7)
        send(gang, signal.SIGCONT, 1)
        # Another one joins, with the plan that follows.
        joined = joins()
        gang.await_generation(0, 1, joined)
        end_as_undisturbed(gang, 0, 1, joined)
    assert {record.version for record in gang.series(0)} == {10, gang.plan.version}, "no other plan was followed"


@pytest.mark.parametrize(
    ("worker", "kind"),
    [
        ("w-1", "breaks-prepared"),
        ("w-0", "misses-the-end"),
        *[
            pytest.param(worker, kind, marks=pytest.mark.long)
            for worker, kind in [
                ("w-0", "breaks-prepared"),
                ("w-0", "breaks-preparing"),
                ("w-1", "breaks-preparing"),
                ("w-1", "misses-the-end"),
                ("w-2", "misses-the-end"),
            ]
        ],
    ],
)
def test_groups_that_break_in_the_midst_of_a_change_are_made_again_and_the_change_is_made(
    tmp_path: Path, worker: str, kind: str
) -> None:
    with story(tmp_path, (40, 40, 16), breaking=(*BREAK_TRANSITION, worker, kind)) as gang:
        gang.start(0)
        gang.await_step(3)
        gang.change({0: 40, 1: 30, 3: 26})
        assert gang.wait_for(2) == 0
        assert gang.ending(2).left
        gang.await_generation(0, 1, 3)
        end_as_undisturbed(gang, 0, 1, 3)
    assert worker == "w-2" or "formed again" in gang.logs()  # that one was to leave anyway


def test_members_hold_whoever_joins_leaves_or_is_killed_and_go_on_with_the_next_plan(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    config = replace(CONFIG, checkpoint_path=str(folder), checkpoint_every_steps=1_000_000)
    with story(tmp_path, (40, 40, 16), config) as gang:
        gang.await_step(3)
        # Whoever holds takes no step, and the leader writes a checkpoint.
        gang.publish(40, 40, 16, holds=True)
        assert_hold(gang, 0, 1, 2)
        step = int(gang.metric(0, table.STEP.name) or 0)
        [written] = folder.iterdir()
        assert written.name == f"step-{step:010d}.pt"
        # If one is killed meanwhile nobody trains; after the leader, which may have been killed before the checkpoint
        # was whole, another one writes it again.
        send(gang, signal.SIGKILL, 0)
        written.unlink()
        formed(gang, 1, 2)
        gang.await_log(1, f"checkpoint of step {step} written")
        assert [path.name for path in folder.iterdir()] == [written.name]
        assert_hold(gang, 1, 2)
        # Who joins holds with the others, and who is asked to stop leaves the others holding.
        gang.start(0)
        gang.change({1: 50, 2: 30, 3: 16}, holds=True)
        assert_hold(gang, 1, 2, 3)
        send(gang, signal.SIGTERM, 2)
        assert_preempted(gang, 2)
        assert_hold(gang, 1, 3)
        # They go on with the next plan that does not hold, also after one was killed and the others had to hold.
        gang.change({1: 60, 3: 36})
        gang.await_generation(1, 3)
        send(gang, signal.SIGKILL, 3)
        gang.change({1: 96}, holds=True)
        assert_hold(gang, 1)
        gang.start(0)
        gang.change({1: 56, 4: 40})
        gang.await_generation(1, 4)
        end_as_undisturbed(gang, 1, 4)
