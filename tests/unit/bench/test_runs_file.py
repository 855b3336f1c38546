"""A file of a benchmark's runs: done in parts, interrupted, and never of two versions."""

from __future__ import annotations

from pathlib import Path

import pytest
import simulated
from runs_file import RunsError, RunsFile, version_of


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


@pytest.mark.parametrize("line", ["nothing", "[]", "{}", '{"of": 3, "run": {}, "version": "1"}'])
def test_a_line_that_is_no_run_is_named(tmp_path: Path, line: str):
    path = tmp_path / "runs.jsonl"
    with RunsFile(path, "1") as runs:
        runs.add(["a"], {})
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RunsError, match=r"runs\.jsonl: line 2 is not a run"):
        RunsFile(path, "1")


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


def test_the_sources_of_simulated_clusters_exist():
    assert version_of(simulated.SOURCES)
