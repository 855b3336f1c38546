"""Random faults at jobs of real workers by the command line: all end with the model of the undisturbed run."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos import Setting, run, undisturbed
from chaos_findings import Expected

pytestmark = [pytest.mark.processes, pytest.mark.long]

SETTING = Setting()
SEEDS = (1, 2, 3)
"""Twelve faults, close to one another and apart, shorter and longer than the silence that tells, with loaders and
without; `python hack/bench/chaos.py` tries more."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    return undisturbed(tmp_path_factory.mktemp("undisturbed") / "alone", SETTING)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_ends_as_the_undisturbed_one_whatever_befalls_its_workers(
    seed: int, tmp_path: Path, expected: Expected
) -> None:
    outcome = run(tmp_path / "job", SETTING, seed, expected)
    print(f"{outcome.seconds:.0f} s", *outcome.done, sep="\n")
    assert not outcome.wrong
