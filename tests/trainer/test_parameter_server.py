"""A parameter server in the test's own process, with real sockets: what workers may send it, and what it refuses."""

from __future__ import annotations

import contextlib
import json
import math
import queue
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import nn

from heterotrain.contract import ASP, Member, Plan, Server, TrainingConfig
from heterotrain.data.order import Order
from heterotrain.groups.peering.channel import Channel
from heterotrain.groups.peering.frames import FrameError, Frames, greeting
from heterotrain.groups.peering.message_documents import encode_message
from heterotrain.groups.peering.messages import Enter, Grant, Left, TurnedAway, Update, Vouches
from heterotrain.groups.peering.server import PeerServer
from heterotrain.job.planfile import PlanFile
from heterotrain.job.plans import Plans
from heterotrain.job.worker import StopRequest, Worker
from heterotrain.reporting.metrics import Series, WorkerMetrics
from heterotrain.training.context import Context
from heterotrain.training.layout import Layout, memory_of
from heterotrain.training.parts import put_together
from heterotrain.training.server_line import ServerLine
from heterotrain.training.server_port import beat
from heterotrain.training.serving import Serving
from heterotrain.training.subject import Subject
from heterotrain.training.traits import traits_of
from trainer.gang import SECRET, free_port

PATIENCE_SECONDS = 60.0
SILENCE_SECONDS = 1.0
LENGTH = 1 << 20


