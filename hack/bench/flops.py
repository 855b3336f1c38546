"""Print as JSON how many floating-point operations per second a device does here, by multiplying matrices.

Where devices are mixed, `Static` needs a figure of each (`flops` of a worker group); those of data sheets are seldom
reached. The device is named as torch names it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

import torch

SIZE = {"cpu": 1024, "cuda": 8192}
SECONDS = 0.5


def main(arguments: Sequence[str]) -> int:
    """`gpu` or `cpu`, a precision, and the number of threads; without a GPU the CPU stands for it."""
    wanted, precision, threads = arguments
    torch.set_num_threads(int(threads))
    device = torch.device("cuda" if wanted == "gpu" and torch.cuda.is_available() else "cpu")
    size = SIZE[device.type]
    matrix = torch.rand(size, size, device=device, dtype=getattr(torch, precision))
    _multiply(matrix)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        _multiply(matrix)
        count += 1
    flops = 2 * size**3 * count / (time.perf_counter() - began)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(json.dumps({"device": name, "flops": flops, "torch": torch.__version__}))
    return 0


def _multiply(matrix: torch.Tensor) -> None:
    matrix @ matrix
    if matrix.is_cuda:
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
