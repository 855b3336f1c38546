"""Workers reach one another, and learn at once when one dies."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

import pytest

from heterotrain.groups.convening.roster import Number
from heterotrain.groups.peering.channel import MAX_UNSENT_BYTES, Channel, End
from heterotrain.groups.peering.frames import Frames, greeting
from heterotrain.groups.peering.message_documents import encode_message
from heterotrain.groups.peering.messages import Joins, Left, Put
from unit.peering.meeting import PATIENCE_SECONDS, SECRET, Peer, introduce, unproven

Start = Callable[..., Peer]


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


def test_a_name_with_several_addresses_is_found_at_the_one_that_listens(start: Start) -> None:
    a, b = start("a"), start("b")
    channel = a.server.dial(f"localhost:{b.server.port}", b.name, b.uid, PATIENCE_SECONDS)
    assert channel.wait_open(PATIENCE_SECONDS), channel.why
