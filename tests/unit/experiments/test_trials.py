"""Which trials are run, what is profiled, and whom a failure is blamed on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from heterotrain_operator.api import load_manifest, to_core
from heterotrain_operator.core.model import Group, Job, Seen
from heterotrain_operator.experiments.figures.history import TrialHistory
from heterotrain_operator.experiments.trials.profiling import endless, measured
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
from unit.experiments.observed import MOVED, QUIET, seen


def test_order_of_trials_is_reversed_between_rounds():
    slugs = [trial.slug for trial in trials_of(("Optimal", "Uniform", "Static"), 2, profile=True)]
    assert slugs == [
        "profile-0",
        "optimal-1",
        "uniform-1",
        "static-1",
        "static-2",
        "uniform-2",
        "optimal-2",
        "profile-1",
    ]


def test_single_trial_needs_no_profile():
    assert [trial.slug for trial in trials_of(("Optimal",), 1, profile=False)] == ["optimal-1"]


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


def test_profile_ends_once_the_policy_has_nothing_more_to_try():
    assert measured(TWO)(seen(40), QUIET)
    assert not measured(TWO)(seen(40), MOVED)


def test_profile_goes_on_until_everybody_is_measured():
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
    ("message", "worker"),
    [
        ("job-a-10 failed (exit code 1)", "job-a-10"),
        ("job-a-1: out of memory; then job-a-10 lost it", "job-a-1"),
        ("all workers failed alike", "job-a-10"),
    ],
)
def test_the_worker_to_blame_is_the_one_that_the_message_names(message: str, worker: str) -> None:
    assert failing_worker(message, ["job-a-10", "job-a-1"]) == worker


def test_nobody_is_to_blame_where_nobody_failed() -> None:
    assert failing_worker("did not start in time", []) is None
