"""How long all workers stand still while some take over the state of the others, by both ways of handing it over.

    .venv/bin/python hack/bench/handover.py [--megabytes 80] [--times 8] [--out FILE]

Real processes on this machine, over loopback, which share its cores: bytes cost CPU here instead of a network. The
state has as many bytes as that of 10 million parameters with momentum. `pairs`: each taker takes it from a holder of
its own; `broadcast`: one holder sends it to all. heterotrain.state.state_transfer takes pairs where there are no more
takers than holders; the last column says whether that was the faster way.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import statistics
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
from recorded_elastic import this_machine
from rich.console import Console
from rich.table import Table

from heterotrain.contract import Member, Plan
from heterotrain.groups.control import sum_over_ranks
from heterotrain.groups.convening.roster import Number
from heterotrain.groups.generation import Generation
from heterotrain.groups.sockets import SocketCutter
from heterotrain.state import state_transfer
from heterotrain.state.state_transfer import hand_over
from heterotrain_operator.clusters.local.starting import Ports

CASES = ((1, 1), (3, 1), (8, 1), (7, 2), (5, 4), (2, 2), (3, 6), (1, 3), (1, 8))
"""Holders and takers. Where there are more takers than holders, only a broadcast is possible."""

TENSORS = 6
WAYS = ("pairs", "broadcast")


def ways_of(holders: int, takers: int) -> tuple[str, ...]:
    """The ways that are possible: takers are more than holders in none but a broadcast."""
    return WAYS if takers <= holders else WAYS[1:]


def worker(rank: int, case: tuple[int, int], port: int, options: argparse.Namespace, found: Connection) -> None:
    """Hand the state over again and again, by both ways in turn; rank 0 tells the seconds."""
    torch.set_num_threads(1)
    holders, takers = case
    members = tuple(Member(f"w-{each}", "", "", "", 1) for each in range(holders + takers))
    generation = Generation(Plan(1, 1, "step", members), Number(1, 0), rank, SocketCutter())
    generation.make_groups(dist.TCPStore("127.0.0.1", port, holders + takers, is_master=rank == 0))
    state = {str(each): torch.zeros(options.megabytes * 250_000 // TENSORS) for each in range(TENSORS)}
    seconds: dict[str, list[float]] = {way: [] for way in ways_of(holders, takers)}
    chosen = state_transfer.by_pairs
    for _ in range(options.times):
        for way, own in seconds.items():
            state_transfer.by_pairs = lambda *_, way=way: way == "pairs"  # type: ignore[misc]
            sum_over_ranks(torch.zeros(1), generation)
            began = time.perf_counter()
            hand_over(state, 0, generation, takes=rank >= holders, shared=lambda _: True)
            sum_over_ranks(torch.zeros(1), generation)
            own.append(time.perf_counter() - began)
    generation.leave()
    if rank == 0:
        found.send((seconds, WAYS[not chosen(holders, takers)]))


def measured(holders: int, takers: int, options: argparse.Namespace) -> dict[str, object]:
    """The median milliseconds of both ways, and the way that is taken."""
    port = Ports().take()
    context = mp.get_context("spawn")
    reads, writes = context.Pipe(duplex=False)
    processes = [
        context.Process(target=worker, args=(rank, (holders, takers), port, options, writes))
        for rank in range(holders + takers)
    ]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    if any(each.exitcode for each in processes):
        raise RuntimeError(f"{holders} holders, {takers} takers: a worker failed")
    seconds, chosen = reads.recv()
    times = {way: 1000 * statistics.median(seconds[way]) if way in seconds else None for way in WAYS}
    return {"holders": holders, "takers": takers, **times, "chosen": chosen}


def main() -> int:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description="Measure both ways of handing a state over.")
    parser.add_argument("--megabytes", type=int, default=80, help="of the state (80)")
    parser.add_argument("--times", type=int, default=8, help="of each way (8)")
    parser.add_argument("--out", type=Path, help="write all figures as JSON to this file, too")
    options = parser.parse_args()
    machine = this_machine()
    rows = [measured(*case, options) for case in CASES]
    if options.out is not None:
        sizes = {"megabytes": options.megabytes, "times": options.times}
        document = {"benchmark": "handover", "machine": machine, **sizes, "rows": rows}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    shown = Table("holders", "takers", "pairs ms", "broadcast ms", "taken", "faster")
    for row in rows:
        measured_ways = [way for way in WAYS if row[way] is not None]
        faster = min(measured_ways, key=lambda way, row=row: row[way])  # type: ignore[misc]
        figures = ("-" if row[way] is None else f"{row[way]:.0f}" for way in WAYS)
        shown.add_row(str(row["holders"]), str(row["takers"]), *figures, str(row["chosen"]), faster)
    Console().print(shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
