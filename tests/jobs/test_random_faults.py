"""Random faults at jobs of real workers by the command line: all end with the model of the undisturbed run."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos_findings import Expected
from chaos_job import Setting
from chaos_run import run, undisturbed
from chaos_schedule import schedule, variant

pytestmark = [pytest.mark.processes, pytest.mark.long]

SETTING = Setting()
FAULTS_OF_A_JOB = 4
SEEDS = range(5)
"""Twenty faults; `python hack/bench/chaos.py` tries more."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    return undisturbed(tmp_path_factory.mktemp("undisturbed") / "alone", SETTING)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_ends_as_the_undisturbed_one_whatever_befalls_its_workers(
    seed: int, tmp_path: Path, expected: Expected
) -> None:
    faults = schedule(seed, SETTING.workers, FAULTS_OF_A_JOB, SETTING.heartbeat_timeout)
    outcome = run(tmp_path / "job", SETTING, faults, expected, variant(seed))
    print(f"{outcome.seconds:.0f} s, {outcome.started_seconds:.0f} until all trained:", *outcome.done, sep="\n")
    assert not outcome.wrong
