"""What one parameter server carries: bytes beside a raw socket's, updates per second, CPU and memory.

Real are the server (`Serving`: its port, ledger, rules and optimizer), its workers' lines (`ServerLine`) and the
sockets; workers compute nothing, and send as soon as they have parameters, so the server is as busy as it can be. All
processes share this machine's cores. Light workers share two processes, since so many with torch do not fit a machine.

The raw copy is one worker's round trip without all but its bytes: as many go to another process over a plain socket,
and only then come back, on the same cores; MB/s count both ways in either case. A round trip of the server's also looks
for numbers that are none, steps the optimizer and copies the parameters, which is part of what is measured. With more
workers one's bytes move while another's update is applied, so together they may move more than one raw copy does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import resource
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path

import runner
import torch
from tables_asp import server as table_of
from torch import nn

from heterotrain.contract import ASP, Member, Plan, Server, TrainingConfig
from heterotrain.data.order import Order
from heterotrain.groups.peering.channel import Channel
from heterotrain.groups.peering.messages import Enter, Grant, Update, Vouches
from heterotrain.groups.peering.server import PeerServer
from heterotrain.job.planfile import PlanFile
from heterotrain.job.plans import Plans
from heterotrain.job.worker import StopRequest, Worker
from heterotrain.reporting.metrics import Series, WorkerMetrics
from heterotrain.training.context import Context
from heterotrain.training.layout import Layout, memory_of
from heterotrain.training.parts import put_together
from heterotrain.training.server_line import ServerLine
from heterotrain.training.serving import Serving
from heterotrain.training.subject import Subject
from heterotrain.training.traits import traits_of

SECRET = "asp server " * 4
LARGE, LIGHT = 10_000_000, 100_000
"""Parameters of float32: 40 MB, and 400 kB."""

WORKERS = (3, 8, 32)
IN_FLIGHT = (1, 3, 8)
PROCESSES = 2
TURNS = 3
PATIENCE_SECONDS = 120.0
_MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class Run:
    """One server and its workers. `megabytes_per_second` are both ways together; `memory_models` is what the process
    held at most beyond what it held before it had a model, in models of that size; CPU seconds are the server's."""

    kind: str
    workers: int
    parameters: int
    updates_per_second: float
    megabytes_per_second: float
    cpu_seconds_per_update: float | None = None
    memory_models: float | None = None


