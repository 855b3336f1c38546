"""Whoever has not proven to be a worker of the job is cut off alone, and holds nobody up."""

from __future__ import annotations

import os
import resource
import socket
import struct
from collections.abc import Callable

import pytest

from heterotrain.groups.peering.channel import End
from heterotrain.groups.peering.frames import greeting
from heterotrain.groups.peering.message_documents import encode_message
from heterotrain.groups.peering.messages import Joins
from unit.peering.meeting import PATIENCE_SECONDS, Peer, introduce, unproven

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
