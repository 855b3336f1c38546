"""`heterotrain logs`: what workers have printed, of runs in this folder and on a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from heterotrain_operator.cli.local.script_output import LONGEST_LINE, MOST_BYTES, LogTail, last_lines
from heterotrain_operator.cli.main import main
from heterotrain_operator.experiments import runs
from kube_server.api_server import ApiServer
from unit.cli.cluster_jobs import job_document
from unit.cli.conftest import Run

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def api() -> ApiServer:
    api = ApiServer()
    api.restore("heterotrainingjobs", job_document())
    for group, index in (("g0", 10), ("g0", 2), ("g1", 0)):
        name = f"digits-{group}-{index}"
        labels = {"job-name": "digits", "job-role": "worker", "worker-group": group, "worker-index": str(index)}
        metadata = {
            "name": name,
            "namespace": "team",
            "labels": {f"heterotrain.dev/{key}": value for key, value in labels.items()},
        }
        spec = {"containers": [{"name": "trainer"}, {"name": "beside"}]}
        api.restore("pods", {"metadata": metadata, "spec": spec})
        api.logs[name] = f"{name} is up\nloss 0.5\n"
    return api


def a_run(
    here: Path, logs: dict[str, str], *, slug: str = "optimal-1", minutes: int = 0, out: Path | None = None
) -> Path:
    """A run of job `digits` that has left these logs."""
    folder = runs.begin(here, "digits", out, NOW + timedelta(minutes=minutes))
    add_trial(folder, slug, logs, minutes)
    return folder


def add_trial(folder: Path, slug: str, logs: dict[str, str], age: int) -> None:
    for name, text in logs.items():
        log = runs.log_folder(folder, slug) / name / "log"
        log.parent.mkdir(parents=True)
        log.write_text(text, "utf-8")
        os.utime(log, (age, age))


def test_all_workers_are_named_in_the_order_of_their_indices_and_each_has_its_tail(
    here: Path, heterotrain: Run
) -> None:
    a_run(here, {"digits-a-10": "ten\n", "digits-a-2": "1\n2\nand no end"})
    said = ["digits-a-2 | 1", "digits-a-2 | 2", "digits-a-2 | and no end", "digits-a-10 | ten"]
    assert heterotrain("logs", "digits").out.splitlines() == said
    assert heterotrain("logs", "digits", "--tail", "2").out.splitlines() == said[1:]


@pytest.mark.parametrize("worker", ["digits-a-0", "a-0"])
def test_a_single_worker_is_printed_as_it_wrote(
    worker: str, here: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    folder = a_run(here, {"digits-a-0": "", "digits-a-1": "other\n"})
    (runs.log_folder(folder, "optimal-1") / "digits-a-0" / "log").write_bytes(b"\x1b[1mbold\x1b[0m \xff\r50 %\n")
    assert main(["logs", "digits", worker]) == 0
    assert capsysbinary.readouterr().out == b"\x1b[1mbold\x1b[0m \xff\r50 %\n"


def test_the_newest_run_counts_wherever_its_folder_is(here: Path, heterotrain: Run) -> None:
    a_run(here, {"digits-a-0": "old\n"})
    a_run(here, {"digits-a-0": "new\n"}, minutes=5, out=here / "elsewhere")
    assert heterotrain("logs", "digits", "a-0").out == "new\n"
    assert heterotrain("logs", "./elsewhere", "a-0").out == heterotrain("logs", "elsewhere", "a-0").out == "new\n"


def test_the_trial_that_ran_last_counts_but_a_profile_does_not(here: Path, heterotrain: Run) -> None:
    folder = a_run(here, {"digits-a-0": "first\n"})
    add_trial(folder, "uniform-1", {"digits-a-0": "second\n"}, 1)
    add_trial(folder, "profile-1", {"digits-a-0": "third\n"}, 2)
    said = heterotrain("logs", "digits", "a-0")
    assert said.out == "second\n"
    assert "trial uniform-1 of optimal-1, uniform-1, profile-1" in said.err
    for option in ("--trial", "--arm"):
        assert heterotrain("logs", "digits", "a-0", option, "optimal-1").out == "first\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["digits", "b-0"], "job digits has no worker 'b-0'; did you mean digits-a-0?"),
        (["digits", "--arm", "static-1"], "no trial 'static-1'; it has optimal-1"),
        (["digit", "--local"], "no run of job 'digit' in this folder; did you mean digits?"),
        (["digits", "--local", "-n", "team"], "--local and --trial are about runs in this folder"),
        (["../digits", "--local"], "no run of job '../digits'"),
    ],
)
def test_what_is_not_there_is_bad_input(arguments: list[str], words: str, here: Path, heterotrain: Run) -> None:
    a_run(here, {"digits-a-0": "text\n"})
    said = heterotrain("logs", *arguments)
    assert said.code == 2
    assert words in said.err


def test_old_runs_are_forgotten_but_never_the_users_folders(here: Path) -> None:
    out = here / "out"
    a_run(here, {"digits-a-0": "mine\n"}, out=out)
    kept = here / runs.RUNS / "digits" / "0-kept-by-hand"
    kept.mkdir()
    for minute in range(1, runs.KEPT + 2):
        a_run(here, {"digits-a-0": f"{minute}\n"}, minutes=minute)
    assert kept.is_dir()
    kept.rmdir()
    assert len(list((here / runs.RUNS / "digits").iterdir())) == runs.KEPT
    assert (runs.log_folder(out, "optimal-1") / "digits-a-0" / "log").read_text() == "mine\n"


def test_runs_without_a_writable_folder_keep_their_logs_elsewhere(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    (here / ".heterotrain").write_text("a file, where a folder would be needed")
    folder = runs.begin(here, "digits", None)
    assert folder.is_dir()
    assert str(folder) in caplog.text
    folder.rmdir()


@pytest.mark.usefixtures("here")
def test_logs_of_a_cluster_read_alike(config: Path, api: ApiServer, heterotrain: Run) -> None:
    lines = heterotrain("logs", "digits", "--kubeconfig", config).out.splitlines()
    assert lines[::2] == [f"{name} | {name} is up" for name in ("digits-g0-2", "digits-g0-10", "digits-g1-0")]
    assert heterotrain("logs", "digits", "g1-0", "--tail", "1", "--kubeconfig", config).out == "loss 0.5\n"
    assert {query.get("container") for path, query in api.asked if path.endswith("/log")} == {"trainer"}


def test_without_a_run_here_the_cluster_is_asked(
    config: Path, here: Path, monkeypatch: pytest.MonkeyPatch, heterotrain: Run
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(config))
    assert heterotrain("logs", "digits", "g1-0").out == "digits-g1-0 is up\nloss 0.5\n"
    a_run(here, {"digits-g1-0": "here\n"})
    assert heterotrain("logs", "digits", "g1-0").out == "here\n"
    assert heterotrain("logs", "digits", "g1-0", "--cluster").out == "digits-g1-0 is up\nloss 0.5\n"


def test_where_no_cluster_is_found_the_run_here_of_nearly_that_name_is_asked_for(
    here: Path, monkeypatch: pytest.MonkeyPatch, heterotrain: Run
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(here / "none"))
    a_run(here, {"digits-a-0": "text\n"})
    assert "; did you mean digits, which was run in this folder?" in heterotrain("logs", "digit").err


@pytest.mark.usefixtures("here")
def test_a_worker_that_has_not_started_does_not_hide_the_others(config: Path, api: ApiServer, heterotrain: Run) -> None:
    del api.logs["digits-g0-2"]
    said = heterotrain("logs", "digits", "--kubeconfig", config)
    assert said.code == 1
    assert "digits-g0-2: container" in said.err
    assert "waiting to start" in said.err
    assert "digits-g1-0 | loss 0.5" in said.out


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("arguments", "change", "code", "words"),
    [
        (["dogits"], lambda api: None, 2, "did you mean digits?"),
        (["digits", "g1-1"], lambda api: None, 2, "did you mean digits-g1-0?"),
        (["digits"], lambda api: api.clear("pods"), 1, "job digits has no pods now"),
        (["digits"], lambda api: api.forbidden.add("pods/log"), 3, "you may not get pods/log digits-g0-2"),
        (["digits"], lambda api: setattr(api, "broken", True), 3, "503"),
    ],
)
def test_what_a_cluster_does_not_give_is_said(
    arguments: list[str],
    change: Callable[[ApiServer], None],
    code: int,
    words: str,
    *,
    config: Path,
    api: ApiServer,
    heterotrain: Run,
) -> None:
    change(api)
    said = heterotrain("logs", *arguments, "--kubeconfig", config)
    assert said.code == code
    assert words in said.err


def test_growing_log_is_shown_in_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LogTail(path)
    assert tail.lines() == []
    path.write_bytes(b"one\ntw")
    assert tail.lines() == ["one"]
    with path.open("ab") as log:
        log.write("o\n\u00e4".encode()[:-1])
    assert tail.lines() == ["two"]
    with path.open("ab") as log:
        log.write("\u00e4".encode()[1:])
    assert tail.lines(ended=True) == ["\u00e4"]
    assert tail.lines(ended=True) == []


def test_progress_bar_is_shown_as_a_terminal_would_show_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"10 %\r50 %\r100 %\r\ndone\r\n")
    assert LogTail(path).lines() == ["100 %", "done"]
    assert last_lines(path, 1) == ["done"]


def test_flood_is_passed_over_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 99 + b"\n" + b"y\n" * MOST_BYTES)
    lines = LogTail(path).lines()
    assert f"[{100 + MOST_BYTES} bytes are only in the log]" in lines
    assert len(lines) < MOST_BYTES


def test_line_without_an_end_is_shown_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"z" * (LONGEST_LINE + 1))
    tail = LogTail(path)
    assert [len(line) for line in tail.lines()] == [LONGEST_LINE]
    assert tail.lines(ended=True) == ["z"]
