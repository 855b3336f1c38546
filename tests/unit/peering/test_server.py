"""Workers reach one another, learn at once when one dies, and lose nothing to whoever else reaches their ports."""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heterotrain.groups.convening.roster import Number
from heterotrain.groups.peering import own_sockets
from heterotrain.groups.peering.channel import MAX_UNSENT_BYTES, Channel, End
from heterotrain.groups.peering.frames import Frames, greeting
from heterotrain.groups.peering.message_documents import encode_message
from heterotrain.groups.peering.messages import Joins, Left, Put
from heterotrain.groups.sockets import SocketCutter
from unit.peering.meeting import PATIENCE_SECONDS, SECRET, Peer, descriptors

Start = Callable[..., Peer]


@pytest.fixture
def start() -> Iterator[Start]:
    """Make a peer that serves until the end of the test."""
    peers = []

    def made(*arguments: Any, **more: Any) -> Peer:
        peers.append(Peer(*arguments, **more))
        peers[-1].server.start()
        return peers[-1]

    yield made
    for each in peers:
        each.server.close()


@pytest.mark.parametrize("secret", [SECRET, None], ids=["secret", "none"])
def test_messages_travel_both_ways_in_their_order(start: Start, secret: str | None) -> None:
    a, b = start("a", Joins, secret=secret), start("b", Joins, secret=secret)
    there = a.reach(b)
    back = b.opened.get(timeout=PATIENCE_SECONDS)
    assert (there.peer.name, back.peer.uid) == ("b", a.uid)
    for step in range(50):
        assert there.send(Joins(step))
        assert back.send(Joins(step))
    assert [b.next_message() for _ in range(50)] == [Joins(step) for step in range(50)]
    assert [a.next_message() for _ in range(50)] == [Joins(step) for step in range(50)]


def test_what_is_sent_before_the_channel_is_open_arrives(start: Start) -> None:
    a, b = start("a"), start("b", Joins)
    assert a.dial(b).send(Joins(1))
    assert b.next_message() == Joins(1)


def test_a_long_message_arrives_whole(start: Start) -> None:
    a, b = start("a"), start("b", Put)
    message = Put(Number(1, 0), "key", os.urandom(2**20))
    a.reach(b).send(message)
    assert b.next_message() == message


@pytest.mark.parametrize("secret", ["07he2" * 8, None], ids=["another secret", "none"])
def test_a_peer_without_the_secret_is_not_met(start: Start, secret: str | None) -> None:
    a, b = start("a"), start("b", secret=secret)
    for caller, called in ((a, b), (b, a)):
        channel = caller.dial(called)
        assert not channel.wait_open(PATIENCE_SECONDS)
        assert caller.end_of(channel).end in (End.DISTRUSTED, End.CLOSED)
        assert caller.opened.empty()
        assert called.opened.empty()


def test_a_worker_of_another_job_and_another_worker_at_an_address_are_not_met(start: Start) -> None:
    a, other, b = start("a"), start("b", job="other"), start("b")
    assert a.end_of(a.dial(other, seconds=0.1)).end in (End.DISTRUSTED, End.CLOSED)
    channel = a.server.dial(b.address, "b", "uid of an earlier b", PATIENCE_SECONDS)
    assert a.end_of(channel).end is End.DISTRUSTED
    assert channel.why == "b: b (uid of b) is where b (uid of an earlier b) was expected"


def test_a_port_at_which_nobody_listens_refuses(start: Start) -> None:
    a, b = start("a"), Peer("b")
    b.server.close()
    channel = a.dial(b)
    assert not channel.wait_open(PATIENCE_SECONDS)
    assert (channel.end, channel.why) == (End.REFUSED, "b refuses connections: its process is gone")
    assert not channel.send(Joins(1))


def test_a_port_that_accepts_for_the_last_time_refuses_in_the_end(start: Start) -> None:
    a = start("a")
    with socket.create_server(("127.0.0.1", 0)) as dying:
        channel = a.server.dial(f"127.0.0.1:{dying.getsockname()[1]}", "b", "u", PATIENCE_SECONDS)
        for _ in range(2):
            made, _ = dying.accept()
            made.close()
        made, _ = dying.accept()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it is reset, as by a death
        made.close()
    assert a.end_of(channel).end is End.REFUSED


def test_a_socket_that_is_connected_to_itself_is_a_refusal() -> None:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.connect(made.getsockname())
        channel = Channel(Frames(greeting("job", "a", "u"), None, dials=True), "b", lambda _: None, dials=True)
        channel.attach(made)
        with pytest.raises(ConnectionRefusedError, match="connected to itself"):
            channel.write()


def test_a_name_with_several_addresses_is_found_at_the_one_that_listens(start: Start) -> None:
    a, b = start("a"), start("b")
    channel = a.server.dial(f"localhost:{b.server.port}", b.name, b.uid, PATIENCE_SECONDS)
    assert channel.wait_open(PATIENCE_SECONDS), channel.why


