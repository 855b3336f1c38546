"""What an experiment runs, how its trials are called, and what it reports while it runs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from heterotrain_operator.api import parse_manifest
from heterotrain_operator.clusters.local.limits import detect
from heterotrain_operator.core.model import Job
from heterotrain_operator.experiments.experiment import experiment_of, placements_of, run_trials, summary_of
from heterotrain_operator.experiments.figures.history import Level
from heterotrain_operator.experiments.schedules.schedule import Change, Schedule
from heterotrain_operator.experiments.trials.observer import Observer
from heterotrain_operator.experiments.trials.stop import StopSignals
from unit.cli.commands import manifest

JOB = parse_manifest(manifest())


def test_one_trial_needs_neither_a_round_nor_a_position_in_its_title():
    alone = experiment_of(JOB)
    assert [alone.title(trial) for trial in alone.trials] == ["Optimal"]
    assert alone.positions() == [""]


def test_compared_trials_are_counted_and_profiles_are_not():
    compared = experiment_of(JOB, compared=("Uniform",))
    assert list(zip(map(compared.title, compared.trials), compared.positions(), strict=True)) == [
        ("Profile before the trials", ""),
        ("Optimal", "trial 1 of 2"),
        ("Uniform", "trial 2 of 2"),
        ("Profile after the trials", ""),
    ]


def test_titles_name_the_round_and_the_limits_where_there_are_several():
    limits = {"job-cpu-0": 1.0, "job-cpu-1": 1.0}
    schedule = Schedule((Level("declared", limits), Level("less", limits)), (Change(5, 1, "less"),))
    twice = experiment_of(JOB, policy="Static", rounds=2, ceiling=True, schedule=schedule)
    assert [twice.title(trial) for trial in twice.trials] == [
        "Profile before the trials, limits declared",
        "Profile before the trials, limits less",
        "Static (round 1)",
        "Static (round 2)",
        "Profile after the trials, limits less",
        "Profile after the trials, limits declared",
    ]


class Reports(Observer):
    """Keeps what was reported."""

    def __init__(self) -> None:
        self.received: list[str] = []
        self.logs: dict[str, str] = {}
        self._log_file: Callable[[str], Path] | None = None

    def begin(
        self, title: str, job: Job, log_file: Callable[[str], Path], *, position: str = "", endless: bool = False
    ) -> None:
        self.received.append(f"{title} begins")
        self._log_file = log_file

    def end(self) -> None:
        self.received.append("ends")
        assert self._log_file is not None
        self.logs = {name: self._log_file(name).read_text("utf-8") for name in ("job-cpu-0", "job-cpu-1")}


@pytest.mark.processes
def test_a_trial_that_fails_ends_the_experiment_and_names_its_worker(tmp_path: Path):
    job = parse_manifest(manifest("print('here'); raise SystemExit(3)", runPolicy={"backoffLimit": 0}))
    experiment = experiment_of(job, rounds=2)
    observer, mechanism = Reports(), detect()
    results = run_trials(
        experiment,
        tmp_path,
        mechanism=mechanism,
        observer=observer,
        stop=StopSignals(),
        placements=placements_of(experiment),
    )
    assert observer.received == ["Optimal (round 1) begins", "ends"], "the second round is not run"
    (result,) = results
    assert result.failed is not None
    assert result.failed.log.is_relative_to(tmp_path)
    assert "here" in observer.logs[result.failed.name]
    summary = summary_of(experiment, results, mechanism.describe())
    assert (summary.phase, summary.limits) == ("Failed", mechanism.describe())
    assert result.failed.name in summary.message
