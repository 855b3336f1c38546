"""A file of a benchmark's runs: done in parts, interrupted, and never of two versions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import simulated
from runs_file import REPOSITORY, RunsError, RunsFile, version_of


def test_runs_are_found_again(tmp_path: Path):
    path = tmp_path / "new" / "runs.jsonl"
    with RunsFile(path, "1") as runs:
        assert runs.get(["é", 3]) is None
        runs.add(["é", 3], {"ratio": 0.1 + 0.2})
    with RunsFile(path, "1") as runs:
        assert runs.get(("é", 3)) == {"ratio": 0.1 + 0.2}


def test_a_line_that_was_cut_off_is_run_again_and_nothing_else(tmp_path: Path):
    path = tmp_path / "runs.jsonl"
    with RunsFile(path, "1") as runs:
        runs.add(["é"], {})
        runs.add(["b"], {})
    path.write_bytes(path.read_bytes()[:-4])
    with RunsFile(path, "1") as runs:
        assert (runs.get(["é"]), runs.get(["b"])) == ({}, None)
        runs.add(["c"], {})
    with RunsFile(path, "1") as runs:
        assert [runs.get([name]) for name in ("é", "b", "c")] == [{}, None, {}]


@pytest.mark.parametrize(
    "line", ["nothing", "[]", "{}", '{"of": 3, "run": {}, "version": "1"}', '{"of": [[1]], "run": {}, "version": "1"}']
)
def test_a_line_that_is_no_run_is_named(tmp_path: Path, line: str):
    path = tmp_path / "runs.jsonl"
    with RunsFile(path, "1") as runs:
        runs.add(["a"], {})
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RunsError, match=r"runs\.jsonl: line 2 is not a run"):
        RunsFile(path, "1")


@pytest.mark.parametrize("content", [b"a note without an end", b"\xff\xfe", b"{}\n", b"\n"])
def test_a_file_of_somebody_else_is_left_as_it_is(tmp_path: Path, content: bytes):
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(RunsError, match="notes: "):
        RunsFile(path, "1")
    assert path.read_bytes() == content
    with pytest.raises(RunsError, match="not a file of runs"):
        RunsFile(tmp_path, "1")


def test_two_processes_do_not_write_over_each_other(tmp_path: Path):
    path = tmp_path / "runs.jsonl"
    with RunsFile(path, "1") as first, RunsFile(path, "1") as second:
        for number in range(3):
            first.add(["first", number], {})
            second.add(["second", number], {})
    with RunsFile(path, "1") as runs:
        assert all(runs.get([name, number]) == {} for name in ("first", "second") for number in range(3))


def test_another_version_is_refused(tmp_path: Path):
    path = tmp_path / "runs.jsonl"
    with RunsFile(path, "1") as runs:
        runs.add(["a"], {})
    with pytest.raises(RunsError, match="version 1, and these sources are 2"):
        RunsFile(path, "2")


def test_a_version_follows_what_files_hold_and_where_they_are(tmp_path: Path):
    (tmp_path / "code" / "deep").mkdir(parents=True)
    (tmp_path / "code" / "deep" / "one.py").write_text("1")
    (tmp_path / "data.json").write_text("{}")
    sources = ["code", "data.json"]
    first = version_of(sources, tmp_path)
    (tmp_path / "code" / "notes.txt").write_text("no source")
    assert version_of(sources, tmp_path) == first
    (tmp_path / "code" / "deep" / "one.py").rename(tmp_path / "code" / "one.py")
    moved = version_of(sources, tmp_path)
    (tmp_path / "code" / "one.py").write_text("2")
    assert len({first, moved, version_of(sources, tmp_path)}) == 3
    with pytest.raises(FileNotFoundError):
        version_of(["gone"], tmp_path)


LOADED = """
import sys, simulated
simulated.one(("equal workers", 5, 3, "Optimal", 0))
print(*(file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))), sep="\\n")
"""

DECIDE_NOTHING = {"operator/heterotrain_operator/garbage.py", "hack/bench/runs_file.py"}


def test_whatever_a_simulated_run_loads_is_among_its_sources():
    loaded = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=REPOSITORY / "hack/bench", capture_output=True, text=True, check=True
    ).stdout.splitlines()
    ours = {
        str(path.relative_to(REPOSITORY))
        for path in map(Path, loaded)
        if path.is_relative_to(REPOSITORY) and ".venv" not in path.parts and path.name != "__init__.py"
    }
    assert len(ours) > 100
    assert not [path for path in ours - DECIDE_NOTHING if not path.startswith(simulated.SOURCES)]
    assert version_of(simulated.SOURCES)
