"""What control and exchange cost the workers of a large job, with real messages (LB-BSP, section 5.5).

Real are the peers' channels, heartbeats and their state machine (`Assembly`), the groups that gloo connects to a full
mesh (`Generation`), the exchange (`PendingSignals`), its pace (`Pace`), and the leader's metrics, which are read every
two seconds as the operator does. Nothing is computed: a step is a pause. The leader, which does most, has a process of
its own; all others share a few processes, since so many with torch do not fit a machine. CPU time is of all threads, so
a share is what control and exchange take of one core while a worker trains. The training thread waits only for an
exchange that takes longer than a step.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

import runner
import tables_papers
from prometheus_client import CollectorRegistry

from heterotrain.contract import Member, Plan
from heterotrain.groups import generation as generations
from heterotrain.groups.assembly import Assembly
from heterotrain.groups.control import Checksums, PendingSignals, Signals
from heterotrain.groups.convening.worker_state import Rules
from heterotrain.groups.generation import Generation
from heterotrain.groups.sockets import SocketCutter
from heterotrain.reporting.metrics import WorkerMetrics
from heterotrain.reporting.serving import MetricsServer
from heterotrain.training.exchange import FIRST_STEPS, Pace
from heterotrain_operator.metrics.pods import PodReader

SIZES = (3, 32, 64, 96)
STEP_SECONDS = (1.0, 0.1)
"""Iterations of the paper's clusters take about a second; the benchmarks' workloads here take a tenth."""

READ_SECONDS = 2.0
PATIENCE_SECONDS = 240.0
SECRET = "exchange" * 4
BATCH = 32
GENERATION = Plan(1, 1, "step", ()).generation


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one process, per worker in it: CPU seconds of a step in all threads, and in the one that trains, and the
    median seconds from the launch of an exchange until its sums were there."""

    cpu_seconds: float
    training_cpu_seconds: float
    exchange_seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """One number of workers at one length of steps; `others` is the mean of all but the leader."""

    workers: int
    step_seconds: float
    leader: Cost
    others: Cost


class Endpoints:
    """The workers of one process, by rank."""

    def __init__(self, plan: Plan, ranks: Sequence[int], stack: ExitStack) -> None:
        rules = Rules(lambda uids: plan.to_json(), silence_seconds=PATIENCE_SECONDS, proof_seconds=PATIENCE_SECONDS / 2)
        self._assemblies = [Assembly("bench", plan.members[rank], rules, SECRET) for rank in ranks]
        for each in self._assemblies:
            stack.callback(each.close)
            each.begin(plan, starts=True)
        self.metrics = WorkerMetrics("bench", plan.members[ranks[0]].name, "g", lambda: False)
        self.metrics.follow(plan, ranks[0])
        with ThreadPoolExecutor(len(ranks)) as threads:
            self._generations = list(threads.map(lambda each: self._make(each, plan), self._assemblies))
        for each in self._generations:
            stack.callback(each.leave)
        self._plan = plan

    def _make(self, assembly: Assembly, plan: Plan) -> Generation:
        attempt, convener = assembly.await_form(time.monotonic() + PATIENCE_SECONDS, lambda: None)
        number = attempt.roster.number
        store = assembly.store(number, len(plan.members), convener, PATIENCE_SECONDS)
        made = Generation(plan, number, attempt.roster.members.index(assembly.own.uid), SocketCutter())
        made.make_groups(store)
        assembly.made(number)
        assembly.agreed(0)
        return made

    def train(self, step_seconds: float, steps: int, begins_at: float) -> Cost:
        """So many steps, all workers in step. Raises RuntimeError if the sums are wrong."""
        pace, due, waits = Pace(), 0, []
        cpu, main = time.process_time(), time.thread_time()
        for step in range(FIRST_STEPS, FIRST_STEPS + steps):  # those at a plan's begin are looked at more often
            pending: list[PendingSignals] = []
            for each in self._assemblies:
                each.contributes()
            if step - FIRST_STEPS >= due:
                pace.at(0, 1)
                pace.at(step, 1)
                between = pace.steps(step_seconds, changing=False)
                signals = Signals(samples=BATCH, next_after=0.0)
                launched = time.perf_counter()
                sums = Checksums(float(step), 1.0)
                pending = [PendingSignals(signals, sums, each) for each in self._generations]
                due = step - FIRST_STEPS + between
            if pending:
                for each in pending:
                    total, checksums = each.read()
                    if total.samples != BATCH * len(self._plan.members) or set(checksums) != {sums}:
                        raise RuntimeError(f"step {step}: the sums are wrong: {total}")
                waits.append(time.perf_counter() - launched)
            self.metrics.state.step = step
            self.metrics.counters.add(BATCH, step_seconds, 0.0, step_seconds)
            for each in self._assemblies:
                each.committed(step)
            time.sleep(max(begins_at + (step - FIRST_STEPS + 1) * step_seconds - time.time(), 0.0))
        both = len(self._assemblies) * steps
        cpu, main = time.process_time() - cpu, time.thread_time() - main
        return Cost(cpu / both, main / both, statistics.median(waits))


