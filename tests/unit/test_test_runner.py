"""`make test` runs both parts of the tests, whatever the first one finds, and again just what failed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

PYTHON = """#!/bin/sh
# A Python whose tests of each part end with a code.
echo "$*" >> calls
case "$*" in
  *pytest_cache/unit*) exit {unit} ;;
  *pytest_cache/gangs*) exit {gangs} ;;
esac
"""


class Checkout:
    """A checkout in which the parts of the tests end with these exit codes of pytest."""

    def __init__(self, folder: Path, unit: int, gangs: int) -> None:
        self._folder = folder
        (folder / "hack").mkdir()
        (folder / ".venv/bin").mkdir(parents=True)
        shutil.copy(REPOSITORY / "hack" / "tests.sh", folder / "hack")
        self.ends(unit, gangs)

    def ends(self, unit: int, gangs: int) -> None:
        """From now on the parts end with these."""
        python = self._folder / ".venv/bin/python"
        python.write_text(PYTHON.format(unit=unit, gangs=gangs))
        python.chmod(0o755)

    def test(self, *arguments: str) -> tuple[int, list[str]]:
        """The script's exit code, and the arguments of each run of pytest."""
        (self._folder / "calls").unlink(missing_ok=True)
        done = subprocess.run([str(self._folder / "hack/tests.sh"), *arguments], check=False)
        return done.returncode, (self._folder / "calls").read_text().splitlines()


@pytest.mark.parametrize(("unit", "gangs", "code"), [(0, 0, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1)])
def test_both_parts_run_and_a_failure_in_either_counts(tmp_path: Path, unit: int, gangs: int, code: int) -> None:
    found, calls = Checkout(tmp_path, unit, gangs).test()
    assert found == code
    assert ["pytest_cache/unit" in call for call in calls] == [True, False]
    assert ["pytest_cache/gangs" in call for call in calls] == [False, True]


def test_only_tests_of_one_process_run_side_by_side(tmp_path: Path) -> None:
    _, (unit, gangs) = Checkout(tmp_path, 0, 0).test()
    assert "--numprocesses" in unit
    assert "not processes" in unit
    assert "--numprocesses" not in gangs


def test_unit_tests_alone(tmp_path: Path) -> None:
    code, calls = Checkout(tmp_path, 0, 1).test("--unit")
    assert code == 0
    assert len(calls) == 1


@pytest.mark.parametrize(("unit", "gangs", "code"), [(0, 5, 0), (5, 0, 0), (5, 1, 1)])
def test_of_what_failed_a_part_may_have_nothing(tmp_path: Path, unit: int, gangs: int, code: int) -> None:
    checkout = Checkout(tmp_path, 1, 1)
    checkout.test()
    checkout.ends(unit, gangs)
    found, calls = checkout.test("--last-failed")
    assert found == code
    assert all("--last-failed --last-failed-no-failures none" in call for call in calls)


@pytest.mark.parametrize("never_began", [True, False])
def test_a_part_that_did_not_come_to_its_end_is_run_whole_again(tmp_path: Path, never_began: bool) -> None:
    checkout = Checkout(tmp_path, 0, 0)
    checkout.test()
    checkout.ends(2 if never_began else 1, 3)
    checkout.test()
    checkout.ends(0, 0)
    code, (unit, gangs) = checkout.test("--last-failed")
    assert code == 0
    assert ("--last-failed" in unit) is not never_began
    assert "--last-failed" not in gangs


def test_a_part_that_lost_its_tests_is_a_failure(tmp_path: Path) -> None:
    code, _ = Checkout(tmp_path, 5, 0).test()
    assert code == 5


@pytest.mark.parametrize("code", [2, 3, 4])
def test_what_is_interrupted_or_cannot_run_ends_it(tmp_path: Path, code: int) -> None:
    found, calls = Checkout(tmp_path, code, 0).test()
    assert found == code
    assert len(calls) == 1
