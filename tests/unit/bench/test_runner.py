"""Runs of benchmarks are kept in a file: done in parts, interrupted, and never of two versions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import runner
import simulated
from runner import REPOSITORY, BenchmarkError, RunsFile, version_of

SMALL = ["--case", "equal workers", "--workers", "3", "--processes", "1", "--policy", "Uniform"]


def test_runs_are_found_again_but_one_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "new" / "runs.jsonl"
    with RunsFile(path, "1") as runs:
        assert runs.get(["é", 3]) is None
        runs.add(["é", 3], {"ratio": 0.1 + 0.2})
        runs.add(["b"], {})
    path.write_bytes(path.read_bytes()[:-4])
    with RunsFile(path, "1") as runs:
        assert (runs.get(("é", 3)), runs.get(["b"])) == ({"ratio": 0.1 + 0.2}, None)
        runs.add(["c"], {})
    with RunsFile(path, "1") as runs:
        assert runs.get(["c"]) == {}


@pytest.mark.parametrize("content", [b"a note without an end", b"\xff\xfe", b"{}\n", b'{"of": 3, "run": {}}\n'])
def test_a_file_of_somebody_else_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(BenchmarkError, match="notes: "):
        RunsFile(path, "1")
    assert path.read_bytes() == content


def test_a_version_follows_what_sources_hold_and_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "code" / "deep").mkdir(parents=True)
    (tmp_path / "code" / "deep" / "one.py").write_text("1")
    first = version_of(["code"], tmp_path)
    (tmp_path / "code" / "notes.txt").write_text("no source")
    assert version_of(["code"], tmp_path) == first
    (tmp_path / "code" / "deep" / "one.py").rename(tmp_path / "code" / "one.py")
    moved = version_of(["code"], tmp_path)
    (tmp_path / "code" / "one.py").write_text("2")
    assert len({first, moved, version_of(["code"], tmp_path)}) == 3
    with pytest.raises(FileNotFoundError):
        version_of(["gone"], tmp_path)


@pytest.mark.long
def test_kept_runs_are_not_run_again_and_make_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, out = tmp_path / "parts" / "runs.jsonl", tmp_path / "table.json"
    simulated.main([*SMALL, "--seeds", "2", "--out", str(out)])
    whole = out.read_text()
    simulated.main([*SMALL, "--seeds", "1", "--runs", str(runs)])
    first = runs.read_text()
    simulated.main([*SMALL, "--seeds", "2", "--runs", str(runs), "--out", str(out)])
    assert out.read_text() == whole
    assert runs.read_text().startswith(first)
    assert len(runs.read_text().splitlines()) == 2
    monkeypatch.setattr(simulated, "simulate", None)
    simulated.main([*SMALL, "--seeds", "2", "--runs", str(runs), "--out", str(out)])
    assert out.read_text() == whole
    monkeypatch.setattr(runner, "version_of", lambda _: "another")
    with pytest.raises(BenchmarkError, match="line 1 is a run of version"):
        simulated.main([*SMALL, "--seeds", "2", "--runs", str(runs)])


def test_figures_that_never_came_are_null_in_json() -> None:
    assert (
        json.dumps(runner.finite({"a": [float("inf"), 1.0], "b": (float("nan"),)})) == '{"a": [null, 1.0], "b": [null]}'
    )


LOADED = """
import sys, simulated
simulated.one(("equal workers", 5, 3, "Optimal", 0))
print(*(file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))), sep="\\n")
"""

DECIDE_NOTHING = {"operator/heterotrain_operator/garbage.py", "hack/bench/runner.py", "hack/bench/table.py"}


@pytest.mark.long
def test_whatever_a_simulated_run_loads_is_among_its_sources() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=REPOSITORY / "hack/bench", capture_output=True, text=True, check=True
    ).stdout.splitlines()
    ours = {
        str(path.relative_to(REPOSITORY))
        for path in map(Path, loaded)
        if path.is_relative_to(REPOSITORY) and ".venv" not in path.parts and path.name != "__init__.py"
    }
    assert len(ours) > 50
    assert not [path for path in ours - DECIDE_NOTHING if not path.startswith(simulated.SOURCES)]
    assert version_of(simulated.SOURCES)
