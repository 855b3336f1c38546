"""Which trials are run, what is profiled and kept, how they are stopped, and whom a failure is blamed on."""

from __future__ import annotations

import signal
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heterotrain_operator.api import load_manifest, to_core
from heterotrain_operator.cli.local.chaos import PlannedFault, random_faults
from heterotrain_operator.core.model import Group, Job, Seen
from heterotrain_operator.core.prediction.learned import Learned
from heterotrain_operator.experiments import checkpoints
from heterotrain_operator.experiments.figures.history import TrialHistory
from heterotrain_operator.experiments.progress import Pace, committed_steps, reached_steps
from heterotrain_operator.experiments.trials.faults import FAULTS
from heterotrain_operator.experiments.trials.observer import entry_of
from heterotrain_operator.experiments.trials.profiling import endless, measured
from heterotrain_operator.experiments.trials.runner import Rounds
from heterotrain_operator.experiments.trials.stop import Insisted, Interrupted, StopSignals, stop_signals
from heterotrain_operator.experiments.trials.trial import (
    Trial,
    TrialResult,
    bounds_of,
    failing_worker,
    least_batches,
    trials_of,
    worker_names,
)
from unit.cli.commands import manifest, write_manifest
from unit.experiments.observed import JOB as TWO
from unit.experiments.observed import MOVED, QUIET, ended, seen

WORKERS = ("job-a-0", "job-a-1", "job-b-0")


@pytest.mark.parametrize(
    ("policies", "rounds", "profile", "levels", "slugs"),
    [
        (("Optimal",), 1, False, 1, ["optimal-1"]),
        (
            ("Optimal", "Uniform", "Static"),
            2,
            True,
            1,
            ["profile-0", "optimal-1", "uniform-1", "static-1", "static-2", "uniform-2", "optimal-2", "profile-1"],
        ),
        (
            ("Optimal",),
            1,
            True,
            2,
            ["profile-0", "profile-0-limits-1", "optimal-1", "profile-1-limits-1", "profile-1"],
        ),
    ],
)
def test_order_of_trials_is_reversed_between_rounds_and_every_level_is_profiled_before_and_after(
    policies: tuple[str, ...], rounds: int, profile: bool, levels: int, *, slugs: list[str]
) -> None:
    assert [trial.slug for trial in trials_of(policies, rounds, profile, levels)] == slugs


def test_workers_and_bounds_follow_the_groups():
    job = Job("j", (Group("a", 2, batch_min=2, batch_max=8), Group("b", 1)), global_batch=32)
    assert worker_names(job) == ("j-a-0", "j-a-1", "j-b-0")
    assert bounds_of(job) == {"j-a-0": (2, 8), "j-a-1": (2, 8), "j-b-0": (1, 32)}


def test_what_workers_reported_to_need_is_taken_from_all_trials_and_cut_to_what_they_may_compute():
    job = Job("j", (Group("a", 1, batch_max=4), Group("b", 2)), global_batch=32)
    reports: list[dict[str, int]] = [{}, {"j-a-0": 8, "j-b-0": 8, "gone": 8}, {"j-b-0": 0}]
    trial = Trial("Optimal", 1)
    history = TrialHistory("Optimal", 1, (), 0, "Succeeded")
    results = [TrialResult(trial, history, (), {}, None, report) for report in reports]
    assert least_batches(job, results) == {"j-a-0": 4, "j-b-0": 8, "j-b-1": 0}
    assert least_batches(job, []) == dict.fromkeys(worker_names(job), 0)


def test_profile_has_no_target_and_shows_scripts_the_jobs_own_end(tmp_path: Path):
    training = {"globalBatchSize": 32, "epochs": 1, "target": {"value": 0.1}}
    job = endless(load_manifest(write_manifest(tmp_path, manifest(training=training))))
    assert job.spec.training.target is None
    assert job.spec.training.epochs == 1
    assert to_core(job).global_batch == 32


def test_profile_ends_once_the_policy_has_nothing_more_to_try_and_everybody_is_measured():
    assert measured(TWO)(seen(40), QUIET)
    assert not measured(TWO)(seen(40), MOVED)
    assert not measured(Job("digits", TWO.groups, 96, interval=11))(seen(40), QUIET)


def test_profile_does_not_wait_for_ever_for_steps_that_nothing_measures(caplog: pytest.LogCaptureFixture):
    def unmeasured(step: int) -> Seen:
        now = seen(step)
        return replace(
            now,
            workers=tuple(
                replace(worker, metrics=replace(worker.metrics, steps=0.0)) for worker in now.workers if worker.metrics
            ),
        )

    done = measured(TWO)
    assert not done(unmeasured(40), QUIET)
    assert not done(unmeasured(40 + 5 * TWO.interval - 1), QUIET)
    assert done(unmeasured(40 + 5 * TWO.interval), QUIET)
    assert "of 50 steps with batches 80 / 16 none was fit for measuring" in caplog.text


@pytest.mark.parametrize(
    ("message", "failed", "worker"),
    [
        ("job-a-10 failed (exit code 1)", ["job-a-10", "job-a-1"], "job-a-10"),
        ("job-a-1: out of memory; then job-a-10 lost it", ["job-a-10", "job-a-1"], "job-a-1"),
        ("all workers failed alike", ["job-a-10", "job-a-1"], "job-a-10"),
        ("did not start in time", [], None),
    ],
)
def test_the_worker_to_blame_is_the_one_that_the_message_names(
    message: str, failed: list[str], worker: str | None
) -> None:
    assert failing_worker(message, failed) == worker


