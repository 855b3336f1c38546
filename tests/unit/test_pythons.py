"""`make test-pythons` finds the promised versions of Python, and says which it does not find, or cannot test whole."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

TOOLS = ("bash", "cat", "cp", "dirname", "mkdir", "rm", "sh", "touch")

PYTHON = """#!/bin/sh
# A Python of a version, with or without torch, whose tests end with a code.
case "$*" in
  *version_info*) echo {version} ;;
  *"import torch"*) exit {without_torch} ;;
  *" venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *pytest*) echo "TESTED $*"; exit {code} ;;
esac
"""


class Machine:
    """A checkout's files on a machine that has the Pythons which a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "hack").mkdir()
        shutil.copy(REPOSITORY / "hack" / "pythons.sh", folder / "hack")
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(REPOSITORY / name, folder)
        self.put(folder / ".venv/bin/python", "3.11")
        (folder / "tools").mkdir()
        for tool in TOOLS:  # and not the machine's own Pythons
            found = shutil.which(tool)
            assert found is not None
            (folder / "tools" / tool).symlink_to(found)

    def put(self, path: Path, version: str, *, torch: bool = False, code: int = 0) -> None:
        path.parent.mkdir(parents=True)
        path.write_text(PYTHON.format(version=version, without_torch=int(not torch), code=code))
        path.chmod(0o755)

    def pyenv(self, version: str, **kind: bool | int) -> None:
        minor = ".".join(version.split(".")[:2])
        self.put(self.folder / "pyenv" / "versions" / version / "bin" / "python", minor, **kind)  # type: ignore[arg-type]

    def run(self) -> subprocess.CompletedProcess[str]:
        folder = self.folder
        environment = {"PATH": f"{folder / 'path'}:{folder / 'tools'}", "HOME": str(folder / "home")}
        environment["PYENV_ROOT"] = str(folder / "pyenv")
        script = folder / "hack" / "pythons.sh"
        return subprocess.run(
            [str(folder / "tools/bash"), script], env=environment, capture_output=True, text=True, check=False
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_version_that_is_not_there_is_named(machine: Machine) -> None:
    machine.pyenv("3.12.1")
    done = machine.run()
    assert done.returncode == 0
    assert "NOT RUN: Python 3.13: there is none here" in done.stdout
    assert "Python 3.12: passed" in done.stdout
    assert "Python 3.11: in .venv" in done.stdout


def test_shim_that_does_not_run_is_passed_over(machine: Machine) -> None:
    """A version manager's shim for a version that nobody has chosen ends with an error."""
    machine.put(machine.folder / "path" / "python3.12", "none is chosen")
    assert "NOT RUN: Python 3.12" in machine.run().stdout
    machine.pyenv("3.12.1")
    assert "Python 3.12: passed" in machine.run().stdout


def test_failure_on_one_version_fails_all_and_the_others_are_still_tested(machine: Machine) -> None:
    machine.pyenv("3.12.1", code=1)
    machine.pyenv("3.13.0")
    done = machine.run()
    assert done.returncode == 1
    assert "Python 3.12: FAILED" in done.stdout
    assert "Python 3.13: passed" in done.stdout


def test_what_needs_torch_is_tested_where_it_is_and_named_where_it_is_not(machine: Machine) -> None:
    machine.pyenv("3.12.1", torch=True)
    machine.pyenv("3.13.0")
    done = machine.run()
    with_torch, without = [line for line in done.stdout.splitlines() if line.startswith("TESTED")]
    assert "tests/trainer" in with_torch
    assert "--ignore=tests/trainer" not in with_torch
    assert "--ignore=tests/unit/workloads" in without
    assert "Python 3.13: passed, without what needs torch" in done.stdout


def test_every_promised_version_is_a_classifier() -> None:
    classifiers = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["classifiers"]
    script = (REPOSITORY / "hack" / "pythons.sh").read_text()
    promised = [line for line in script.splitlines() if line.startswith("PROMISED=")]
    named = [each.rpartition(" ")[2] for each in classifiers if each.startswith("Programming Language :: Python :: 3.")]
    assert promised == [f'PROMISED="{" ".join(named)}"']
