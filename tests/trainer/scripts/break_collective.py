"""Run another script unchanged, with one collective of one worker failing in it.

usage: break_collective.py WORKER KIND NUMBER SCRIPT [ARGUMENT...]

KIND `before`: the NUMBERth gradient collective raises before anything was sent; `after`: it completes for the others,
but reports an error here; `control`: the NUMBERth control collective raises.
"""

import os
import runpy
import sys
from typing import Any

import torch
import torch.distributed as dist

worker, kind, number, script = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
original = dist.all_reduce
calls = 0


class BrokenWork:
    """Completes, then says that it did not."""

    def __init__(self, work: Any) -> None:
        self.work = work

    def get_future(self) -> Any:
        def fail(done: Any) -> None:
            done.value()
            raise RuntimeError("injected: connection closed")

        return self.work.get_future().then(fail)


def all_reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    global calls  # noqa: PLW0603 - the one thing to count
    is_control = tensor.dtype == torch.float64 and tensor.numel() < 16
    if kwargs.get("async_op") and is_control == (kind == "control"):
        calls += 1
        if calls == number:
            if kind == "after":
                return BrokenWork(original(tensor, *args, **kwargs))
            raise RuntimeError("injected: connection closed")
    return original(tensor, *args, **kwargs)


if os.environ["HETEROTRAIN_WORKER"] == worker:
    dist.all_reduce = all_reduce
sys.argv = sys.argv[4:]
runpy.run_path(script, run_name="__main__")
