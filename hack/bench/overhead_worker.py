"""One of the benchmark's workers: a script with the library and a stock one, taking turns in this process.

Each arm is a generator that yields after every step, so its loop reads as a user's script would. The plain arm gets
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

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import heterotrain
from heterotrain.gradient import BUCKET_MEGABYTES
from heterotrain.workloads.digits import DigitsCNN, digits

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
    """Train as a stock script does, for ever; on a process group of its own, beside the library's."""
    torch.manual_seed(SEED)
    criterion = nn.CrossEntropyLoss()
    model = DistributedDataParallel(
        DigitsCNN(width),
        process_group=dist.new_group(backend="gloo"),
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


def measure(arm: Iterator[None], steps: int) -> tuple[list[float], float]:
    """Seconds of each step, and CPU seconds of this process (all its threads) in all of them."""
    cpu_begin = time.process_time()
    stamps = [time.perf_counter()]
    for _ in range(steps):
        next(arm)
        stamps.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(stamps)], time.process_time() - cpu_begin


def main(folder: Path, *, rounds: int, steps: int, warm_up_steps: int, batch_size: int, width: int) -> None:
    """Write one line per block to `blocks-<rank>.jsonl`; the leader keeps the running block's name in `block`."""
    session = heterotrain.join()
    library = with_library(session, width)
    next(library)  # makes the process groups, which the plain arm's stands beside
    arms = {"plain": plain(width, batch_size), "heterotrain": library}
    measure(arms["plain"], warm_up_steps)
    measure(library, warm_up_steps - 1)
    rank = dist.get_rank()
    with (folder / f"blocks-{rank}.jsonl").open("w") as lines:
        for number in range(rounds):
            for name in list(arms) if number % 2 == 0 else list(reversed(arms)):
                if rank == 0:
                    (folder / "block").write_text(f"{name}, round {number + 1} of {rounds}")
                step_seconds, cpu_seconds = measure(arms[name], steps)
                lines.write(json.dumps({"arm": name, "step_seconds": step_seconds, "cpu_seconds": cpu_seconds}) + "\n")
    if next(library, "ended") != "ended":
        raise RuntimeError("the job did not end with the last round")


if __name__ == "__main__":
    names = ("rounds", "steps", "warm_up_steps", "batch_size", "width")
    main(Path(sys.argv[1]), **dict(zip(names, map(int, sys.argv[2:]), strict=True)))
