"""Jobs on this machine from Python: the page's own code, and a job that is ended before its time."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from heterotrain_client import Client, JobExistsError, JobFailedError, JobNotFoundError, WaitTimeoutError
from unit.cli.commands import TRAIN, manifest, processes_that_mention

pytestmark = pytest.mark.processes

PAGE = Path(__file__).parents[2] / "docs" / "python-client.md"


def test_the_page_s_code_runs_a_function_and_reports_it(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)[0]
    (tmp_path / "page.py").write_text(code, "utf-8")
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "train-cpu-500m-0 | trained 40 steps\n" in done.stdout
    assert re.search(r"^40 \[\d+, \d+\]$", done.stdout, re.M)
    assert "What happened in optimal-1:" in done.stdout
    assert "train   Succeeded" in done.stdout
    assert not list((tmp_path / ".heterotrain" / "runs").iterdir())


def test_a_job_that_runs_is_followed_and_ended(tmp_path: Path) -> None:
    client = Client(folder=tmp_path)
    job = client.submit(manifest(TRAIN, training={"globalBatchSize": 32, "steps": 100_000}))
    try:
        assert (job.name, job.phase) == ("job", "Created")
        job = client.wait("job", until="Running", timeout=120)
        with pytest.raises(JobExistsError, match=r"job job runs already"):
            client.submit(manifest())
        with pytest.raises(WaitTimeoutError, match=r"it is Running"):
            client.wait("job", timeout=1)
        job = Client(folder=tmp_path).get_job("job")  # of another process it is the same
        assert [worker.name for worker in job.status.workers] == ["job-cpu-0", "job-cpu-1"]
        while not (last := [*client.logs("job", worker="cpu-0", tail=1)]):  # it may have printed nothing yet
            time.sleep(0.1)
        assert len(last) == 1
    finally:
        client.delete("job")
    assert not processes_that_mention(str(tmp_path))
    with pytest.raises(JobNotFoundError):
        client.status("job")


def test_a_run_that_ends_without_a_word_has_failed_with_what_it_printed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import heterotrain\nheterotrain.join(epochs=0)\n", "utf-8")
    client = Client(folder=tmp_path)
    client.run("train.py", workers=1)
    with pytest.raises(JobFailedError, match=r"train.py: epochs of join\(\): must be a whole number of at least 1"):
        client.wait("train", timeout=120)
