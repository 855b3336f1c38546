"""Run another script unchanged, with one collective of one worker failing in it.

usage: break_collective.py WORKER KIND NUMBER SCRIPT [ARGUMENT...]

KIND `before`: the NUMBERth gradient collective raises before anything was sent; `after`: it completes for the others,
but reports an error here; `control`: the NUMBERth exchange raises; `gather`: the NUMBERth gathering of documents.
"""

import os
import runpy
import sys
from typing import Any

import torch

from heterotrain.groups.generation import Generation

worker, kind, number, script = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
BROKEN = {"control": (torch.float64,), "gather": (torch.uint8,)}
method = "sum" if kind in BROKEN else "sum_gradients"
original = getattr(Generation, method)
calls = 0


class Failing:
    """A collective that ends well for the others."""

    def __init__(self, collective: Any) -> None:
        self.collective = collective

    def wait(self) -> None:
        """Wait until it has ended, and fail."""
        self.collective.wait()
        raise RuntimeError("injected: connection closed by gloo")


def break_one(generation: Generation, tensor: torch.Tensor) -> Any:
    """What stands in place of a method of a generation."""
    global calls  # noqa: PLW0603 - the one thing to count
    if tensor.dtype not in BROKEN.get(kind, (tensor.dtype,)):
        return original(generation, tensor)
    calls += 1
    if calls != number:
        return original(generation, tensor)
    if kind == "after":
        return Failing(original(generation, tensor))
    raise RuntimeError("injected: connection closed by gloo")


if os.environ["HETEROTRAIN_WORKER"] == worker:
    setattr(Generation, method, break_one)
sys.argv = sys.argv[4:]
runpy.run_path(script, run_name="__main__")
