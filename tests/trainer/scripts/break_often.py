"""One of two workers whose groups break again and again, with a collective under way; prints what it holds after each
time.

usage: break_often.py RANK PORT TIMES
"""

import json
import os
import sys
import threading
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from heterotrain.contract import Member, Plan
from heterotrain.groups.convening.roster import Number
from heterotrain.groups.generation import CollectiveError, Generation
from heterotrain.groups.sockets import SocketCutter

rank, port, times = map(int, sys.argv[1:])
store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0, timeout=timedelta(seconds=60))
plan = Plan(1, 1, "step", (Member("a", "", "", "", 1), Member("b", "", "", "", 1)))
held = []
for attempt in range(times):
    cutter = SocketCutter()
    generation = Generation(plan, Number(1, attempt), rank, cutter)
    with cutter.watch() as ports:
        generation.make_groups(store)
    store.set(f"ports/{attempt}/{rank}", json.dumps(ports))
    cutter.claim({port for each in range(2) for port in json.loads(store.get(f"ports/{attempt}/{each}"))})
    tensor = torch.ones(1 << 20)
    generation.sum_gradients(tensor).wait()
    assert tensor[0] == 2
    store.set(f"made/{attempt}/{rank}", "")
    store.wait([f"made/{attempt}/0", f"made/{attempt}/1"])
    # Many, so that some are on their way and some wait for their turn; the other worker joins in no more.
    under_way = [] if rank else [generation.sum_gradients(torch.ones(1 << 20)) for _ in range(4)]
    if rank:
        generation.break_up("given up")
    for each in under_way:
        try:
            each.wait()
        except CollectiveError as error:
            generation.break_up(str(error))
        else:
            raise AssertionError("a collective without one of the workers ended well")
    generation.leave()
    each = None
    del under_way, generation
    store.set(f"left/{attempt}/{rank}", "")
    store.wait([f"left/{attempt}/0", f"left/{attempt}/1"])
    threads = len(list(Path("/proc/self/task").iterdir()))
    held.append({"threads": threads, "descriptors": len(os.listdir("/proc/self/fd"))})  # noqa: PTH208
print(json.dumps({"held": held, "python_threads": threading.active_count()}), flush=True)
# The store's host leaves last.
store.set(f"end/{rank}", "")
store.wait(["end/0", "end/1"])
if rank:
    store.set("bye", "")
else:
    store.wait(["bye"])
