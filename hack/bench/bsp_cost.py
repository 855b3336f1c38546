"""What a workload costs in time of one core, measured, so that a benchmark can say how long it will take."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time

from bsp_setting import ROOT, Cost, Workload
from emulated_law import SAMPLE_CORE_SECONDS

BATCH = 16
STEPS = 3
EMULATED_START_CORE_SECONDS = 3.0
"""Torch is loaded; a step takes what the law says."""


def measure(workload: Workload) -> Cost:
    """Time a few steps of a workload. Raises RuntimeError with its last words if it fails."""
    if workload.emulated:
        return Cost(EMULATED_START_CORE_SECONDS, SAMPLE_CORE_SECONDS)
    before = _children_core_seconds()
    width = [] if workload.width is None else [str(workload.width)]
    paths = os.pathsep.join([str(ROOT / "trainer-image"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable, __file__, workload.model, *width]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"workload {workload.model} failed: {done.stderr.strip().splitlines()[-1:]}")
    steps = json.loads(done.stdout)
    return Cost(_children_core_seconds() - before - steps, steps / ((STEPS + 1) * BATCH))


def _children_core_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _train(model: str, width: int | None) -> float:
    """Core seconds of the steps, in this process."""
    # The parent measures, and needs no torch for that.
    import torch  # noqa: PLC0415
    from torch.utils.data import DataLoader  # noqa: PLC0415

    from heterotrain.workloads import registry  # noqa: PLC0415

    torch.set_num_threads(1)
    data = registry.load(registry.default_data(model), samples=(STEPS + 1) * BATCH)
    workload = registry.build(model, data, width=width)
    began = time.process_time()
    for inputs, targets in DataLoader(data.dataset, batch_size=BATCH):
        workload.criterion(workload.model(inputs), targets).backward()
        workload.optimizer.step()
        workload.optimizer.zero_grad()
    return time.process_time() - began


if __name__ == "__main__":
    print(json.dumps(_train(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)))
