"""Record how a real training process fares while another process comes and goes on its core, for `predictors.py`.

    .venv/bin/python hack/bench/interference.py --out hack/bench/recorded_interference.json

A small perceptron trains at a fixed batch on one core. Beside it a process that this one starts computes by a random
schedule: on and off, with a share that fades in and out, on and off through memory on another core, or not at all.
Each worker of a regime is recorded after the other. Of each window of ten steps three whole numbers are kept: own
microseconds of a step, CPU seconds per own second, and resident memory of 1 GiB, both in thousandths.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import runner
import torch
from torch import nn

from heterotrain.reporting import resources

STEPS, WARM_UP = 10, 50
BATCH, INPUTS, WIDTH = 32, 256, 1024
MEMORY_LIMIT = 1 << 30
WORKERS = 4

SLICE_SECONDS = 0.01
"""In which a neighbour that fades computes for its share."""

MEAN_SECONDS = 1.5
"""For which a neighbour that comes and goes stays, or stays away, in the mean."""

REGIMES = ("as found", "on and off", "fading", "memory")


def computes(draw: random.Random) -> None:
    """Take half of the core, as a fair scheduler has it, for random times."""
    while True:
        until = time.monotonic() + draw.expovariate(1 / MEAN_SECONDS)
        while time.monotonic() < until:
            pass
        time.sleep(draw.expovariate(1 / MEAN_SECONDS))


def fades(draw: random.Random) -> None:
    """Want a share of the core that wanders between nothing and all."""
    share = 0.5
    while True:
        share = min(max(share + draw.gauss(0, 0.02), 0.0), 1.0)
        until = time.monotonic() + SLICE_SECONDS * share
        while time.monotonic() < until:
            pass
        time.sleep(SLICE_SECONDS * (1 - share))


def copies(draw: random.Random) -> None:
    """Copy more than the caches hold, for random times."""
    source = torch.zeros(1 << 24)
    target = torch.empty_like(source)
    while True:
        until = time.monotonic() + draw.expovariate(1 / MEAN_SECONDS)
        while time.monotonic() < until:
            target.copy_(source)
        time.sleep(draw.expovariate(1 / MEAN_SECONDS))


NEIGHBOURS = {"on and off": computes, "fading": fades, "memory": copies}


def trained(windows: int, core: int) -> list[tuple[int, int, int]]:
    """The windows of a worker that trains on this core, which is all that this process does from now on."""
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = (nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples, labels = torch.randn(BATCH, INPUTS), torch.randint(0, 10, (BATCH,))

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(samples), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    steps(WARM_UP)
    found = []
    for _ in range(windows):
        began, used = time.perf_counter(), time.process_time()
        steps(STEPS)
        seconds, used = time.perf_counter() - began, time.process_time() - used
        memory = (resources.memory_bytes() or 0.0) / MEMORY_LIMIT
        found.append((round(1e6 * seconds / STEPS), round(1e3 * used / seconds), round(1e3 * memory)))
    return found


def recorded(regime: str, worker: int, windows: int, core: int, other_core: int) -> list[list[int]]:
    """The windows of one worker beside a neighbour, both processes of their own, as columns."""
    this = [sys.executable, str(Path(__file__).resolve())]
    neighbour = None
    try:
        if regime in NEIGHBOURS:
            place = other_core if regime == "memory" else core
            neighbour = subprocess.Popen([*this, "--neighbour", regime, "--seed", str(worker), "--core", str(place)])
        trainer = [*this, "--windows", str(windows), "--core", str(core), "--train"]
        ended = subprocess.run(trainer, check=False, stdout=subprocess.PIPE, text=True)
    finally:
        if neighbour is not None:
            neighbour.kill()
            neighbour.wait()
    if ended.returncode:
        raise runner.BenchmarkError(f"the trainer of {regime!r} ended with exit code {ended.returncode}")
    return [list(column) for column in zip(*json.loads(ended.stdout), strict=True)]


def main(arguments: Sequence[str]) -> int:
    """Record all regimes and print how many windows there are."""
    cores = sorted(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description="Record a training process beside a neighbour that comes and goes.")
    parser.add_argument("--windows", type=int, default=600, help="of ten steps, for each worker (600)")
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"of each regime, one after the other ({WORKERS})")
    parser.add_argument("--regimes", choices=REGIMES, nargs="+", default=REGIMES, help="what is recorded (all)")
    parser.add_argument("--core", type=int, choices=cores, default=cores[0], help=f"where all compute ({cores[0]})")
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--neighbour", choices=NEIGHBOURS, help=argparse.SUPPRESS)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, required="--neighbour" not in arguments and "--train" not in arguments)
    options = parser.parse_args(arguments)
    if min(options.windows, options.workers) < 1:
        parser.error("--windows and --workers must be at least 1")
    if options.neighbour is not None:
        os.sched_setaffinity(0, {options.core})
        torch.set_num_threads(1)
        NEIGHBOURS[options.neighbour](random.Random(options.seed))
    if options.train:
        print(json.dumps(trained(options.windows, options.core)))
        return 0
    if len(cores) < 2:
        raise runner.BenchmarkError("this process may use one core only: a neighbour through memory needs another one")
    other = next(core for core in cores if core != options.core)
    document: dict[str, Any] = {
        "source": "hack/bench/interference.py: by regime and worker own microseconds of a step in windows of ten, CPU "
        "per own second and memory of its limit (thousandths)",
        "machine": runner.machine(),
        "batch": BATCH,
        "traces": {},
    }
    for regime in options.regimes:
        workers = [recorded(regime, each, options.windows, options.core, other) for each in range(options.workers)]
        document["traces"][regime] = workers
        options.out.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")
        print(f"{regime}: {options.windows} windows of {options.workers} workers", flush=True)
    return 0


if __name__ == "__main__":
    runner.command(main)
