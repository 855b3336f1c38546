"""`heterotrain chaos`: how a running job is found, what is refused, and random schedules."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from heterotrain_operator.cli.main import main
from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.experiments import control, runs
from heterotrain_operator.experiments.control import ControlServer
from unit.cli.commands import eventually, manifest, processes_that_mention, start, write_manifest


class Run:
    """A run as its socket shows it; it keeps what was asked."""

    def __init__(self, job: str, folder: Path) -> None:
        self.asked: list[dict[str, Any]] = []
        self.added: dict[str, int] = {}
        self.folder = folder
        self._job = job
        self._server = ControlServer(folder)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ended.wait(0.005):
            self._server.serve(self._answer)

    def _answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        if question["do"] == "list":
            workers = [{"worker": f"{self._job}-{index}", "running": index < 2, "faults": []} for index in range(3)]
            return {"job": self._job, "trial": "optimal-1", "workers": workers, "added": self.added}
        self.asked.append(dict(question))
        if question["worker"] == f"{self._job}-2":
            return {"error": f"{question['worker']} is not running", "kind": "failed"}
        return {"message": f"{question['worker']}: {question['do']}", "step": 7, "do": question["do"]}

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self._server.close()


RunOf = Callable[..., Run]


@pytest.fixture
def run_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunOf]:
    """Starts a run of a job in the current folder, in its own folder or in that of --out."""
    monkeypatch.chdir(tmp_path)
    moments = iter(range(99))
    with ExitStack() as stack:

        def make(job: str, out: Path | None = None) -> Run:
            folder = runs.begin(tmp_path, job, out, datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=next(moments)))
            made = Run(job, folder)
            stack.callback(made.end)
            return made

        yield make


def test_jobs_that_run_at_once_are_told_apart(run_of: RunOf, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = run_of("one"), run_of("other")
    assert main(["chaos", "one", "stop", "one-0", "--for", "2.5"]) == 0
    assert capsys.readouterr().out == "one-0: stop (after step 7)\n"
    assert main(["chaos", "other", "slow", "other-1", "--neighbours", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["do"] == "slow"
    assert one.asked == [{"do": "stop", "worker": "one-0", "neighbours": 1, "seconds": 2.5}]
    assert other.asked == [{"do": "slow", "worker": "other-1", "neighbours": 3}]


def test_without_a_fault_the_workers_and_groups_that_have_grown_are_shown(
    run_of: RunOf, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of("job")
    assert main(["chaos", "job"]) == 0
    assert capsys.readouterr().out == "job-0: no fault\njob-1: no fault\njob-2: not running\n"
    run.added["cpu"] = 2
    assert main(["chaos", "job"]) == 0
    assert capsys.readouterr().out.endswith("\ngroup cpu: 2 workers more than at first\n")
    assert main(["chaos", "job", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["workers"]) == 3
    assert main(["chaos", "job", "kill", "job-2"]) == 1
    assert capsys.readouterr().err.endswith("chaos: job-2 is not running\n"), "a fault that cannot be had is a failure"


def test_run_is_found_by_its_folder_too(run_of: RunOf, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    run_of("job", tmp_path / "out")
    for name in ("job", "out", "./out", str(tmp_path / "out")):
        assert main(["chaos", name, "kill", "job-0"]) == 0, capsys.readouterr().err


def test_of_several_runs_of_one_job_the_folder_decides(run_of: RunOf, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = run_of("job"), run_of("job")
    assert main(["chaos", "job", "kill", "job-0"]) == 2
    said = capsys.readouterr().err
    folders = [f"{run.folder.relative_to(Path.cwd())}" for run in (first, second)]
    assert "several runs of job 'job' go on in this folder; name one by its folder" in said
    assert all(folder in said for folder in folders)
    assert main(["chaos", folders[0], "kill", "job-0"]) == 0
    assert (len(first.asked), len(second.asked)) == (1, 0)


def test_folder_that_another_job_uses_now_is_no_run_of_the_job(
    run_of: RunOf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    run_of("earlier", tmp_path / "out").end()
    run_of("later", tmp_path / "out")
    assert main(["chaos", "earlier", "kill", "earlier-0"]) == 2
    assert main(["chaos", "later", "kill", "later-0"]) == 0


def test_job_that_does_not_run_is_named_with_those_that_do(run_of: RunOf, capsys: pytest.CaptureFixture[str]) -> None:
    run_of("over").end()
    run_of("job")
    for name in ("over", "never"):
        assert main(["chaos", name, "kill", "x-0"]) == 2
        assert f"no run of job '{name}' goes on in this folder; running: job\n" in capsys.readouterr().err
    assert main(["chaos", "./nowhere", "kill", "x-0"]) == 2
    assert "there is no run in nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["stop"], "stop which worker?"),
        (["kill", "job-0", "--for", "3"], "--for is for stop, partition, slow, starve, join; kill does not last"),
        (["kill", "job-0", "--seed", "3"], "name a fault, or draw faults at random with --seed, not both"),
    ],
)
def test_options_that_contradict_one_another_are_refused(
    words: list[str], says: str, run_of: RunOf, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of("job")
    assert main(["chaos", "job", *words]) == 2
    assert says in capsys.readouterr().err
    assert not run.asked


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["explode", "job-0"], "'explode'"),
        (["stop", "job-0", "--for", "0"], "must be a number of seconds above 0, found '0'"),
        (["stop", "job-0", "--for", "inf"], "must be a number of seconds above 0"),
        (["slow", "job-0", "--neighbours", "65"], "must be a whole number from 1 to 64"),
        (["--seed", "-1"], "must be a whole number"),
        (["--seed", "1", "--faults", "kill,burn"], "there is no fault 'burn'; there are kill, stop, slow, starve"),
        (["--seed", "1", "--faults", ","], "there are kill, stop"),
    ],
)
def test_what_no_option_can_be_is_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["chaos", "job", *words])
    assert says in capsys.readouterr().err


def test_same_seed_gives_the_same_faults(run_of: RunOf, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of("job")
    words = ["chaos", "job", "--seed", "5", "--every", "0.01", "--count", "12"]
    said, asked = [], []
    for _ in range(2):
        assert main(words) == 0
        said.append(capsys.readouterr().out)
        asked.append(run.asked[:])
        run.asked.clear()
    assert said[0] == said[1]
    assert asked[0] == asked[1]
    assert len(asked[0]) == len(said[0].splitlines()) == 12
    assert {each.get("seconds") for each in asked[0]} == {None, 0.005}
    assert "not done: job-2 is not running" in said[0]


def test_random_faults_can_be_chosen_and_read_by_programs(run_of: RunOf, capsys: pytest.CaptureFixture[str]) -> None:
    run_of("job")
    words = ["--seed", "5", "--every", "0.01", "--faults", "stop,leave", "--for", "2", "--count", "9", "--json"]
    assert main(["chaos", "job", *words]) == 0
    drawn = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(each["do"], each["seconds"]) for each in drawn} == {("stop", 2.0), ("leave", None)}
    assert {each["error"] for each in drawn} == {None, "job-2 is not running"}


def test_random_faults_end_with_the_job(run_of: RunOf, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of("job")
    threading.Timer(0.1, run.end).start()
    assert main(["chaos", "job", "--seed", "1", "--every", "0.02"]) == 0
    assert main(["chaos", "job", "--seed", "1"]) == 2


SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)"


def worker_of(folder: Path, name: str) -> int | None:
    """The process of a worker that has come up below a folder; None before."""
    mark = f"HETEROTRAIN_WORKER={name}"
    found = [pid for pid in processes_that_mention(str(folder)) if mark in leftovers.environment(pid)]
    up = any("up" in log.read_text() for log in folder.glob(f".heterotrain/runs/*/*/arms/*/workers/{name}/log"))
    return found[0] if len(found) == 1 and up else None


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Real runs of two jobs whose workers sleep, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # workers are found by what their environment says
    with ExitStack() as stack:
        made = {}
        for name in ("one", "other"):
            job = manifest(SLEEP, replicas=1)
            job["metadata"]["name"] = name
            (tmp_path / name).mkdir()
            made[name] = stack.enter_context(start(tmp_path, "run", str(write_manifest(tmp_path / name, job))))
            stack.callback(made[name].kill)
        yield made


@pytest.mark.processes
def test_killed_run_leaves_a_job_beside_it_alone(
    commands: dict[str, subprocess.Popen[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pids = {name: eventually(lambda name=name: worker_of(tmp_path, f"{name}-cpu-0")) for name in commands}
    assert main(["chaos", "one", "stop", "cpu-0"]) == 0
    eventually(lambda: leftovers._stat_fields(pids["one"])[0] == "T")
    assert leftovers._stat_fields(pids["other"])[0] != "T"

    commands["one"].kill()
    commands["one"].communicate(timeout=60)
    eventually(lambda: not leftovers.alive(pids["one"]))
    capsys.readouterr()
    assert main(["chaos", "one", "continue", "cpu-0"]) == 2
    assert "no run of job 'one' goes on in this folder; running: other" in capsys.readouterr().err
    (folder,) = (tmp_path / ".heterotrain" / "runs" / "one").iterdir()
    assert not (folder / control.SOCKET).exists(), "what the killed run left is removed"

    assert main(["chaos", "other", "stop", "cpu-0"]) == 0
    commands["other"].send_signal(signal.SIGTERM)  # a stopped worker could not end; the grace period is 60 s
    commands["other"].communicate(timeout=50)
    assert commands["other"].returncode == 143
    assert main(["chaos", "other", "stop", "cpu-0"]) == 2
    assert not processes_that_mention(str(tmp_path))
