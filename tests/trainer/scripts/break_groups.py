"""Run another script unchanged, with something happening to one worker while it makes its first groups.

usage: break_groups.py WORKER KIND SCRIPT [ARGUMENT...]

KIND `dies`: it is killed; `hangs`: it does nothing more. In between it has said that it is there. Making groups takes
two seconds at most then.
"""

import os
import runpy
import signal
import sys
import time

import torch.distributed as dist

from heterotrain.groups import generation

worker, kind = sys.argv[1], sys.argv[2]


def make_groups(_own: generation.Generation, _store: dist.Store) -> None:
    if kind == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3600)


generation.GROUP_SECONDS = 2.0
if os.environ["HETEROTRAIN_WORKER"] == worker:
    generation.Generation.make_groups = make_groups
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
