"""The wheel as others install it: built, installed into an empty environment, and imported there."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.packages, pytest.mark.long]

ROOT = Path(__file__).parents[2]
QUIET = ["--quiet", "--disable-pip-version-check"]

FOR_THE_COMMAND_LINE = (
    "heterotrain_operator.cli",
    "heterotrain_operator.experiments",
    "heterotrain_operator.clusters.simulated",
)
"""Packages that need more than the operator's image has."""

IMPORTS = f"""
import importlib, importlib.util, pkgutil
assert importlib.util.find_spec("torch") is None
importlib.import_module("heterotrain.contract")
operator = importlib.import_module("heterotrain_operator")
for module in pkgutil.walk_packages(operator.__path__, operator.__name__ + "."):
    if not module.name.startswith({FOR_THE_COMMAND_LINE!r}):
        print(importlib.import_module(module.name).__name__)
"""


def run(*command: str | Path) -> str:
    """What a command prints. Fails the test with its last lines if it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", *QUIET, "--no-deps", "--wheel-dir", folder, ROOT)
    (found,) = folder.glob("heterotrain-*.whl")
    return found


def test_all_packages_say_that_they_are_typed(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packages = {"heterotrain", "heterotrain_operator", "heterotrain_client"}
    assert {f"{package}/py.typed" for package in packages} <= names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == packages


def test_the_operator_and_the_contract_import_where_there_is_no_torch(wheel: Path, tmp_path: Path):
    run(sys.executable, "-m", "venv", tmp_path)
    python = tmp_path / "bin" / "python"
    constraints = ["--constraint", ROOT / "constraints.txt"]
    # Only what is imported below needs to be compiled.
    run(python, "-m", "pip", "install", *QUIET, "--no-compile", *constraints, f"{wheel}[operator]")
    imported = run(python, "-I", "-c", IMPORTS).split()
    assert {"heterotrain_operator.main", "heterotrain_operator.controller.supervisor"} <= set(imported)
