"""One of the benchmark's workers: a script with the library and a stock one, taking turns in this process.

Each loop is a generator that yields after every step, so it reads as a user's script would. The plain loop gets
what the library asks of DistributedDataParallel, one large bucket and gradients as views into it, so that the
difference is the library itself, not these settings.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import heterotrain
from heterotrain.gradients.gradient_sum import BUCKET_MEGABYTES
from heterotrain.workloads.digits import DigitsCNN, digits

PLAIN, LIBRARY = "plain", "heterotrain"
WORKERS = 3
LEARNING_RATE = 0.02
MOMENTUM = 0.9
SEED = 0


def with_library(session: heterotrain.Session, width: int) -> Iterator[None]:
    """Train as a script with the library does; ends with the job."""
    torch.manual_seed(SEED)
    criterion = nn.CrossEntropyLoss()
    model = DigitsCNN(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    elastic, committing, batches = session.prepare(model, optimizer, digits())
    for images, labels in batches:
        loss = session.scale(criterion(elastic(images), labels))
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        committing.step()
        committing.zero_grad()
        yield


def plain(width: int, batch_size: int) -> Iterator[None]:
    """Train as a stock script does, for ever; on torch.distributed's default group, which the library leaves alone."""
    torch.manual_seed(SEED)
    criterion = nn.CrossEntropyLoss()
    model = DistributedDataParallel(
        DigitsCNN(width),
        bucket_cap_mb=BUCKET_MEGABYTES,
        gradient_as_bucket_view=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    data = digits()
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, seed=SEED)
    loader = DataLoader(data, batch_size=batch_size, sampler=sampler)
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield


def measure(loop: Iterator[None], steps: int) -> dict[str, Any]:
    """Seconds of each step; CPU seconds of all of them, of this process (all its threads) and of this thread."""
    cpu_begin, main_begin = time.process_time(), time.thread_time()
    stamps = [time.perf_counter()]
    for _ in range(steps):
        next(loop)
        stamps.append(time.perf_counter())
    return {
        "main_cpu_seconds": time.thread_time() - main_begin,
        "cpu_seconds": time.process_time() - cpu_begin,
        "step_seconds": [after - before for before, after in itertools.pairwise(stamps)],
    }


def main(folder: Path, rank: int, *, rounds: int, steps: int, warm_up_steps: int, batch_size: int, width: int) -> None:
    """Write one line per block to `blocks-<rank>.jsonl`; the leader keeps the running block's name in `block`."""
    session = heterotrain.join()
    # As in a script with a process group of its own: it is there before the library makes its groups.
    dist.init_process_group("gloo", init_method=f"file://{folder}/plain-group", rank=rank, world_size=WORKERS)
    library = with_library(session, width)
    loops = {PLAIN: plain(width, batch_size), LIBRARY: library}
    for loop in loops.values():
        measure(loop, warm_up_steps)
    with (folder / f"blocks-{rank}.jsonl").open("w") as lines:
        for number in range(rounds):
            order = list(loops) if number % 2 == 0 else list(reversed(loops))
            for name in order:
                if rank == 0:
                    (folder / "block").write_text(f"{name}, round {number + 1} of {rounds}")
                lines.write(json.dumps({"loop": name, **measure(loops[name], steps)}) + "\n")
    if next(library, "ended") != "ended":
        raise RuntimeError("the job did not end with the last round")
    dist.destroy_process_group()


if __name__ == "__main__":
    names = ("rounds", "steps", "warm_up_steps", "batch_size", "width")
    main(Path(sys.argv[1]), int(sys.argv[2]), **dict(zip(names, map(int, sys.argv[3:]), strict=True)))