def _model(parameters: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(parameters // 1000, 1000, bias=False)


def _processes() -> ForkServerContext:
    """Processes that have imported torch already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["asp_server"])
    return context


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


# --- the server, in a process of its own ------------------------------------------------------------------------------


def serve(folder: Path, plan: Plan, parameters: int, pipe: Connection) -> None:
    """Apply updates; say so once there were some of each worker. Then report how many came between two messages of
    the parent, and what they cost."""
    torch.set_num_threads(1)
    assert plan.server is not None
    config = TrainingConfig(epochs=1_000_000, mode=ASP)
    worker = Worker(
        "job", "server", plan.server.uid, "", folder, config, None, 0, None, folder / "end", secret=SECRET, serves=True
    )
    model = _model(parameters)
    subject = Subject(model, torch.optim.SGD(model.parameters(), lr=1e-6), torch.device("cpu"), Order(1 << 20, 0))
    plans = Plans(None, PlanFile(folder))
    parts = put_together(
        Context(config, worker, plans, WorkerMetrics("job", "server", "", bool), Series(None), StopRequest()), subject
    )
    step = parts.step
    assert isinstance(step, Serving) and parts.join is not None
    model_bytes = 4 * parameters
    without = 4096 * int(Path("/proc/self/statm").read_text().split()[1]) - model_bytes
    parts.join()
    pipe.send(json.dumps(traits_of(subject, parts.state, parts.evaluation)))
    marks: list[tuple[float, int, float]] = []
    are_there = False
    while len(marks) < 2:
        if not are_there and parts.state.position.step > 2 * len(plan.members):
            are_there = True
            pipe.send("all are there")
        if pipe.poll():
            pipe.recv()
            marks.append((time.perf_counter(), parts.state.position.step, time.process_time()))
        step.begin()
        step.compute_nothing()
        step.commit()
    (began, first, used), (ended, last, used_then) = marks
    updates = max(1, last - first)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pipe.send((updates / (ended - began), (used_then - used) / updates, (peak - without) / model_bytes))


def work(plan: Plan, members: Sequence[Member], parameters: int, traits: str, pipe: Connection) -> None:
    """Some of the workers, each in a thread."""
    torch.set_num_threads(1)
    ends = threading.Event()
    threads = [threading.Thread(target=_push_all, args=(plan, each, parameters, traits, ends)) for each in members]
    for each in threads:
        each.start()
    pipe.recv()
    ends.set()
    for each in threads:
        each.join()


def _push_all(plan: Plan, member: Member, parameters: int, traits: str, ends: threading.Event) -> None:
    model = _model(parameters)
    layout = Layout(model, list(model.parameters()))
    peers = PeerServer("job", member.name, member.uid, secret=SECRET, host="127.0.0.1")
    line = ServerLine(
        peers, layout, find=lambda: plan.server, gives_up=ends.is_set, silence_seconds=5.0, patience_seconds=30.0
    )
    reply = line.enter(Enter(traits))
    gradients = [torch.zeros_like(each) for each in model.parameters()]
    while isinstance(reply, Grant):
        line.take(reply)
        _, start, stop = reply.share
        samples = stop - start
        update = Update(reply.incarnation, reply.lease, reply.position[0], samples, 0.0, 1.0, float(samples))
        reply = line.push(update, gradients)
    line.close()


def served(kind: str, workers: int, parameters: int, seconds: float) -> Run:
    """A server with so many workers, for so long. Raises BenchmarkError if a process fails."""
    started_by = _processes()
    members = tuple(Member(f"w-{n}", f"u{n}", "127.0.0.1:1", "g", 8) for n in range(workers))
    plan = Plan(1, 1, "step", members, server=Server("server", "the server", f"127.0.0.1:{_free_port()}"))
    started = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "plan.json").write_text(plan.to_json())
        try:
            ours, theirs = started_by.Pipe()
            started.append(started_by.Process(target=serve, args=(Path(folder), plan, parameters, theirs), daemon=True))
            started[0].start()
            theirs.close()
            traits, pipes = ours.recv(), []
            for part in range(min(PROCESSES, workers)):
                own, other = started_by.Pipe()
                arguments = (plan, members[part::PROCESSES], parameters, traits, other)
                started.append(started_by.Process(target=work, args=arguments, daemon=True))
                started[-1].start()
                other.close()
                pipes.append(own)
            ours.recv()
            ours.send("begin")
            time.sleep(seconds)
            ours.send("end")
            rate, cpu, models = ours.recv()
            for pipe in pipes:
                pipe.send("end")
        except (EOFError, OSError) as error:
            raise runner.BenchmarkError(f"a process of {workers} workers and their server failed") from error
        finally:
            for process in started:
                process.kill()
                process.join()
    return Run(kind, workers, parameters, rate, rate * 2 * 4 * parameters / _MEGABYTE, cpu, models)


# --- the same bytes, by less ------------------------------------------------------------------------------------------


def _in_turns(
    kind: str, echo: Callable[[int, Connection], None], turns: Callable[[int, int, float], float], seconds: float
) -> Run:
    """Bytes of a large model that go to another process and come back."""
    started_by = _processes()
    ours, theirs = started_by.Pipe()
    size = 4 * LARGE
    process = started_by.Process(target=echo, args=(size, theirs), daemon=True)
    process.start()
    try:
        rate = turns(ours.recv(), size, seconds)
    finally:
        process.kill()
        process.join()
    return Run(kind, 1, LARGE, rate, rate * 2 * size / _MEGABYTE)


def echo_raw(size: int, pipe: Connection) -> None:
    """Receive all of it into one buffer, and send that back."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        made, _ = listener.accept()
        room = memoryview(bytearray(size))
        with contextlib.suppress(ConnectionError):  # at the end
            while True:
                _receive(made, room)
                made.sendall(room)


def turns_raw(port: int, size: int, seconds: float) -> float:
    """Turns per second over a plain socket."""
    room = memoryview(bytearray(size))
    with socket.create_connection(("127.0.0.1", port)) as made:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def turn() -> None:
            made.sendall(room)
            _receive(made, room)

        return _rate(turn, seconds)


def _receive(made: socket.socket, room: memoryview) -> None:
    while room:
        size = made.recv_into(room)
        if not size:
            raise ConnectionError("closed")
        room = room[size:]


def echo_channel(size: int, pipe: Connection) -> None:
    """The same over a peers' channel."""
    room = memory_of(torch.zeros(size, dtype=torch.uint8))
    peers = PeerServer("job", "server", "the server", secret=SECRET, host="127.0.0.1")
    peers.follow_with_bulk(Update, lambda _channel, _message: [room])
    grant = Grant("x", 1, (0, 0, 8), (), (0, 0, 0), False, True, "", "{}")
    peers.handle(Update, lambda channel, _message: channel.send_bulk(grant, [room]))
    peers.start()
    pipe.send(peers.port)
    threading.Event().wait()


def turns_channel(port: int, size: int, seconds: float) -> float:
    """Turns per second over it."""
    room = memory_of(torch.zeros(size, dtype=torch.uint8))
    arrived = threading.Semaphore(0)
    peers = PeerServer("job", "w-0", "u0", secret=SECRET, host="127.0.0.1")
    peers.follow_with_bulk(Grant, lambda _channel, _message: [room])
    peers.handle(Grant, lambda _channel, _message: arrived.release())
    peers.start()
    channel: Channel = peers.dial(f"127.0.0.1:{port}", "server", "the server")
    channel.wait_open(PATIENCE_SECONDS)
    channel.send(Vouches())
    update = Update("x", 1, 0, 8, 0.0, 1.0, 8.0)

    def turn() -> None:
        channel.send_bulk(update, [room])
        arrived.acquire()

    try:
        return _rate(turn, seconds)
    finally:
        peers.close()


def _rate(turn: Callable[[], None], seconds: float) -> float:
    turn()
    began, turns = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        turn()
        turns += 1
    return turns / (time.perf_counter() - began)


def main(arguments: Sequence[str]) -> int:
    """Measure and print. Raises BenchmarkError if a process fails."""
    parser = argparse.ArgumentParser(description="Measure what one parameter server carries.")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="numbers of light workers (3 8 32)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement (3)")
    options = runner.options_of(parser).parse_args(arguments)
    if min(options.workers) < 1 or options.seconds < 1:
        parser.error("--workers and --seconds must be at least 1")
    machine, runs = runner.machine(), []
    for turn in range(TURNS):  # in turns, for a machine that others use may change meanwhile
        print(f"a large model, turn {turn + 1} of {TURNS}", file=sys.stderr)
        runs.append(_in_turns("raw", echo_raw, turns_raw, options.seconds))
        runs.append(_in_turns("channel", echo_channel, turns_channel, options.seconds))
        runs += [served("large", workers, LARGE, options.seconds) for workers in IN_FLIGHT]
    for workers in options.workers:
        print(f"a light model, {workers} workers", file=sys.stderr)
        runs.append(served("light", workers, LIGHT, options.seconds))
    document = {"benchmark": "asp_server", "machine": machine, "runs": [asdict(run) for run in runs]}
    runner.report(document, table_of([document]), options)
    return 0


if __name__ == "__main__":
    runner.command(main)
