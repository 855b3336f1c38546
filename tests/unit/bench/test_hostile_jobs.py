"""The benchmark of hostile jobs runs, and one's own job has its rounds beside them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import hostile_jobs
import pytest

SCRIPT = Path(hostile_jobs.__file__)


def test_it_counts_rounds_with_and_without_hostile_jobs() -> None:
    command = [sys.executable, str(SCRIPT), "--jobs", "2", "--seconds", "1", "--only", "costly servers", "--json"]
    packages = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": packages}
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, env=environment)
    alone, beside = json.loads(run.stdout)["results"]
    assert (alone["beside"], alone["jobs"], alone["asked"]) == ("nobody", 0, 0)
    assert (beside["beside"], beside["jobs"]) == ("costly servers", 2)
    assert beside["asked"] > 0
    assert min(alone["rounds_per_second"], beside["rounds_per_second"]) > 0


@pytest.mark.parametrize("option", ["--jobs", "--seconds"])
def test_numbers_that_make_no_sense_are_refused(option: str) -> None:
    with pytest.raises(SystemExit) as ended:
        hostile_jobs.main([option, "0"])
    assert ended.value.code == 2