@pytest.mark.parametrize(
    "address", ["nowhere.invalid:1", "127.0.0.1", "127.0.0.1:70000", ":1", "", "[::1:x", "\ud800:1"]
)
def test_an_address_that_is_none_proves_nothing(start: Start, address: str) -> None:
    a = start("a")
    channel = a.server.dial(address, "b", "u", PATIENCE_SECONDS)
    assert not channel.wait_open(PATIENCE_SECONDS)
    assert channel.end is End.SILENT


def test_a_peer_that_does_not_answer_is_silent_and_can_be_given_up_at_once(start: Start) -> None:
    a = start("a")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        channel = a.server.dial(address, "b", "u", seconds=0.01)
        assert a.end_of(channel).end is End.SILENT
        given_up = a.server.dial(address, "b", "u", seconds=1e6)
        given_up.close("enough")
        assert a.end_of(given_up).end is End.HERE
        assert given_up.why == "enough"


def test_a_worker_that_connects_again_replaces_its_earlier_connection(start: Start) -> None:
    a, b = start("a"), start("b")
    first = a.reach(b)
    earlier = b.opened.get(timeout=PATIENCE_SECONDS)
    second = a.reach(b)
    assert b.end_of(earlier).why == "a has connected again"
    assert a.end_of(first).end is End.CLOSED
    assert second.is_open


def test_last_words_arrive_before_the_end(start: Start) -> None:
    a, b = start("a", Joins), start("b", Put, Left)
    channel = a.reach(b)
    back = b.opened.get(timeout=PATIENCE_SECONDS)
    big = Put(Number(1, 0), "key", bytes(2**20))
    for _ in range(3):
        channel.send(big)
        back.send(Joins(1))  # what the leaver does not read must not cut off what it has written
    channel.send(Left("u", "1"))
    a.server.close(PATIENCE_SECONDS)
    assert [b.next_message() for _ in range(4)] == [big, big, big, Left("u", "1")]
    assert b.end_of(back).end is End.CLOSED
    assert channel.end is End.HERE


def test_a_channel_can_be_finished_before_it_is_open(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterotrain.groups.peering.server._FINISH_SECONDS", 1e6)  # both sides close of themselves
    a, b = start("a"), start("b", Joins)
    channel = a.dial(b)
    channel.send(Joins(1))
    channel.finish()
    assert not channel.send(Joins(2))
    assert b.next_message() == Joins(1)
    assert a.end_of(channel).end is End.HERE


def test_a_peer_that_does_not_read_is_given_up_once_too_much_waits_for_it(start: Start) -> None:
    a = start("a")
    with unproven(a) as made:
        introduce(made)
        channel = a.opened.get(timeout=PATIENCE_SECONDS)
        document = encode_message(Put(Number(1, 0), "key", bytes(2**20)))
        for _ in range(2 * MAX_UNSENT_BYTES // len(document)):
            channel.send_document(document)
        assert a.end_of(channel).why == "it does not read what is written to it"


def test_a_fault_in_a_handler_leaves_the_channel_and_the_others_alone(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = start("a"), Peer("b", Joins)

    def fail(channel: Channel, message: Left) -> None:
        raise KeyError(message.why)

    b.server.handle(Left, fail)
    b.server.start()
    channel = a.reach(b)
    channel.send(Left("u", "odd"))
    channel.send(Joins(1))
    assert b.next_message() == Joins(1)
    assert "a call in the thread of the peer server failed" in caplog.text
    b.server.close()


# --- peers that have not proven who they are ----------------------------------------------------------------------


def unproven(peer: Peer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", peer.server.port), timeout=PATIENCE_SECONDS)


def introduce(made: socket.socket, secret: str | None = SECRET, **other: Any) -> Frames:
    """Do by hand what a peer does until its channel is open."""
    frames = Frames(greeting("job", "x", other.get("uid", "uid of x")), secret, dials=True)
    made.sendall(frames.hello())
    while not frames.is_open:
        list(frames.feed(made.recv(4096)))
    made.sendall(b"".join(frames.seal(b"")))
    return frames


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


def test_a_message_of_a_newer_peer_is_passed_over(start: Start) -> None:
    b = start("b", Joins)
    with unproven(b) as made:
        frames = introduce(made)
        for body in (b'{"type": "Praise"}', b'{"type": "Joins", "generation": 1, "mood": 3}'):
            made.sendall(b"".join(frames.seal(body)))
        assert b.next_message() == Joins(1)


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
    monkeypatch.setattr("heterotrain.groups.peering.listener._AGAIN_SECONDS", 0.01)
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


# --- sockets ----------------------------------------------------------------------------------------------------


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


def test_a_server_that_is_closed_dials_nobody(start: Start) -> None:
    a, b = Peer("a"), start("b")
    a.server.start()
    a.server.close()
    a.server.close()
    assert a.dial(b).end is End.HERE


def test_the_end_of_a_server_does_not_wait_for_peers(start: Start) -> None:
    a, b = start("a"), Peer("b")
    b.server.start()
    channel = a.reach(b)
    closing = threading.Thread(target=b.server.close)
    closing.start()
    closing.join(PATIENCE_SECONDS)
    assert not closing.is_alive()
    assert a.end_of(channel).end is End.CLOSED
