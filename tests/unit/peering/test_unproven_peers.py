"""Whoever has not proven to be a worker of the job is cut off alone; what a server holds is given back."""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from heterotrain.groups.peering import own_sockets
from heterotrain.groups.peering.channel import Channel, End
from heterotrain.groups.peering.frames import greeting
from heterotrain.groups.peering.message_documents import encode_message
from heterotrain.groups.peering.messages import Joins
from heterotrain.groups.sockets import SocketCutter
from unit.peering.meeting import PATIENCE_SECONDS, SECRET, Peer, descriptors, introduce, unproven

Start = Callable[..., Peer]
HOSTILE = {
    "a browser": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a huge length": struct.pack("!I", 2**32 - 1),
    "no hello": struct.pack("!I", 2) + b"{}",
    "deep": struct.pack("!I", 4096) + b"[" * 4096,
    "much": os.urandom(2**20),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_an_unproven_peer_is_cut_off_and_nobody_else_notices(start: Start, data: bytes) -> None:
    a, b = start("a"), start("b", Joins)
    channel = a.reach(b)
    with unproven(b) as made:
        try:
            made.sendall(data)
            assert made.recv(1) == b""
        except ConnectionError:
            pass
    channel.send(Joins(1))
    assert b.next_message() == Joins(1)
    assert b.opened.qsize() == 1


DISORDER = {
    "no kind": b"{}",
    "deep": b"[" * 10_000,
    "no text": b"\xff",
    "torn": encode_message(Joins(1))[:-1],
    "a hello again": encode_message(greeting("job", "x", "uid of x")),
}


@pytest.mark.parametrize("body", DISORDER.values(), ids=DISORDER)
def test_a_worker_that_writes_disorder_is_cut_off_alone(start: Start, body: bytes) -> None:
    b = start("b", Joins)
    with unproven(b) as made:
        frames = introduce(made)
        channel = b.opened.get(timeout=PATIENCE_SECONDS)
        made.sendall(b"".join(frames.seal(body)))
        assert b.end_of(channel).end is End.DISTRUSTED
        assert made.recv(2**16) == b""
    assert b.received.empty()


def test_a_peer_that_writes_byte_by_byte_does_not_hold_up_the_others(start: Start) -> None:
    a, b = start("a"), start("b", Joins)
    with unproven(b) as made:
        frames = introduce(made)
        slow = b"".join(frames.seal(encode_message(Joins(7))))
        channel = a.reach(b)
        for step, byte in enumerate(slow[:-1]):
            made.sendall(bytes([byte]))
            channel.send(Joins(step))
            assert b.next_message() == Joins(step)
        made.sendall(slow[-1:])
        assert b.next_message() == Joins(7)


def test_unproven_peers_that_say_nothing_give_way_to_others(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterotrain.groups.peering.server._MAX_OPENING", 3)
    monkeypatch.setattr("heterotrain.groups.peering.server._OPENING_SECONDS", 1e6)
    a, b = start("a"), start("b")
    silent = [unproven(b) for _ in range(5)]
    assert silent[0].recv(1) == b""
    assert silent[1].recv(1) == b""
    assert a.reach(b).is_open
    for each in silent:
        each.close()


def test_no_more_peers_are_held_than_are_allowed(start: Start) -> None:
    b = start("b", max_peers=2)
    made = [unproven(b) for _ in range(3)]
    for place, each in enumerate(made):
        introduce(each, uid=f"u{place}")
    assert made[2].recv(1) == b""
    assert b.opened.qsize() == 2
    for each in made:
        each.close()


def test_a_worker_without_descriptors_receives_peers_again_once_it_has_some(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("heterotrain.groups.peering.server._AGAIN_SECONDS", 0.01)
    a, b = start("a"), start("b")
    made = socket.socket()
    made.setblocking(False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (made.fileno() + 1, hard))
    try:
        made.connect_ex(("127.0.0.1", b.server.port))
        for _ in range(3):
            b.settle()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "no peer can connect for the moment" in caplog.text
    assert a.reach(b).is_open
    made.close()


def test_a_cut_of_the_groups_leaves_channels_alone(start: Start) -> None:
    a, cutter = start("a"), SocketCutter(hosts=["127.0.0.1"])
    with cutter.watch() as ports, socket.create_server(("127.0.0.1", 0)) as other:
        b = start("b", Joins)
        channel = a.reach(b)
        one = socket.create_connection(other.getsockname())
        two, _ = other.accept()
        with own_sockets.unchanged() as ours:
            assert len(ours) >= 8  # two listeners, two sides of a channel, and what wakes the threads
    assert a.server.port not in ports
    assert b.server.port not in ports
    cutter.claim([one.getpeername()[1], b.server.port])
    cutter.cut()
    assert (one.recv(1), two.recv(1)) == (b"", b"")
    channel.send(Joins(1))
    assert b.next_message() == Joins(1)
    one.close()
    two.close()


def test_channels_leave_neither_threads_nor_descriptors() -> None:
    before = descriptors()
    for _ in range(20):
        a, b = Peer("a"), Peer("b")
        a.server.start()
        b.server.start()
        a.reach(b)
        a.server.close()
        b.server.close()
        with own_sockets.unchanged() as ours:
            assert not ours
    assert descriptors() <= before
    assert not [each for each in threading.enumerate() if each.name == "heterotrain-peers"]


def test_a_server_that_never_started_can_be_closed_and_its_port_taken() -> None:
    a = Peer("a")
    with pytest.raises(OSError, match=f"port {a.server.port} for the other workers cannot be had"):
        Peer("b", port=a.server.port)
    a.server.close()
    b = Peer("b", port=a.server.port)
    b.server.close()


def worker(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).parent / "keep_port.py"), "w", SECRET, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def dial(peer: Peer, port: int) -> Channel:
    return peer.server.dial(f"127.0.0.1:{port}", "w", "uid of w", PATIENCE_SECONDS)


def test_a_killed_worker_whose_child_lives_is_lost_at_once_and_its_port_refuses(start: Start) -> None:
    a = start("a")
    with worker() as killed:
        assert killed.stdout
        port = int(killed.stdout.readline())
        channel = dial(a, port)
        assert channel.wait_open(PATIENCE_SECONDS), channel.why
        child = int(killed.stdout.readline())
        killed.kill()
        assert a.end_of(channel).end is End.CLOSED
        again = dial(a, port)
        assert not again.wait_open(PATIENCE_SECONDS)
        assert again.end is End.REFUSED
        os.kill(child, signal.SIGKILL)  # fails if it is gone already


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12, in a process with threads
def test_a_child_that_ends_takes_nothing_from_its_parent(start: Start) -> None:
    a, b = start("a"), start("b", Joins)
    channel = a.reach(b)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    channel.send(Joins(1))
    assert b.next_message() == Joins(1)
    assert a.reach(b).is_open


def test_a_frozen_worker_keeps_nobody_from_giving_up(start: Start) -> None:
    a = start("a")
    with worker("frozen") as frozen:
        assert frozen.stdout
        port = int(frozen.stdout.readline())
        channel = dial(a, port)
        assert channel.wait_open(PATIENCE_SECONDS), channel.why
        os.waitid(os.P_PID, frozen.pid, os.WSTOPPED | os.WNOWAIT)
        assert channel.send(Joins(1))
        channel.close("given up")
        assert a.end_of(channel).end is End.HERE
        silent = a.server.dial(f"127.0.0.1:{port}", "w", "uid of w", seconds=0.01)
        assert a.end_of(silent).end is End.SILENT
        frozen.kill()


def test_the_end_of_a_server_does_not_wait_for_peers(start: Start) -> None:
    a, b = start("a"), Peer("b")
    b.server.start()
    channel = a.reach(b)
    closing = threading.Thread(target=b.server.close)
    closing.start()
    closing.join(PATIENCE_SECONDS)
    assert not closing.is_alive()
    assert a.end_of(channel).end is End.CLOSED


def test_a_server_that_is_closed_dials_nobody(start: Start) -> None:
    a, b = Peer("a"), start("b")
    a.server.start()
    a.server.close()
    a.server.close()
    assert a.dial(b).end is End.HERE
