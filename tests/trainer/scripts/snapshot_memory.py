"""Writes a state of 200 MB, once while it waits and once beside; prints what memory that took in bytes.

usage: snapshot_memory.py FOLDER
"""

import json
import os
import sys
from pathlib import Path

import torch

from heterotrain.reporting import resources
from heterotrain.state.snapshot import Snapshots, Target

folder = Path(sys.argv[1])
tensors = [torch.rand(5_000_000) for _ in range(10)]
state = {"step": 1, "tensors": tensors}
found = {"state": sum(each.nbytes for each in tensors)}


def taken_by(name: str, before: float) -> None:
    found[name] = resources.peak_memory_bytes() - before
    found[f"kept after {name}"] = resources.memory_bytes() - before


snapshots = Snapshots()
snapshots.write(Target(folder, 0, 9), {"step": 0, "tensors": tensors[:1]})  # whatever is needed once
assert resources.forget_peak()
before = resources.memory_bytes()
snapshots.write(Target(folder, 1, 9), state)
taken_by("waiting", before)

assert resources.forget_peak()
before = resources.memory_bytes()
sync, (held, hold), (done, end) = os.fsync, os.pipe(), os.pipe()


def forking_sync(descriptor: int) -> None:
    """The copy is whole by now; a process that loads data might be forked."""
    if "inherited" not in found:
        found["beside before fork"] = resources.memory_bytes() - before
        child = os.fork()
        if not child:
            os.write(hold, str(int(resources.memory_bytes())).encode())
            os.read(done, 1)
            os._exit(0)
        found["inherited"] = int(os.read(held, 64)) - before
        os.write(end, b".")
        os.waitpid(child, 0)
    sync(descriptor)


os.fsync = forking_sync
snapshots.begin(Target(folder, 2, 9), state, tensors)
snapshots.wait()
taken_by("beside", before)
print(json.dumps(found))
