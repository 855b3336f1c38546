"""A job that was stopped or lost goes on from its newest checkpoint with whatever workers come. Real processes."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from heterotrain import contract
from heterotrain import worker_metrics as table
from heterotrain.state.owner import OWNER
from trainer.gang import STAY, Gang
from trainer.story import (
    BREAK_TRANSITION,
    CONFIG,
    DISTURBED,
    IMPATIENT,
    SCRIPT,
    assert_preempted,
    assert_replayed,
    end_as_undisturbed,
    formed,
    send,
    story,
)

pytestmark = pytest.mark.processes


def name(step: int) -> str:
    return f"step-{step:010d}.pt"


def test_who_is_asked_to_stop_leaves_until_all_have_and_the_job_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    config = replace(CONFIG, checkpoint_path=str(folder))
    with story(tmp_path, (30, 24, 16, 14, 12), config) as gang:
        gang.await_step(3)
        # A follower, and then two at once of which one is the leader: the others go on, and do no step again.
        send(gang, signal.SIGTERM, 1)
        assert_preempted(gang, 1)
        formed(gang, 0, 2, 3, 4)
        send(gang, signal.SIGTERM, 0, 2)
        assert_preempted(gang, 0, 2)
        formed(gang, 3, 4)
        assert_replayed(gang, 0, 3, 4)
        # The last one writes a checkpoint.
        for number in (3, 4):
            send(gang, signal.SIGTERM, number)
            assert_preempted(gang, number)
    step = gang.ending(4).step
    assert [path.name for path in folder.iterdir()] == [name(step)]
    # Other workers begin with it, also those whose leader dies while it hands it on.
    dying = (*BREAK_TRANSITION, "w-0", "dies-handing-over")
    with story(tmp_path, (40, 40, 16), config, breaking=dying, generation=2) as gang:
        assert gang.wait_for(0) == -signal.SIGKILL
        end_as_undisturbed(gang, 1, 2)
    assert f"resumed at step {step}" in (tmp_path / "uid-2-1.log").read_text()
    assert min(gang.losses()) == step


def test_a_job_whose_workers_were_all_killed_goes_on_from_the_newest_checkpoint_that_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    config = replace(CONFIG, checkpoint_path=str(folder), checkpoint_every_steps=10, checkpoint_keep=2)
    with story(tmp_path, (40, 40, 16), config, environment={contract.ENV_JOB_UID: "one"}) as gang:
        gang.await_metric(0, table.CHECKPOINT_STEP.name, 20)
        gang.stop(signal.SIGKILL)
        gang.wait()
    assert (folder / OWNER).read_text() == "one"
    (folder / OWNER).unlink()  # instead of waiting for a sign of that job's life
    before, newest = sorted(folder.glob("step-*.pt"))
    os.truncate(newest, 1000)
    # One that is damaged is passed over. Nothing of a rank is in a checkpoint, so another mix of workers goes on.
    again = {contract.ENV_JOB_UID: "another"}
    with story(tmp_path, (60, 36), config, environment=again, generation=2) as gang:
        # The leader of a job that was created again says what it went on from.
        gang.await_metric(0, table.RESUMED_STEP.name, 10)
        assert gang.metric(1, table.RESUMED_STEP.name) is None
        assert gang.metric(0, table.RESUMED_STEP.name) == int(before.stem.removeprefix("step-"))
        end_as_undisturbed(gang, 0, 1)
    assert "passed over" in gang.logs()
    assert min(gang.losses()) == gang.series(1)[0].step == int(before.stem.removeprefix("step-"))
    last = max(gang.losses()) + 1
    assert sorted(path.name for path in folder.iterdir()) == [name(last // 10 * 10), name(last)], "the newest two stay"
    # A model that does not fit is no failure to try again.
    with story(tmp_path, (60, 36), config, "--width", "40", environment=again, generation=3) as gang:
        assert gang.wait_for(0) == 1
        assert gang.ending(0).fatal
        assert "does not fit" in gang.ending(0).message
        assert "spec.checkpoint.resume: Never" in gang.ending(0).message
    # A full disk ends the job and leaves the last good checkpoint. A limit on the size of written files stands in for
    # it: it fails in the middle of the write as well.
    content = (folder / name(last)).read_bytes()
    limited = [
        "-c",
        f"import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); "
        f"sys.argv = ['train.py', '--out', {str(tmp_path)!r}, '--optimizer', 'adam']; "
        f"runpy.run_path({SCRIPT!r}, run_name='__main__')",
    ]
    with Gang(tmp_path, limited, (60, 36), replace(config, epochs=14), generation=4) as gang:
        assert gang.wait()[0] == 1
    assert f"cannot write the checkpoint of step {last // 10 * 10 + 10}" in gang.ending(0).message
    assert "earlier checkpoints are untouched" in gang.ending(0).message
    assert (folder / name(last)).read_bytes() == content
    assert not list(folder.glob(".step*"))


def test_members_that_stay_leave_at_one_step_with_a_checkpoint_if_one_is_asked_to_stop(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with story(tmp_path, (40, 40, 16), replace(CONFIG, checkpoint_path=str(folder)), environment=STAY) as gang:
        gang.await_step(3)
        send(gang, signal.SIGTERM, 1)  # one is asked, all agree
        assert_preempted(gang, 0, 1, 2)
    [step] = {gang.series(rank)[-1].step + 1 for rank in range(3)}
    assert [path.name for path in folder.iterdir()] == [name(step)]
    assert gang.ending(1).message.startswith("asked to stop")
    assert gang.ending(0).message.startswith("another worker was asked to stop")


@pytest.mark.parametrize(
    "silent", [signal.SIGSTOP, pytest.param(signal.SIGKILL, marks=pytest.mark.long)], ids=["frozen", "killed"]
)
def test_asked_to_stop_beside_a_peer_that_is_silent_the_leader_still_saves(
    tmp_path: Path, silent: signal.Signals
) -> None:
    folder = tmp_path / "checkpoints"
    config = replace(IMPATIENT, checkpoint_path=str(folder))
    with story(tmp_path, (40, 56), config, breaking=(DISTURBED, "short-stop")) as gang:
        gang.await_step(3)
        send(gang, silent, 1)
        gang.stop()
        assert_preempted(gang, 0)
    assert [path.name for path in folder.iterdir()] == [name(gang.series(0)[-1].step + 1)]


@pytest.mark.long
def test_without_its_peer_a_worker_that_needs_it_gives_up_and_names_it(tmp_path: Path) -> None:
    config = replace(CONFIG, progress_timeout_seconds=2)
    with story(tmp_path, (40, 40, 16), config, environment=STAY) as gang:
        gang.await_step(3)
        send(gang, signal.SIGKILL, 2)
        assert gang.wait()[0] == 1
    assert "gave up waiting for w-2" in gang.ending(0).message
    assert not gang.ending(0).finished