def test_decision_is_kept_with_its_reason_and_a_quiet_one_is_not() -> None:
    assert entry_of(1.0, 5, QUIET) is None
    entry = entry_of(2.5, 40, MOVED)
    assert entry is not None
    assert (entry.seconds, entry.step, entry.version, entry.batches) == (2.5, 40, 3, (80, 16))
    assert entry.events[0].message == "moving 8 samples to large"


def test_silence_of_workers_that_end_is_not_why_the_batches_stayed() -> None:
    nobody: Any = SimpleNamespace(look=lambda seen: (), show=lambda *shown: None)
    rounds = Rounds(nobody, nobody, nobody)
    rounds.note(seen(40), QUIET)
    silent = replace(seen(40), workers=tuple(replace(worker, metrics=None) for worker in seen(40).workers))
    rounds.note(silent, replace(QUIET, reason="plan 1 stays: metrics of none of the 2 workers can be read"))
    assert rounds.reason == QUIET.reason


def test_pace_is_measured_over_the_last_seconds_and_begins_again_after_a_restart() -> None:
    pace = Pace()
    assert pace.steps_per_second is None
    for second in range(60):
        pace.note(float(second), second if second < 30 else 30 + (second - 30) * 5)
    assert pace.steps_per_second == pytest.approx(5.0)
    pace.note(60.0, 100)
    assert pace.steps_per_second is None


@pytest.mark.parametrize(("now", "committed", "reached"), [(Seen(), 0, 0), (seen(391), 391, 391), (ended(400), 0, 400)])
def test_steps_of_workers_that_ended_are_those_of_their_last_words(now: Seen, committed: int, reached: int) -> None:
    assert (committed_steps(now), reached_steps(now)) == (committed, reached)


def test_first_signal_asks_and_second_insists_whenever_it_came() -> None:
    stop = StopSignals()
    stop.check()
    stop.handle(15)
    with pytest.raises(Interrupted) as asked:
        stop.check()
    assert asked.value.exit_code == 143
    with pytest.raises(Insisted), stop.insistable():
        stop.handle(15)
    with pytest.raises(Insisted) as insisted, stop.insistable():
        pytest.fail("was let in")
    assert insisted.value.exit_code == 143


@pytest.mark.parametrize("ignored", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_is_ignored_at_the_start_stays_ignored(ignored: signal.Signals) -> None:
    """As nohup wants of SIGHUP, and a shell of SIGINT for what it runs in the background."""
    before = signal.signal(ignored, signal.SIG_IGN)
    try:
        with stop_signals() as stop:
            signal.raise_signal(ignored)
            stop.check()
            signal.raise_signal(signal.SIGTERM)
            with pytest.raises(Interrupted):
                stop.check()
        assert signal.getsignal(ignored) is signal.SIG_IGN
    finally:
        signal.signal(ignored, before)


def test_checkpoints_are_moved_aside_not_removed(tmp_path: Path) -> None:
    for step in (100, 200):
        (tmp_path / f"step-{step:010d}.pt").touch()
    (tmp_path / ".step-0000000300.pt.partial").touch()
    assert checkpoints.newest_step(tmp_path) == 200
    aside = checkpoints.set_aside(tmp_path)
    assert checkpoints.newest_step(tmp_path) is None
    assert list(checkpoints.steps_in(aside)) == [100, 200]


def test_what_was_learned_is_left_for_later_jobs_and_learned_again_where_it_is_malformed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learned = (Learned("a", 60, 0.1, 0.2, (0.5, 1.0)), Learned("b", 70, 0.2, 0.2, (0.5,)))
    folder = tmp_path / "job"
    assert checkpoints.learned_in(folder) == ()
    checkpoints.keep_learned(folder, learned)
    assert checkpoints.learned_in(folder) == learned
    assert not caplog.records
    for text, left in (('[["a", 60, 0.1, 0.2, 1e99], ["b", 70, 0.2, 0.2, 0.5]]', learned[1:]), ("{", ()), ("7", ())):
        caplog.clear()
        (folder / checkpoints.LEARNED_FILE).write_text(text)
        assert checkpoints.learned_in(folder) == left
        assert len(caplog.records) == 1


def drawn(seed: int, count: int = 200) -> list[PlannedFault]:
    return list(islice(random_faults(seed, WORKERS, FAULTS, 10.0), count))


def test_same_seed_means_the_same_faults() -> None:
    assert drawn(7) != drawn(8)
    # Fixed for all versions of Python, so that what failed once can be run again.
    assert [(round(each.at, 2), each.fault, each.worker) for each in drawn(7, 3)] == [
        (8.24, "stop", "job-a-1"),
        (13.96, "starve", "job-a-1"),
        (19.54, "starve", "job-a-0"),
    ]


def test_every_worker_gets_every_fault_and_gaps_are_near_what_was_asked_for() -> None:
    faults = drawn(1)
    assert {(each.fault, each.worker) for each in faults} == {(fault, worker) for fault in FAULTS for worker in WORKERS}
    gaps = [other.at - one.at for one, other in pairwise(faults)]
    assert min(gaps) >= 5.0
    assert max(gaps) <= 15.0
    assert 9.0 < sum(gaps) / len(gaps) < 11.0
