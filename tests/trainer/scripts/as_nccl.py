"""Run another script unchanged, with groups of gloo's that say of themselves that they are nccl's.

usage: as_nccl.py SCRIPT [ARGUMENT...]

What is decided over nccl is decided here; what a GPU does is not shown.
"""

import runpy
import sys
from typing import Any

import torch
import torch.distributed as dist

from heterotrain.groups.generation import Collective, Generation
from heterotrain.training import group

original = Generation.make_groups


def make_groups(generation: Generation, store: dist.Store, prefix: str = "", _: dist.Store | None = None) -> None:
    original(generation, store, prefix)
    generation.backend = "nccl"


def sum_gradients(generation: Generation, tensor: torch.Tensor) -> Collective:
    return generation._watched(generation.gradients.allreduce([tensor], generation._sum), "gloo")


def await_arrival(*_: Any) -> None:
    print("waits for what is enqueued", flush=True)


Generation.make_groups = make_groups
Generation.sum_gradients = sum_gradients
Generation._abort_nccl = lambda _: None
group.await_arrival = await_arrival
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