class ServerHere:
    """A server whose updates are applied in a thread; plans name the workers `a` and `b`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        config = TrainingConfig(
            epochs=1,
            mode=ASP,
            heartbeat_timeout_seconds=SILENCE_SECONDS,
            progress_timeout_seconds=1,
            startup_deadline_seconds=0,  # a worker begins without the other one
        )
        self.address = f"127.0.0.1:{free_port()}"
        members = tuple(Member(name, f"uid of {name}", "127.0.0.1:1", "cpu", 8) for name in "ab")
        self.plan = Plan(1, 1, "step", members, server=Server("server", "uid of server", self.address))
        (folder / "plan.json").write_text(self.plan.to_json())
        worker = Worker(
            "job",
            "server",
            "uid of server",
            "",
            folder,
            config,
            None,
            0,
            None,
            folder / "end",
            secret=SECRET,
            serves=True,
        )
        self.metrics = WorkerMetrics("job", "server", "", lambda: False)
        self._plans = plans = Plans(None, PlanFile(folder))
        self.stop = StopRequest()
        context = Context(config, worker, plans, self.metrics, Series(None), self.stop)
        torch.manual_seed(0)
        self.model = nn.Linear(1024, 2048)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        subject = Subject(self.model, optimizer, torch.device("cpu"), Order(LENGTH, 0))
        parts = put_together(context, subject)
        assert isinstance(parts.step, Serving) and parts.join is not None
        self.step, self.error = parts.step, ""
        self.traits = json.dumps(traits_of(subject, parts.state, parts.evaluation))
        self._state = parts.state
        self._ends = threading.Event()
        parts.join()
        self.size = self.step._applying.layout.size
        assert self.step._port is not None
        self.port = self.step._port
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def applied(self) -> int:
        """Updates so far."""
        return self._state.position.step

    def _serve(self) -> None:
        try:
            while not self._ends.is_set():
                self._plans.take_due(epoch_begins=True)
                self.step.begin()
                self.step.compute_nothing()
                self.step.commit()
        except RuntimeError as error:
            self.error = str(error)

    def refused(self, reason: str, kind: str = "refused") -> float:
        """How often it has refused something for this reason, or discarded it."""
        return sum(
            sample.value
            for family in self.metrics.collect()
            for sample in family.samples
            if sample.name == f"heterotrain_server_{kind}_total" and sample.labels["reason"] == reason
        )

    def await_refused(self, reason: str, kind: str = "refused") -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.refused(reason, kind):
            assert time.monotonic() < deadline, f"nothing was {kind} as {reason}"
            time.sleep(0.02)

    def close(self) -> None:
        self._ends.set()
        self._thread.join()
        self.step.close()
        self.port.close()

    def finish(self) -> threading.Thread:
        """The job is over; the thread in which the server says so."""
        self._ends.set()
        self._thread.join()
        self.step.job_is_over()
        ends = threading.Thread(target=self.step.close)
        ends.start()
        return ends


class WorkerHere:
    """A worker by hand, which says that it lives only if it `beats`."""

    def __init__(self, server: ServerHere, name: str, *, beats: bool = True) -> None:
        self.server = server
        self.peers = PeerServer("job", name, f"uid of {name}", secret=SECRET, host="127.0.0.1")
        self.room = torch.zeros(server.size, dtype=torch.uint8)
        self.replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.peers.follow_with_bulk(Grant, lambda _channel, _grant: [memory_of(self.room)])
        for kind in (Grant, TurnedAway, Left):
            self.peers.handle(kind, lambda _channel, message: self.replies.put(message))
        self.peers.on_ended(self.replies.put)
        self.peers.start()
        self.channel = self.peers.dial(server.address, "server", "uid of server", PATIENCE_SECONDS)
        assert self.channel.wait_open(PATIENCE_SECONDS)
        if beats:
            self.peers.call_soon(lambda: beat(self.peers, lambda: self.channel, SILENCE_SECONDS))

    def next(self) -> Any:
        """What the server says, or the channel that has ended."""
        return self.replies.get(timeout=PATIENCE_SECONDS)

    def enter(self, traits: str = "") -> Grant:
        self.channel.send(Enter(traits or self.server.traits))
        grant = self.next()
        assert isinstance(grant, Grant), grant
        return grant

    def update(self, grant: Grant, value: float = 0.0, **other: Any) -> None:
        """Send a gradient whose numbers are all the same."""
        _, start, stop = grant.share
        self.room.view(torch.float32)[:] = value
        message = Update(grant.incarnation, grant.lease, grant.position[0], stop - start, 0.1, 1.0, stop - start)
        self.channel.send_bulk(replace(message, **other), [memory_of(self.room)])

    def trains(self) -> None:
        """Two updates of it are applied, whatever others do."""
        grant = self.enter()
        for _ in range(2):
            self.update(grant)
            grant = self.next()
            assert isinstance(grant, Grant) and grant.applied


Start = Callable[..., WorkerHere]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerHere]:
    made = ServerHere(tmp_path)
    yield made
    made.close()


@pytest.fixture
def start(server: ServerHere) -> Iterator[Start]:
    made = []

    def start(name: str, **options: bool) -> WorkerHere:
        made.append(WorkerHere(server, name, **options))
        return made[-1]

    yield start
    for each in made:
        each.peers.close()


def connect(server: ServerHere) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2])), timeout=PATIENCE_SECONDS)


def cut_off() -> NoReturn:
    raise ConnectionError("cut off")


def introduce(made: socket.socket, secret: str = SECRET, name: str = "b") -> Frames:
    """Do by hand what a worker does until its channel is open."""
    frames = Frames(greeting("job", name, f"uid of {name}"), secret, dials=True)
    made.sendall(frames.hello())
    while not frames.is_open:
        list(frames.feed(made.recv(4096) or cut_off()))
    made.sendall(b"".join(frames.seal(b"")))
    return frames


def test_a_gradient_is_applied_to_the_model_and_the_parameters_come_back(server: ServerHere, start: Start) -> None:
    a = start("a")
    before = server.model.weight.detach().clone()
    weight = a.room[: before.nbytes].view(torch.float32).view(before.shape)
    grant = a.enter()
    assert torch.equal(weight, before)
    a.update(grant, 0.25)
    assert a.next().applied
    assert torch.equal(weight, before - 0.25)
    assert torch.equal(server.model.weight, before - 0.25)


def line_to(named: Server | None, gives_up: Callable[[], bool] = bool) -> tuple[ServerLine, Layout]:
    """What a worker has of a connection to a server."""
    layout = Layout(model := nn.Linear(1024, 2048), list(model.parameters()))
    line = ServerLine(
        PeerServer("job", "a", "uid of a", secret=SECRET, host="127.0.0.1"),
        layout,
        find=lambda: named,
        gives_up=gives_up,
        silence_seconds=SILENCE_SECONDS,
        patience_seconds=PATIENCE_SECONDS,
    )
    return line, layout


def test_bytes_go_from_where_tensors_are_to_where_they_belong_however_many_there_are() -> None:
    def model() -> nn.Module:
        lie_otherwise = nn.Parameter(torch.randn(40, 50).t())
        return nn.ParameterList([lie_otherwise, *(nn.Parameter(torch.randn(each % 4)) for each in range(1500))])

    there, here = model(), model()
    sends, takes = (Layout(each, list(each.parameters())) for each in (there, here))
    room = takes.room()
    arrived = threading.Event()
    server, worker = (PeerServer("job", name, name, secret=SECRET, host="127.0.0.1") for name in ("server", "a"))
    server.follow_with_bulk(Update, lambda _channel, _message: takes.incoming(room, whole=False))
    server.handle(Update, lambda _channel, _message: arrived.set())
    server.start()
    worker.start()
    try:
        channel = worker.dial(f"127.0.0.1:{server.port}", "server", "server", PATIENCE_SECONDS)
        assert channel.wait_open(PATIENCE_SECONDS)
        channel.send_bulk(Update("x", 1, 0, 8, 0.0, 1.0, 8.0), sends.outgoing(sends.room(), sends.trained))
        assert arrived.wait(PATIENCE_SECONDS)
    finally:
        worker.close()
        server.close()
    takes.settle(room, whole=False)
    assert all(torch.equal(one, other) for one, other in zip(there.parameters(), here.parameters(), strict=True))


def test_a_worker_is_ready_for_an_answer_that_comes_at_once(
    server: ServerHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, layout = line_to(server.plan.server)
    send = Channel.send

    def send_and_be_held_up(channel: Channel, message: Any) -> bool:
        sent = send(channel, message)
        while isinstance(message, Enter) and line._replies.empty():
            time.sleep(0.01)
        return sent

    monkeypatch.setattr(Channel, "send", send_and_be_held_up)
    try:
        grant = line.enter(Enter(server.traits))
        assert isinstance(grant, Grant)
        line.take(grant)
        assert torch.equal(layout.trained[0], server.model.weight)
    finally:
        line.close()


def test_who_returns_as_the_job_ends_gets_its_model_and_who_comes_later_learns_that_it_is_over(
    server: ServerHere, start: Start
) -> None:
    a, b, c = start("a"), start("b"), start("c")
    grant = b.enter()
    c.channel.send(Enter(server.traits))  # no plan names it yet
    ends = server.finish()
    assert a.enter().share == ()
    a.channel.close()
    ends.join()
    b.update(grant)
    assert b.next() == Left("uid of b", "the job is over")
    assert c.next() == Left("uid of c", "the job is over")
    d = start("a")
    d.channel.send(Enter(server.traits))
    assert d.next() == Left("uid of a", "the job is over")


def test_a_server_that_is_asked_to_stop_as_the_job_ends_does_not_wait_for_all(server: ServerHere, start: Start) -> None:
    start("a").enter()
    server.step._context = replace(
        server.step._context, config=replace(server.step._context.config, progress_timeout_seconds=1e6)
    )
    ends = server.finish()
    server.stop._at = -math.inf
    ends.join(PATIENCE_SECONDS)
    assert not ends.is_alive()


def wrong_secret(_server: ServerHere, made: socket.socket) -> None:
    frames = Frames(greeting("job", "b", "uid of b"), "another secret " * 3, dials=True)
    made.sendall(frames.hello())
    with pytest.raises(FrameError):
        while True:
            list(frames.feed(made.recv(4096)))
    made.sendall(b"".join(frames.seal(b"")))


def a_browser(_server: ServerHere, made: socket.socket) -> None:
    made.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")


def too_long(_server: ServerHere, made: socket.socket) -> None:
    introduce(made)
    made.sendall(struct.pack("!I", 2**32 - 1))


def endless(server: ServerHere, made: socket.socket) -> None:
    frames = introduce(made)
    made.sendall(b"".join(frames.seal(encode_message(Enter(server.traits)))))
    made.sendall(b"\x00" * 4096 * 64)


def replayed(server: ServerHere, made: socket.socket) -> None:
    frames = introduce(made)
    frame = b"".join(frames.seal(encode_message(Enter(server.traits))))
    made.sendall(frame + frame)


def before_entering(server: ServerHere, made: socket.socket) -> None:
    frames = introduce(made)
    made.sendall(b"".join(frames.seal(encode_message(Update("", 1, 0, 8, 0.1, 1.0, 8.0)))) + bytes(server.size))


def byte_by_byte(server: ServerHere, made: socket.socket) -> None:
    for byte in b"".join(introduce(made).seal(encode_message(Enter(server.traits)))):
        made.sendall(bytes([byte]))
        time.sleep(SILENCE_SECONDS / 10)


HOSTILE: dict[str, tuple[Callable[[ServerHere, socket.socket], None], str]] = {
    "wrong secret": (wrong_secret, "unproven"),
    "a browser": (a_browser, "unproven"),
    "too long": (too_long, "malformed"),
    "endless": (endless, "malformed"),
    "replayed": (replayed, "malformed"),
    "before entering": (before_entering, "malformed"),
    "byte by byte": (byte_by_byte, "silent"),
}


@pytest.mark.parametrize(("attack", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_who_is_no_worker_is_cut_off_alone(
    server: ServerHere, start: Start, attack: Callable[[ServerHere, socket.socket], None], reason: str
) -> None:
    a = start("a")
    grant = a.enter()
    with connect(server) as made:
        with contextlib.suppress(ConnectionError):
            attack(server, made)
        server.await_refused(reason)
    a.update(grant)
    assert a.next().applied


def test_another_script_is_turned_away_by_the_name_of_what_differs(server: ServerHere, start: Start) -> None:
    a, b = start("a"), start("b")
    b.channel.send(Enter(json.dumps(json.loads(server.traits) | {"model": "2 tensors, checksum 00000000"})))
    turned = b.next()
    assert isinstance(turned, TurnedAway) and not turned.again
    assert "model: 2 tensors, checksum 00000000 there" in turned.why
    assert server.refused("different") == 1
    a.trains()


@pytest.mark.parametrize("change", [{"lease": 999}, {"incarnation": "earlier"}, {"version": 7}, {"lease": 1}])
def test_an_update_for_what_a_worker_does_not_hold_is_not_applied(
    server: ServerHere, start: Start, change: dict[str, Any]
) -> None:
    a, b = start("a"), start("b")
    first = a.enter()
    a.update(first)
    assert a.next().applied and first.lease == 1
    b.update(b.enter(), 0.5, **change)
    turned = b.next()
    assert isinstance(turned, TurnedAway) and turned.again
    assert server.refused("lease") == 1 and server.applied == 1
    b.trains()


def test_a_gradient_that_is_no_number_is_dropped_and_a_training_that_has_diverged_ends(
    server: ServerHere, start: Start
) -> None:
    a = start("a")
    grant = a.enter()
    a.update(grant, math.nan)
    again = a.next()
    assert isinstance(again, Grant) and not again.applied
    assert again.share == grant.share, "its samples go out again"
    assert server.refused("nonfinite", "discarded") == 1 and server.applied == 0
    assert torch.isfinite(server.model.weight).all()
    for _ in range(3):
        a.update(again, math.inf)
        again = a.next()
    a.update(again, math.inf)
    server._thread.join(PATIENCE_SECONDS)
    assert "5 updates in a row were no finite numbers" in server.error


@pytest.mark.parametrize("sends", [0.0, 0.5], ids=["silent", "truncated"])
def test_samples_of_a_worker_that_falls_silent_go_out_again(server: ServerHere, start: Start, sends: float) -> None:
    b = start("b", beats=False)
    held = b.enter()
    half = memory_of(b.room)[: int(server.size * sends)]
    if sends:
        b.channel.send_bulk(Update(held.incarnation, held.lease, 0, 8, 0.1, 1.0, 8.0), [half])
    assert isinstance(b.next(), Channel), "it is cut off"
    assert server.refused("silent") == 1
    a = start("a")
    assert a.enter().share == held.share
    assert server.applied == 0


@pytest.mark.parametrize("reads", [0, 16])
def test_a_worker_that_reads_next_to_nothing_is_cut_off(server: ServerHere, start: Start, reads: int) -> None:
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.connect(("127.0.0.1", int(server.address.rpartition(":")[2])))
        frames = introduce(made)
        made.sendall(b"".join(frames.seal(encode_message(Enter(server.traits)))))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not server.refused("unread"):
            made.sendall(b"".join(frames.seal(encode_message(Vouches()))))
            made.recv(reads)
            assert time.monotonic() < deadline
            time.sleep(0.1)
    start("a").trains()


def test_a_worker_hangs_up_on_a_server_whose_model_comes_byte_by_byte(server: ServerHere) -> None:
    assert server.plan.server is not None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        named = replace(server.plan.server, address=f"127.0.0.1:{listener.getsockname()[1]}")
        line, layout = line_to(named)
        replies: list[Any] = []
        enters = threading.Thread(target=lambda: replies.append(line.enter(Enter(server.traits))))
        enters.start()
        listener.settimeout(0.1)
        while enters.is_alive():  # on a busy machine it dials more than once
            with contextlib.suppress(ConnectionError, TimeoutError), listener.accept()[0] as made:
                made.settimeout(PATIENCE_SECONDS)
                frames = Frames(greeting("job", named.name, named.uid), SECRET, dials=False)
                list(frames.feed(made.recv(4096)))
                made.sendall(frames.hello() + b"".join(frames.seal(b"")))
                while not frames.is_open:
                    list(frames.feed(made.recv(4096) or cut_off()))
                grant = Grant("x", 1, (0, 0, 8), (), (0, 0, 0), True, False, "", "{}")
                made.sendall(b"".join(frames.seal(encode_message(grant))))
                for byte in bytes(layout.size):
                    made.sendall(bytes([byte]))
                    time.sleep(SILENCE_SECONDS / 10)
        line.close()
    assert replies == [None]


def test_a_worker_that_waits_no_longer_has_ended_the_connection_that_uses_its_memory(server: ServerHere) -> None:
    stops = threading.Event()
    line, layout = line_to(server.plan.server, stops.is_set)
    try:
        grant = line.enter(Enter(server.traits))
        assert isinstance(grant, Grant)
        server._ends.set()
        server._thread.join()  # nobody answers any more
        stops.set()
        assert line.push(Update(grant.incarnation, grant.lease, 0, 8, 0.0, 1.0, 8.0), layout.trained) is None
        assert line._channel is not None and line._channel.end is not None
    finally:
        line.close()


def test_a_thousand_connections_hold_nobody_up(server: ServerHere, start: Start) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(connect(server))
        start("a").trains()
        server.await_refused("crowded")


def test_a_plan_without_a_worker_lets_it_go(server: ServerHere, start: Start) -> None:
    a, b = start("a"), start("b")
    grant, held = a.enter(), b.enter()
    members = tuple(each for each in server.plan.members if each.name == "a")
    (server.folder / "next").write_text(replace(server.plan, version=2, members=members).to_json())
    (server.folder / "next").replace(server.folder / "plan.json")
    assert isinstance(b.next(), Left)
    a.update(grant)
    later = a.next()
    assert '"version": 2' in later.plan
    a.update(later)
    assert a.next().share == held.share, "what the other held goes out again"