def serve(plan: Plan, ranks: Sequence[int], barrier: Barrier, seconds: float, pipe: Connection) -> None:
    """One process: its workers meet the others, and train."""
    generations.GROUP_SECONDS = PATIENCE_SECONDS  # ten thousand connections take two cores longer than usual
    with ExitStack() as stack:
        endpoints = Endpoints(plan, ranks, stack)
        registry = CollectorRegistry()
        registry.register(endpoints.metrics)
        server = MetricsServer(registry, 0)
        stack.callback(server.close)
        pipe.send(server.server_port)
        for step_seconds in STEP_SECONDS:
            barrier.wait(PATIENCE_SECONDS)
            pipe.send(endpoints.train(step_seconds, round(seconds / step_seconds), time.time()))
        barrier.wait(PATIENCE_SECONDS)  # nobody leaves while others still use the groups


def measured(workers: int, processes: int, seconds: float) -> list[Run]:
    """A job of so many workers. Raises BenchmarkError if one of its processes fails."""
    ports = _free_ports(workers)
    plan = Plan(1, GENERATION, "step", tuple(Member(f"w-{n}", f"u{n}", f"127.0.0.1:{p}", "g", BATCH) for n, p in ports))
    shared = min(processes, workers - 1)
    parts = [[0], *([rank for rank in range(1, workers) if rank % shared == part] for part in range(shared))]
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(len(parts))
    pipes, started = [], []
    reader = PodReader()
    try:
        for ranks in parts:
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=serve, args=(plan, ranks, barrier, seconds, theirs), daemon=True)
            process.start()
            theirs.close()
            started.append(process)
            pipes.append(ours)
        ports_of_metrics = [pipe.recv() for pipe in pipes]
        leader = f"127.0.0.1:{ports_of_metrics[0]}"
        runs = []
        for step_seconds in STEP_SECONDS:
            while not pipes[0].poll(READ_SECONDS):
                reader.read({"w-0": leader})
            first, *rest = [pipe.recv() for pipe in pipes]
            weights = [len(ranks) for ranks in parts[1:]]
            runs.append(Run(workers, step_seconds, first, _mean(rest, weights)))
        for process in started:
            process.join(PATIENCE_SECONDS)
        return runs
    except EOFError as error:
        raise runner.BenchmarkError(f"a process with some of {workers} workers failed") from error
    finally:
        reader.close()
        for process in started:
            process.kill()


def _mean(costs: Sequence[Cost], weights: Sequence[int]) -> Cost:
    figures = zip(*(asdict(cost).values() for cost in costs), strict=True)
    return Cost(*(sum(a * w for a, w in zip(each, weights, strict=True)) / sum(weights) for each in figures))


def _free_ports(count: int) -> list[tuple[int, int]]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [(number, each.getsockname()[1]) for number, each in enumerate(held)]


def main(arguments: Sequence[str]) -> int:
    """Measure and print. Raises BenchmarkError if a process fails."""
    parser = argparse.ArgumentParser(description="Measure what control and exchange cost the workers of a large job.")
    parser.add_argument("--workers", type=int, nargs="+", default=SIZES, help="numbers of workers (3 32 64 96)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of training at each length of steps (20)")
    parser.add_argument("--shared", type=int, default=2, help="processes for all workers but the leader (2)")
    options = runner.options_of(parser).parse_args(arguments)
    if min(options.workers) < 2 or options.seconds < 2 or options.shared < 1:
        parser.error("--workers must be at least 2, --seconds at least 2, --shared at least 1")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    machine, runs = runner.machine(), []
    for workers in options.workers:
        print(f"{workers} workers", file=sys.stderr)
        runs += measured(workers, options.shared, options.seconds)
    document = {"benchmark": "exchange", "machine": machine, "runs": [asdict(run) for run in runs]}
    runner.report(document, tables_papers.exchange([document]), options)
    return 0


if __name__ == "__main__":
    runner.command(main)
