"""What the library costs: three equal workers, with it and under plain DistributedDataParallel, alternating.

Both arms run in the same three processes, in blocks of steps, in the order A B, B A, A B, ...; a round is one block of
each. Processes of their own for each arm would differ in start-up, in how warm they are, in where their memory lies,
and by minutes in time; identical arms then differ by more than the cost that is sought. Here both share all of that,
so a round's ratio holds the library alone. What only one arm needs rests while the other runs: the metrics are read
once a second, as the operator would, but only in the library's blocks. The library writes its step records, watches
its plan and reduces its signals; it writes no checkpoints.

The second figure, CPU seconds, is less noisy than time on a shared machine, and under a CPU quota it is what time is
made of. The ratio of neighbouring blocks of the same arm says how much of a difference is the machine's.
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

from rich.console import Console
from rich.table import Table

from heterotrain import contract
from heterotrain.contract import Member, Plan, TrainingConfig
from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.detect import detect
from heterotrain_operator.clusters.local.limits import Mechanism, machine_cores
from heterotrain_operator.clusters.local.ports import HOST, Ports
from heterotrain_operator.clusters.local.process import WorkerFiles, WorkerProcess
from heterotrain_operator.metrics.pods import scrape_pods

WORKERS = 3
PLAIN, LIBRARY = "plain", "heterotrain"
WARM_UP_STEPS = 20
SCRAPE_SECONDS = 1.0
RESAMPLES = 4000
CONFIDENCE = 0.95
CLOSE_SECONDS = 10.0
SCRIPT = Path(__file__).with_name("overhead_worker.py")


@dataclass(frozen=True, slots=True)
class Block:
    """One arm's part of a round: mean and median seconds of a step, and CPU seconds per step of all workers."""

    arm: str
    mean_seconds: float
    median_seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure of both arms: medians over the rounds, quartiles in the same unit, and the cost as a fraction.

    `cost` is the median of the rounds' ratios less one, `cost_interval` its 95 % bootstrap interval, `noise` the
    median deviation from one of the ratio of neighbouring blocks of the same arm.
    """

    figure: str
    plain: float
    heterotrain: float
    plain_quartiles: tuple[float, float]
    heterotrain_quartiles: tuple[float, float]
    cost: float
    cost_interval: tuple[float, float]
    noise: float


class BenchmarkError(Exception):
    """The workers could not be measured; the text says why."""


def run_workers(options: argparse.Namespace, mechanism: Mechanism, folder: Path, say: Callable[[str], None]) -> None:
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
        for member in members:
            port = ports.take()
            addresses[member.name] = f"{HOST}:{port}"
            files = WorkerFiles(folder / member.name, member.uid)
            environment = os.environ | {
                "OMP_NUM_THREADS": "1",
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
            command = [sys.executable, str(SCRIPT), str(folder), *(str(options.rounds), str(options.steps))]
            command += [str(WARM_UP_STEPS), str(options.batch), str(options.width)]
            process = WorkerProcess(
                command,
                environment,
                working_dir=None,
                files=files,
                cage=mechanism.create(member.name, options.cpu, None, token),
                memory_bytes=None,
            )
            processes[member.name] = process
            stack.callback(_close, process)
        _tend(processes, addresses, folder / "block", say)


def _close(process: WorkerProcess) -> None:
    process.close(time.monotonic() + CLOSE_SECONDS)


def _tend(
    processes: dict[str, WorkerProcess],
    addresses: dict[str, str],
    block: Path,
    say: Callable[[str], None],
) -> None:
    while any(process.exit_code() is None for process in processes.values()):
        for name, process in processes.items():
            if process.exit_code():
                raise BenchmarkError(f"worker {name} failed: {process.last_words().message}")
        running = block.read_text() if block.exists() else "starting"
        say(running)
        if running.startswith(LIBRARY):
            scrape_pods(addresses)
        time.sleep(SCRAPE_SECONDS)
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
                arm=same[0]["arm"],
                mean_seconds=statistics.fmean(step_seconds),
                median_seconds=statistics.median(step_seconds),
                cpu_seconds=sum(one["cpu_seconds"] for one in same) / steps,
            )
        )
    return blocks


def compare(figure: str, blocks: Sequence[Block], value: Callable[[Block], float]) -> Comparison:
    """Compare the arms round by round; a round is two neighbouring blocks, one of each arm."""
    rounds = [{block.arm: value(block) for block in blocks[i : i + 2]} for i in range(0, len(blocks), 2)]
    ratios = [each[LIBRARY] / each[PLAIN] for each in rounds]
    generator = random.Random(0)
    medians = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    tail = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    repeats = [value(blocks[i]) / value(blocks[i + 1]) for i in range(1, len(blocks) - 1, 2)]
    plain, library = [each[PLAIN] for each in rounds], [each[LIBRARY] for each in rounds]
    return Comparison(
        figure=figure,
        plain=statistics.median(plain),
        heterotrain=statistics.median(library),
        plain_quartiles=_quartiles(plain),
        heterotrain_quartiles=_quartiles(library),
        cost=statistics.median(ratios) - 1,
        cost_interval=(medians[tail] - 1, medians[-1 - tail] - 1),
        noise=statistics.median(abs(ratio - 1) for ratio in repeats),
    )


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(values, n=4)
    return low, high


def render(comparisons: Sequence[Comparison], title: str) -> Table:
    """The comparisons as a table, in milliseconds and per cent."""
    table = Table(title=title)
    for heading in ("per step", "plain DDP [ms]", "heterotrain [ms]", "cost", "95 % interval", "noise"):
        table.add_column(heading, justify="left" if heading == "per step" else "right")
    for one in comparisons:
        table.add_row(
            one.figure,
            _milliseconds(one.plain, one.plain_quartiles),
            _milliseconds(one.heterotrain, one.heterotrain_quartiles),
            f"{one.cost:+.2%}",
            f"{one.cost_interval[0]:+.2%} .. {one.cost_interval[1]:+.2%}",
            f"{one.noise:.2%}",
        )
    return table


def _milliseconds(seconds: float, quartiles: tuple[float, float]) -> str:
    return f"{seconds * 1e3:.1f} ({quartiles[0] * 1e3:.1f}..{quartiles[1] * 1e3:.1f})"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description="Measure what the library costs beside plain DDP.")
    parser.add_argument("--rounds", type=int, default=32, help="pairs of blocks, one of each arm (at least 3)")
    parser.add_argument("--steps", type=int, default=20, help="steps of a block")
    parser.add_argument("--cpu", type=float, default=0.5, help="CPU limit of each of the three workers, cores")
    # 50 divides the digits' 1,500 samples among three workers without a smaller step at an epoch's end.
    parser.add_argument("--batch", type=int, default=50, help="samples per worker and step")
    parser.add_argument("--width", type=int, default=96, help="channels of the first convolution")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args(arguments)
    if options.rounds < 3 or options.steps < 1 or options.batch < 1 or options.cpu <= 0:
        parser.error("--rounds must be at least 3, --steps and --batch at least 1, --cpu above 0")
    return options


def main(arguments: Sequence[str]) -> int:
    """Measure and print. Raises BenchmarkError if a worker fails."""
    options = parse(arguments)
    console = Console(stderr=True)
    mechanism = detect()
    load_before = os.getloadavg()[0]
    with console.status("") as status, tempfile.TemporaryDirectory(prefix="heterotrain-overhead-") as folder:
        run_workers(options, mechanism, Path(folder), status.update)
        blocks = read_blocks(Path(folder))
    comparisons = [
        compare("mean time", blocks, lambda block: block.mean_seconds),
        compare("median time", blocks, lambda block: block.median_seconds),
        compare("CPU time, all workers", blocks, lambda block: block.cpu_seconds),
    ]
    # The workers of this benchmark are part of the second figure of load.
    load = {"before": load_before, "after": os.getloadavg()[0]}
    if options.json:
        document = {
            "options": vars(options) | {"json": True},
            "limits": mechanism.name,
            "machine_cores": machine_cores(),
            "load": load,
            "comparisons": [dataclasses.asdict(each) for each in comparisons],
            "blocks": [dataclasses.asdict(each) for each in blocks],
        }
        print(json.dumps(document))
        return 0
    # Noise is the median difference of neighbouring blocks of the same arm.
    title = f"{WORKERS} workers of {options.cpu:g} cores ({mechanism.name}), {options.rounds} rounds of "
    title += f"2 x {options.steps} steps; medians (and quartiles) over the rounds"
    table = render(comparisons, title)
    Console(width=max(120, Console().width)).print(table)
    print(f"load of the machine, {machine_cores()} cores: {load['before']:.1f} before, {load['after']:.1f} at the end")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BenchmarkError as error:
        sys.exit(f"overhead: {error}")
