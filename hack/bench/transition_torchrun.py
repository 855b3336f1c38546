"""How long torchrun's workers stand still when one of them is killed, for transition.py.

torchrun ends the other workers and starts all of them again (`--max-restarts`); they go on from the last checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from runner import REPOSITORY

WORKER = str(Path(__file__).with_name("transition_worker.py"))
PATIENCE_SECONDS = 300
STEPS_BETWEEN_CHECKPOINTS = 15


@dataclass(frozen=True, slots=True)
class Restarted:
    """`idle` seconds between the last commit and the next one less a `step`, and the `steps` that were done again."""

    idle: float
    step: float
    steps: int


def restarts(workers: int, batch: int, times: int, port: int) -> list[Restarted]:
    """Kill one of torchrun's workers so many times. `batch`: samples of a worker in a step. Raises TimeoutError if
    they do not train on, and RuntimeError if torchrun ends."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={workers}"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
        command += [f"--max-restarts={times}", "--monitor-interval=0.1"]
        command += [WORKER, f"--plain={folder}", f"--batch={batch}", f"--every={STEPS_BETWEEN_CHECKPOINTS}"]
        # With a store that all starts share, the default, a new start may read gloo's addresses of the one before.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        environment["PYTHONPATH"] = str(REPOSITORY / "trainer-image")
        with (folder / "log").open("wb") as log:
            agent = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            try:
                for start in range(times):
                    _await_steps(agent, folder, start, STEPS_BETWEEN_CHECKPOINTS + 5)
                    os.kill(int((folder / f"{workers - 1}.pid").read_text(encoding="ascii")), signal.SIGKILL)
                starts = _await_steps(agent, folder, times, 1)
            finally:
                agent.terminate()
                agent.wait()
    found = []
    for sooner, later in pairwise(starts[start] for start in range(times + 1)):
        usual = statistics.median(after - before for (_, before), (_, after) in pairwise(sooner[-10:]))
        found.append(Restarted(later[0][1] - sooner[-1][1] - usual, usual, sooner[-1][0] - later[0][0] + 1))
    return found


def _await_steps(
    agent: subprocess.Popen[bytes], folder: Path, start: int, steps: int
) -> dict[int, list[tuple[int, float]]]:
    """Wait until so many steps were committed since torchrun's start of this number; all (step, time), by start."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        if agent.poll() is not None:
            raise RuntimeError(f"torchrun has ended:\n{(folder / 'log').read_text(errors='replace')[-2000:]}")
        found: dict[int, list[tuple[int, float]]] = {}
        notes = folder / "steps.jsonl"
        for line in notes.read_text(encoding="ascii").splitlines(keepends=True) if notes.exists() else ():
            if line.endswith("\n"):
                note = json.loads(line)
                found.setdefault(note["start"], []).append((note["step"], note["time"]))
        if len(found.get(start, ())) >= steps:
            return found
        time.sleep(0.05)
    raise TimeoutError(f"torchrun's workers did not train on within {PATIENCE_SECONDS} s")
