"""Groups are made over boards of the convener, with few requests and no trace; whoever waits can be called off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from heterotrain.contract import Member, Plan
from heterotrain.groups.convening.roster import Number
from heterotrain.groups.generation import Generation, is_collective_error
from heterotrain.groups.peering.board_store import BoardStore, StoreError
from heterotrain.groups.peering.boards import Boards
from heterotrain.groups.peering.channel import Channel
from heterotrain.groups.peering.messages import Abandon, Collect, Put, Values
from heterotrain.groups.sockets import SocketCutter
from heterotrain.reporting.resources import memory_bytes
from unit.peering.meeting import PATIENCE_SECONDS, SECRET, Peer, descriptors

NUMBER = Number(1, 0)
TIMES = 400
WARM_TIMES = 100  # by when pools, caches and arenas have what they need


class Worker:
    """A peer with its boards; the first one is the convener."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.peer = Peer(f"w-{rank}", Put, Collect, Values, Abandon)
        self.boards = Boards(self.peer.server)
        self.convener: Channel | None = None
        self.peer.server.start()

    def store(self, number: Number, world_size: int, seconds: float = PATIENCE_SECONDS) -> BoardStore:
        """What this worker makes groups over."""
        return self.boards.store(number, world_size, self.convener, seconds)


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    made = [Worker(rank) for rank in range(3)]
    for each in made[1:]:
        each.convener = each.peer.reach(made[0].peer)
    yield made
    for each in made:
        each.peer.server.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def plan_of(number: Number, workers: list[Worker]) -> Plan:
    members = [Member(each.peer.name, each.peer.uid, "", "", 1) for each in workers]
    return Plan(1, number.generation, "step", tuple(members))


def open_board(workers: list[Worker], number: Number = NUMBER) -> None:
    workers[0].boards.open(number, [each.peer.uid for each in workers])


def make(worker: Worker, workers: list[Worker], number: Number) -> tuple[Generation, BoardStore]:
    generation = Generation(plan_of(number, workers), number.attempt, worker.rank, SocketCutter())
    store = worker.store(number, len(workers))
    try:
        generation.make_groups(store)
    except RuntimeError:
        worker.boards.close(store, "not made")
        raise
    return generation, store


def await_message(worker: Worker, kind: type[Any]) -> None:
    """Wait until a message of this kind has been handled."""
    while not isinstance(worker.peer.next_message(), kind):
        pass
    worker.peer.settle()


def refused(call: Callable[[], Any], why: str) -> None:
    with pytest.raises(StoreError, match=why) as caught:
        call()
    assert is_collective_error(caught.value)


def test_a_store_waits_for_a_key_as_long_as_gloo_tries_to_connect(
    workers: list[Worker], pool: ThreadPoolExecutor
) -> None:
    """gloo says how long one of its tries takes. A member that comes later is not lost."""
    open_board(workers)
    first, second = (each.store(NUMBER, 3) for each in workers[:2])
    waiting = pool.submit(second.wait, ["port"], timedelta(seconds=0.5))
    time.sleep(0.75)
    first.set("port", "29500")
    waiting.result(PATIENCE_SECONDS)


def test_groups_over_a_board_sum_as_ever_after_it_is_dropped(workers: list[Worker], pool: ThreadPoolExecutor) -> None:
    open_board(workers)
    made = [each.result() for each in [pool.submit(make, worker, workers, NUMBER) for worker in workers]]
    workers[0].boards.drop(NUMBER, "made")
    for worker, (_, store) in zip(workers, made, strict=True):
        worker.boards.close(store, "made")
    tensors = [torch.full((1000,), rank + 1.0) for rank in range(3)]
    for kind in ("sum", "sum_gradients"):
        sums = [getattr(made[rank][0], kind)(tensors[rank]) for rank in range(3)]
        for each in sums:
            each.wait()
    assert [tensor[0].item() for tensor in tensors] == [18.0] * 3
    for generation, _ in made:
        generation.leave()


@pytest.mark.long
def test_hundreds_of_generations_leave_neither_threads_nor_descriptors_nor_keys_nor_memory(
    workers: list[Worker], capsys: pytest.CaptureFixture[str]
) -> None:
    held, pair = [], workers[:2]
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        for generation in range(TIMES):
            number = Number(generation, 1)
            open_board(pair, number)
            made = list(pool.map(lambda worker, number=number: make(worker, pair, number), pair))  # type: ignore[misc]
            for worker, (_, store) in zip(pair, made, strict=True):
                worker.boards.close(store, "made")
            pair[0].boards.drop(number, "made")
            list(pool.map(lambda each: each[0].leave(), made))
            del made, store, _
            assert [len(worker.boards) for worker in pair] == [0, 0]
            tasks = len(list(Path("/proc/self/task").iterdir()))
            held.append((threading.active_count(), descriptors(), tasks, memory_bytes() or 0))
    with capsys.disabled():
        print(f"\n{TIMES} pairs of groups of two workers: {1000 * (time.monotonic() - began) / TIMES:.1f} ms each")
    # Threads and descriptors of tests before this one may end meanwhile, so fewer are no fault; one that each pair left
    # would be hundreds more.
    assert held[-1][0] <= held[0][0]
    assert held[-1][1] <= held[0][1]
    assert held[-1][2] <= held[0][2] + 1  # a thread that has ended may be there for a moment
    grown = held[-1][3] - held[WARM_TIMES][3]
    assert grown <= (TIMES - WARM_TIMES) * 4096, f"{grown} bytes more than after {WARM_TIMES} generations"


