"""What the library costs: three equal workers, with it and under plain DistributedDataParallel, alternating.

Both loops run in the same three processes, in blocks of steps, in the order A B, B A, A B, ...; a round is one block of
each. Processes of their own for each loop would differ in start-up, in how warm they are, in where their memory lies,
and by minutes in time; identical loops then differ by more than the cost that is sought. Here both share all of that,
so a round's ratio holds the library alone. What only one loop needs rests while the other runs: the metrics are read
once a second, as the operator would, but only in the library's blocks. The library writes its step records, watches
its plan and reduces its signals; it writes no checkpoints.

The second figure, CPU seconds, is less noisy than time on a shared machine, and under a CPU quota it is what time is
made of. The ratio of neighbouring blocks of the same loop says how much of a difference is the machine's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import runner
import tables_measured
from overhead_worker import LIBRARY, PLAIN, WORKERS
from runner import BenchmarkError

from heterotrain import contract
from heterotrain.contract import Member, Plan, TrainingConfig
from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.limits import Mechanism, detect
from heterotrain_operator.clusters.local.process import WorkerFiles, WorkerProcess
from heterotrain_operator.clusters.local.starting import HOST, Ports
from heterotrain_operator.metrics.pods import PodReader

WARM_UP_STEPS = 20
SCRAPE_SECONDS = 1.0
RESAMPLES = 4000
CONFIDENCE = 0.95
CLOSE_SECONDS = 10.0
SCRIPT = Path(__file__).with_name("overhead_worker.py")


@dataclass(frozen=True, slots=True)
class Block:
    """One loop's part of a round: mean and median seconds of a step, and CPU seconds per step of all workers, in all
    threads and in their main threads."""

    loop: str
    mean_seconds: float
    median_seconds: float
    cpu_seconds: float
    main_cpu_seconds: float


def run_workers(options: argparse.Namespace, mechanism: Mechanism, folder: Path) -> None:
    """Start the gang, read its metrics as the operator would, and wait for its end.

    Raises BenchmarkError if a worker fails; LimitError, OSError if one cannot be started.
    """
    ports, token = Ports(), leftovers.new_token()
    members = tuple(
        Member(f"equal-{rank}", f"uid-{rank}", f"{HOST}:{ports.take()}", "equal", options.batch)
        for rank in range(WORKERS)
    )
    plan_dir = folder / "plan"
    plan_dir.mkdir()
    (plan_dir / contract.PLAN_FILE).write_text(Plan(1, 1, "step", members).to_json())
    steps = WARM_UP_STEPS + options.rounds * options.steps
    processes: dict[str, WorkerProcess] = {}
    addresses: dict[str, str] = {}
    with ExitStack() as stack:
        stack.callback(leftovers.sweep, mechanism.parents, token)
        for rank, member in enumerate(members):
            port = ports.take()
            addresses[member.name] = f"{HOST}:{port}"
            files = WorkerFiles(folder / member.name, member.uid)
            environment = os.environ | {
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                leftovers.ENV_RUNNER: token,
                contract.ENV_JOB: "overhead",
                contract.ENV_WORKER: member.name,
                contract.ENV_UID: member.uid,
                contract.ENV_GROUP: member.group,
                contract.ENV_PLAN_DIR: str(plan_dir),
                contract.ENV_CONFIG: TrainingConfig(steps=steps).to_json(),
                contract.ENV_METRICS_PORT: str(port),
                contract.ENV_TERMINATION_LOG: str(files.termination),
                contract.ENV_SERIES: str(files.series),
            }
            numbers = (rank, options.rounds, options.steps, WARM_UP_STEPS, options.batch, options.width)
            command = [sys.executable, str(SCRIPT), str(folder), *map(str, numbers)]
            process = WorkerProcess(
                command,
                environment,
                working_dir=None,
                files=files,
                limits=mechanism.create(member.name, options.cpu, None, token),
                memory_bytes=None,
            )
            processes[member.name] = process
            stack.callback(_close, process)
        reader = PodReader()
        stack.callback(reader.close)
        _tend(processes, addresses, reader, folder / "block")


def _close(process: WorkerProcess) -> None:
    process.close(time.monotonic() + CLOSE_SECONDS)


def _tend(
    processes: dict[str, WorkerProcess],
    addresses: dict[str, str],
    reader: PodReader,
    block: Path,
) -> None:
    while any(process.exit_code() is None for process in processes.values()):
        for name, process in processes.items():
            if process.exit_code():
                raise BenchmarkError(f"worker {name} failed: {process.last_words().message}")
        running = block.read_text() if block.exists() else "starting"
        print(f"\r{running:60}", end="", file=sys.stderr, flush=True)
        if running.startswith(LIBRARY):
            reader.read(addresses)
        time.sleep(SCRAPE_SECONDS)
    print(file=sys.stderr)
    for name, process in processes.items():
        if process.exit_code() or not process.last_words().finished:
            raise BenchmarkError(f"worker {name} failed: {process.last_words().message}")


def read_blocks(folder: Path) -> list[Block]:
    """The blocks in the order in which they ran, all workers taken together."""
    per_rank = [
        [json.loads(line) for line in (folder / f"blocks-{rank}.jsonl").read_text().splitlines()]
        for rank in range(WORKERS)
    ]
    blocks = []
    for same in zip(*per_rank, strict=True):
        step_seconds = [seconds for one in same for seconds in one["step_seconds"]]
        steps = len(same[0]["step_seconds"])
        blocks.append(
            Block(
                loop=same[0]["loop"],
                mean_seconds=statistics.fmean(step_seconds),
                median_seconds=statistics.median(step_seconds),
                cpu_seconds=sum(one["cpu_seconds"] for one in same) / steps,
                main_cpu_seconds=sum(one["main_cpu_seconds"] for one in same) / steps,
            )
        )
    return blocks


def compare(figure: str, blocks: Sequence[Block], value: Callable[[Block], float]) -> dict[str, Any]:
    """Compare the loops round by round; a round is two neighbouring blocks, one of each loop.

    Figures are medians over the rounds, with quartiles. `cost` is the median of the rounds' ratios less one,
    `cost_interval` its 95 % bootstrap interval, `noise` the median deviation from one of the ratio of neighbouring
    blocks of the same loop.
    """
    rounds = [{block.loop: value(block) for block in blocks[i : i + 2]} for i in range(0, len(blocks), 2)]
    ratios = [each[LIBRARY] / each[PLAIN] for each in rounds]
    generator = random.Random(0)
    medians = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    tail = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    repeats = [value(blocks[i]) / value(blocks[i + 1]) for i in range(1, len(blocks) - 1, 2)]
    found: dict[str, Any] = {"figure": figure}
    for loop in (PLAIN, LIBRARY):
        low, middle, high = statistics.quantiles([each[loop] for each in rounds], n=4)
        found |= {loop: middle, f"{loop}_quartiles": (low, high)}
    return found | {
        "cost": statistics.median(ratios) - 1,
        "cost_interval": (medians[tail] - 1, medians[-1 - tail] - 1),
        "noise": statistics.median(abs(ratio - 1) for ratio in repeats),
    }


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description="Measure what the library costs beside plain DDP.")
    parser.add_argument("--rounds", type=int, default=32, help="pairs of blocks, one of each loop (32; at least 3)")
    parser.add_argument("--steps", type=int, default=20, help="steps of a block (20)")
    parser.add_argument("--cpu", type=float, default=0.5, help="CPU limit of each of the three workers, cores (0.5)")
    # 50 divides the digits' 1,500 samples among three workers without a smaller step at an epoch's end.
    parser.add_argument("--batch", type=int, default=50, help="samples per worker and step (50)")
    parser.add_argument("--width", type=int, default=96, help="channels of the first convolution (96)")
    options = runner.options_of(parser).parse_args(arguments)
    if options.rounds < 3 or min(options.steps, options.batch, options.width) < 1 or options.cpu <= 0:
        parser.error("--rounds must be at least 3, --steps, --batch and --width at least 1, --cpu above 0")
    return options


def main(arguments: Sequence[str]) -> int:
    """Measure and print. Raises BenchmarkError if a worker fails."""
    options = parse(arguments)
    machine, mechanism = runner.machine(), detect()
    with tempfile.TemporaryDirectory(prefix="heterotrain-overhead-") as folder:
        run_workers(options, mechanism, Path(folder))
        blocks = read_blocks(Path(folder))
    figures: dict[str, Callable[[Block], float]] = {
        "mean time": lambda block: block.mean_seconds,
        "median time": lambda block: block.median_seconds,
        "CPU time, all workers": lambda block: block.cpu_seconds,
        "CPU time, main threads": lambda block: block.main_cpu_seconds,
    }
    document = {
        "benchmark": "overhead",
        "machine": machine | {"limits": mechanism.name},
        "settings": {name: getattr(options, name) for name in ("rounds", "steps", "batch", "width", "cpu")},
        "comparisons": [compare(name, blocks, value) for name, value in figures.items()],
        "blocks": [dataclasses.asdict(each) for each in blocks],
    }
    runner.report(document, tables_measured.overhead([document]), options)
    return 0


if __name__ == "__main__":
    runner.command(main)
