"""Jobs for the command line, and the command line as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

T = TypeVar("T")

TRAIN = """
import time, torch, heterotrain
from torch.utils.data import TensorDataset

session = heterotrain.join()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(640, 4), torch.randn(640, 1))
model, optimizer, batches = session.prepare(model, optimizer, data)
for inputs, targets in batches:
    time.sleep(0.01)
    loss = session.scale(torch.nn.functional.mse_loss(model(inputs), targets))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def manifest(script: str = "pass", replicas: int = 2, **spec: Any) -> dict[str, Any]:
    """A job whose workers run a Python script given as text; `spec` adds or replaces fields."""
    container = {"name": "t", "image": "none", "command": ["python", "-c", script]}
    template = {"spec": {"terminationGracePeriodSeconds": 60, "containers": [container]}}
    return {
        "apiVersion": "heterotrain.dev/v1alpha1",
        "kind": "HeteroTrainingJob",
        "metadata": {"name": "job"},
        "spec": {
            "workerGroups": [{"name": "cpu", "replicas": replicas, "template": template}],
            "training": {"globalBatchSize": 32, "steps": 10},
            **spec,
        },
    }


def write_manifest(folder: Path, job: dict[str, Any]) -> Path:
    """The job as a file."""
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job, sort_keys=False), "utf-8")
    return path


def start(
    folder: Path, *arguments: str, stdin: int = subprocess.DEVNULL, inherited: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """`heterotrain` with these arguments in a folder; its output can be read, and its input be written to a pipe.
    `inherited` takes the place of the environment here."""
    # The packages may be on a relative path.
    packages = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    return subprocess.Popen(
        [sys.executable, "-m", "heterotrain_operator.cli.main", *arguments],
        cwd=folder,
        env={**(os.environ if inherited is None else inherited), "PYTHONPATH": packages},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def eventually(condition: Callable[[], T], seconds: float = 120.0) -> T:
    """Wait for a condition to hold and return its value; the time bounds only a test that fails."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"did not happen within {seconds} s"
        time.sleep(0.02)
    return value


def said_until(command: subprocess.Popen[str], text: str) -> str:
    """What a command writes to standard error up to the line that holds this text."""
    assert command.stderr is not None
    said = ""
    for line in iter(command.stderr.readline, ""):
        said += line
        if text in line:
            return said
    raise AssertionError(f"it never said {text!r}: {said}")


def processes_that_mention(text: str) -> list[int]:
    """Live processes with this text in their command line or environment, but for this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) == os.getpid():
            continue
        try:
            known = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in known:
            found.append(int(folder.name))
    return found
