"""What the library costs: three equal workers, with it and under plain DistributedDataParallel, alternating.

Both loops run in the same three processes, in blocks of steps, in the order A B, B A, A B, ...; a round is one block of
each. Processes of their own for each loop would differ in start-up, in how warm they are, in where their memory lies,
and by minutes in time; identical loops then differ by more than the cost that is sought. Here both share all of that,
so a round's ratio holds the library alone. What only one loop needs rests while the other runs: the metrics are read
once a second, as the operator would, but only in the library's blocks. The library writes its step records, watches
its plan and reduces its signals; it writes no checkpoints.

The second figure, CPU seconds, is less noisy than time on a shared machine, and under a CPU quota it is what time is
made of. The ratio of neighbouring blocks of the same loop says how much of a difference is the machine's.

`--parts` shows in which parts of the library the main thread's CPU time goes; `--ranks` what bookkeeping costs one
worker of a large group, whose other members are simulated.
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

import overhead_parts
import overhead_ranks
from overhead_parts import LIBRARY, PLAIN, Part
from rich.console import Console
from rich.table import Table

from heterotrain import contract
from heterotrain.contract import Member, Plan, TrainingConfig
from heterotrain_operator.clusters.local import leftovers
from heterotrain_operator.clusters.local.limits import Mechanism, detect, machine_cores
from heterotrain_operator.clusters.local.process import WorkerFiles, WorkerProcess
from heterotrain_operator.clusters.local.starting import HOST, Ports
from heterotrain_operator.metrics.pods import PodReader

WORKERS = 3
WARM_UP_STEPS = 20
SCRAPE_SECONDS = 1.0
RESAMPLES = 4000
CONFIDENCE = 0.95
CLOSE_SECONDS = 10.0
FINE_SECONDS = 0.02  # below this a table shows one digit more
DEFAULTS = {"rounds": 32, "steps": 20, "batch": 50, "width": 96}
PARTS_DEFAULTS = {"rounds": 12, "steps": 100, "batch": 5, "width": 4}
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


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure of both loops: medians over the rounds, quartiles in the same unit, and the cost as a fraction.

    `cost` is the median of the rounds' ratios less one, `cost_interval` its 95 % bootstrap interval, `noise` the
    median deviation from one of the ratio of neighbouring blocks of the same loop.
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
    steps = WARM_UP_STEPS + options.rounds * options.steps * (2 if options.parts else 1)
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
            command = [sys.executable, str(SCRIPT), str(folder), "parts" if options.parts else "whole"]
            command += map(str, numbers)
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
        _tend(processes, addresses, reader, folder / "block", say)


def _close(process: WorkerProcess) -> None:
    process.close(time.monotonic() + CLOSE_SECONDS)


def _tend(
    processes: dict[str, WorkerProcess],
    addresses: dict[str, str],
    reader: PodReader,
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
            reader.read(addresses)
        time.sleep(SCRAPE_SECONDS)
    for name, process in processes.items():
        if process.exit_code() or not process.last_words().finished:
            raise BenchmarkError(f"worker {name} failed: {process.last_words().message}")


def read_blocks(folder: Path) -> tuple[list[Block], list[tuple[str, list[Part]]]]:
    """The blocks in the order in which they ran, all workers taken together; and each worker's blocks of parts, if
    there are any."""
    per_rank = [
        [json.loads(line) for line in (folder / f"blocks-{rank}.jsonl").read_text().splitlines()]
        for rank in range(WORKERS)
    ]
    blocks, parts = [], []
    for same in zip(*per_rank, strict=True):
        loop = same[0]["loop"]
        if "parts" in same[0]:
            parts += [(loop, [Part(**part) for part in one["parts"]]) for one in same]
            continue
        step_seconds = [seconds for one in same for seconds in one["step_seconds"]]
        steps = len(same[0]["step_seconds"])
        blocks.append(
            Block(
                loop=loop,
                mean_seconds=statistics.fmean(step_seconds),
                median_seconds=statistics.median(step_seconds),
                cpu_seconds=sum(one["cpu_seconds"] for one in same) / steps,
                main_cpu_seconds=sum(one["main_cpu_seconds"] for one in same) / steps,
            )
        )
    return blocks, parts


def compare(figure: str, blocks: Sequence[Block], value: Callable[[Block], float]) -> Comparison:
    """Compare the loops round by round; a round is two neighbouring blocks, one of each loop."""
    rounds = [{block.loop: value(block) for block in blocks[i : i + 2]} for i in range(0, len(blocks), 2)]
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
    digits = 1 if seconds >= FINE_SECONDS else 2
    return f"{seconds * 1e3:.{digits}f} ({quartiles[0] * 1e3:.{digits}f}..{quartiles[1] * 1e3:.{digits}f})"


def numbers_of_ranks(text: str) -> tuple[int, ...]:
    """Of an option's text, such as "64,512"."""
    try:
        found = tuple(int(each) for each in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected numbers such as 64,512, found {text!r}") from error
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"expected numbers of at least 1, found {text!r}")
    return found


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description="Measure what the library costs beside plain DDP.")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--parts",
        action="store_true",
        help="also show the main thread's CPU time by part of the library; steps are small then, unless said otherwise",
    )
    mode.add_argument(
        "--ranks",
        type=numbers_of_ranks,
        metavar="N,M",
        help="show instead what bookkeeping costs one worker of so many; the others are simulated",
    )
    parser.add_argument("--rounds", type=int, help="pairs of blocks, one of each loop (32; at least 3)")
    parser.add_argument("--steps", type=int, help="steps of a block (20; 100 with --parts)")
    parser.add_argument("--cpu", type=float, default=0.5, help="CPU limit of each of the three workers, cores (0.5)")
    # 50 (and 5) divide the digits' 1,500 samples among three workers without a smaller step at an epoch's end.
    parser.add_argument("--batch", type=int, help="samples per worker and step (50; 5 with --parts)")
    parser.add_argument("--width", type=int, help="channels of the first convolution (96; 4 with --parts)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the tables")
    options = parser.parse_args(arguments)
    usual = PARTS_DEFAULTS if options.parts else DEFAULTS
    for name, value in usual.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.rounds < 3 or min(options.steps, options.batch, options.width) < 1 or options.cpu <= 0:
        parser.error("--rounds must be at least 3, --steps, --batch and --width at least 1, --cpu above 0")
    return options


