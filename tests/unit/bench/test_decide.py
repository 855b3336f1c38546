"""The benchmark of a decision's cost runs, and prints what its readers expect."""

import json
import subprocess
import sys
from pathlib import Path

import decide
import pytest

SCRIPT = Path(decide.__file__)


def test_it_runs_and_says_what_a_decision_costs_by_the_number_of_workers() -> None:
    command = [sys.executable, str(SCRIPT), "--workers", "3", "40", "--repetitions", "5", "--json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)
    assert [decision["workers"] for decision in found["decisions"]] == [3, 40]
    for decision in found["decisions"]:
        assert min(decision["cpu_milliseconds"], decision["without_news_cpu_milliseconds"]) > 0


def test_its_table_has_a_line_for_each_number_of_workers(capsys: pytest.CaptureFixture[str]) -> None:
    assert decide.main(["--workers", "2", "5", "--repetitions", "1"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["workers", "2", "5"]


@pytest.mark.parametrize("option", ["--workers", "--repetitions"])
def test_numbers_that_make_no_sense_are_refused(option: str) -> None:
    with pytest.raises(SystemExit) as ended:
        decide.main([option, "0"])
    assert ended.value.code == 2
