"""The benchmark of the operator's own cost runs, and its job trains meanwhile."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import rounds

SCRIPT = Path(rounds.__file__)


def test_it_runs_and_a_round_costs_more_than_its_reading() -> None:
    command = [sys.executable, str(SCRIPT), "--workers", "3", "--rounds", "20", "--repetitions", "3", "--json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)
    costs = {cost["what"]: cost["median"] for cost in found["costs"]}
    assert found["workers"] == 3
    assert 0 < costs["reading alone"] < costs["round"]


@pytest.mark.parametrize("option", ["--workers", "--rounds", "--repetitions"])
def test_numbers_that_make_no_sense_are_refused(option: str) -> None:
    with pytest.raises(SystemExit) as ended:
        rounds.main([option, "0"])
    assert ended.value.code == 2