def main(arguments: Sequence[str]) -> int:
    """Measure and print. Raises BenchmarkError if a worker fails."""
    options = parse(arguments)
    load_before = os.getloadavg()[0]
    if options.ranks:
        document, tables = _ranks(options)
    else:
        document, tables = _gang(options)
    # The workers of this benchmark are part of the second figure of load.
    load = {"before": load_before, "after": os.getloadavg()[0]}
    if options.json:
        common = {"options": vars(options), "machine_cores": machine_cores(), "load": load}
        print(json.dumps(common | document))
        return 0
    console = Console(width=max(120, Console().width))
    for table in tables:
        console.print(table)
    print(f"load of the machine, {machine_cores()} cores: {load['before']:.1f} before, {load['after']:.1f} at the end")
    return 0


def _ranks(options: argparse.Namespace) -> tuple[dict[str, Any], list[Table]]:
    costs = overhead_ranks.measure(options.ranks)
    return {"simulated_ranks": [dataclasses.asdict(each) for each in costs]}, [overhead_ranks.render(costs)]


def _gang(options: argparse.Namespace) -> tuple[dict[str, Any], list[Table]]:
    mechanism = detect()
    console = Console(stderr=True)
    with console.status("") as status, tempfile.TemporaryDirectory(prefix="heterotrain-overhead-") as folder:
        run_workers(options, mechanism, Path(folder), status.update)
        blocks, parts = read_blocks(Path(folder))
    comparisons = [
        compare("mean time", blocks, lambda block: block.mean_seconds),
        compare("median time", blocks, lambda block: block.median_seconds),
        compare("CPU time, all workers", blocks, lambda block: block.cpu_seconds),
        compare("CPU time, main threads", blocks, lambda block: block.main_cpu_seconds),
    ]
    document: dict[str, Any] = {
        "limits": mechanism.name,
        "comparisons": [dataclasses.asdict(each) for each in comparisons],
        "blocks": [dataclasses.asdict(each) for each in blocks],
    }
    # Noise is the median difference of neighbouring blocks of the same loop.
    title = f"{WORKERS} workers of {options.cpu:g} cores ({mechanism.name}), {options.rounds} rounds of "
    title += f"2 x {options.steps} steps; medians (and quartiles) over the rounds"
    tables = [render(comparisons, title)]
    if parts:
        costs = overhead_parts.summarise(parts)
        document["parts"] = [dataclasses.asdict(each) | {"difference": each.difference} for each in costs]
        without = [1e6 / WORKERS * each for each in (comparisons[-1].plain, comparisons[-1].heterotrain)]
        title = f"a worker's parts, means; in all {without[0]:.0f} and {without[1]:.0f} without the stopwatch (medians)"
        tables.append(overhead_parts.render(costs, title))
    return document, tables


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BenchmarkError as error:
        sys.exit(f"overhead: {error}")