# --- calling off ------------------------------------------------------------------------------------------------


def test_a_wait_is_bounded(workers: list[Worker]) -> None:
    open_board(workers)
    for worker in workers:
        store = worker.store(NUMBER, 3, seconds=0.01)
        refused(lambda store=store: store.get("x/1"), "groups of 1.0: x/1 has not come within 0.01 s")  # type: ignore[misc]


def waiting(pool: ThreadPoolExecutor, worker: Worker, workers: list[Worker]) -> tuple[Future[Any], BoardStore]:
    """A worker inside the constructor of a group, waiting for the others, and its store."""
    store = worker.store(NUMBER, 3)
    asked = threading.Event()
    ask = store._ask

    def note(question: Any) -> None:
        ask(question)
        asked.set()

    store._ask = note
    generation = Generation(plan_of(NUMBER, workers), 0, worker.rank, SocketCutter())
    making = pool.submit(generation.make_groups, store)
    assert asked.wait(PATIENCE_SECONDS)
    assert not making.done()
    return making, store


@pytest.mark.parametrize("rank", [0, 1], ids=["convener", "member"])
@pytest.mark.parametrize("by", ["another thread", "the convener"])
def test_who_waits_is_called_off(workers: list[Worker], pool: ThreadPoolExecutor, by: str, rank: int) -> None:
    open_board(workers)
    making, store = waiting(pool, workers[rank], workers)
    if by == "another thread":
        workers[rank].boards.close(store, "enough")
    else:
        if rank:
            await_message(workers[0], Collect)  # else the board is not known any more when the question comes
        workers[0].boards.drop(NUMBER, "enough")
    refused(making.result, "enough")
    assert by == "another thread" or [len(worker.boards) for worker in workers] == [0, 0, 0]
    refused(lambda: store.set("x", "y"), "groups of 1.0: ")
    refused(lambda: store.check(["x"]), "groups of 1.0: ")


def test_who_waits_learns_that_the_convener_is_gone(workers: list[Worker], pool: ThreadPoolExecutor) -> None:
    open_board(workers)
    making, _ = waiting(pool, workers[1], workers)
    workers[0].peer.server.close()
    refused(making.result, "groups of 1.0: lost w-0")
    refused(lambda: workers[1].store(NUMBER, 3).set("x", "y"), "lost w-0")


def test_a_board_that_is_not_there_and_one_of_others_are_refused_at_once(workers: list[Worker]) -> None:
    refused(lambda: workers[1].store(NUMBER, 3).get("x"), "w-0 has abandoned them: there is no board of 1.0 here")
    workers[0].boards.open(NUMBER, [workers[0].peer.uid, workers[1].peer.uid])
    refused(lambda: workers[2].store(NUMBER, 3).get("x"), "w-2 is no member of 1.0")
    with pytest.raises(ValueError, match=r"keeps no board of 2\.0"):
        workers[0].store(Number(2, 0), 3)
    with pytest.raises(ValueError, match=r"there is a board of 1\.0 already"):
        open_board(workers)


def test_values_and_orders_of_others_than_the_convener_do_not_count(workers: list[Worker]) -> None:
    open_board(workers)
    store = workers[1].store(NUMBER, 3)
    channel = workers[2].peer.reach(workers[1].peer)
    channel.send(Values(NUMBER, "x", 0, False, 0, (b"forged",)))
    channel.send(Abandon(NUMBER, "forged"))
    await_message(workers[1], Abandon)
    workers[0].store(NUMBER, 3).set("x", "true")
    assert store.get("x") == b"true"


def test_an_answer_that_nobody_asked_for_is_passed_over(workers: list[Worker]) -> None:
    open_board(workers)
    store = workers[1].store(NUMBER, 3)
    channel = workers[0].peer.opened.get(timeout=PATIENCE_SECONDS)
    while channel.peer.name != "w-1":
        channel = workers[0].peer.opened.get(timeout=PATIENCE_SECONDS)
    channel.send(Values(NUMBER, "x/", 2**50, False, 2**50 - 1, (b"forged",)))
    channel.send(Values(NUMBER, "x", 0, False, 0, (b"forged",)))
    await_message(workers[1], Values)
    await_message(workers[1], Values)
    workers[0].store(NUMBER, 3).set("x", "true")
    assert store.get("x") == b"true"


@pytest.mark.processes
def test_a_frozen_convener_keeps_nobody_inside_the_making_of_groups(pool: ThreadPoolExecutor) -> None:
    command = [sys.executable, str(Path(__file__).parents[1] / "unit/peering/keep_port.py"), "w", SECRET, "frozen"]
    worker = Worker(1)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as frozen:
        assert frozen.stdout
        port = int(frozen.stdout.readline())
        worker.convener = worker.peer.server.dial(f"127.0.0.1:{port}", "w", "uid of w", PATIENCE_SECONDS)
        assert worker.convener.wait_open(PATIENCE_SECONDS), worker.convener.why
        os.waitid(os.P_PID, frozen.pid, os.WSTOPPED | os.WNOWAIT)
        making, store = waiting(pool, worker, [worker] * 3)
        worker.boards.close(store, "asked to stop")
        refused(making.result, "asked to stop")
        worker.peer.server.close()
        frozen.send_signal(signal.SIGKILL)
