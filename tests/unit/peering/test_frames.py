"""A frame counts once, in its place, on its connection, and only from one who knows the job's secret."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain.groups.peering.frames import FrameError, Frames, greeting
from heterotrain.groups.peering.message_documents import encode_message
from heterotrain.groups.peering.messages import Hello, Joins
from heterotrain.peers import MAX_BYTES

SECRET, OTHER = "5ec2e7" * 8, "07he2" * 8
BODY = encode_message(Joins(1))


def framed(body: bytes) -> bytes:
    return struct.pack("!I", len(body)) + body


def sides(dialler: str | None = SECRET, listener: str | None = SECRET) -> tuple[Frames, Frames]:
    """Of w-1, which dials, and w-0, which listens."""
    return (
        Frames(greeting("job", "w-1", "u1"), dialler, dials=True, expected=("w-0", "u0")),
        Frames(greeting("job", "w-0", "u0"), listener, dials=False),
    )


def joined(secret: str | None = SECRET) -> tuple[Frames, Frames]:
    """Two sides that have met and proven themselves."""
    dialler, listener = sides(secret, secret)
    assert list(listener.feed(dialler.hello())) == [None]
    assert list(dialler.feed(listener.hello() + sealed(listener, b""))) == [None, None]
    assert list(listener.feed(sealed(dialler, b""))) == [None]
    assert dialler.is_open
    assert listener.is_open
    return dialler, listener


def sealed(side: Frames, body: bytes) -> bytes:
    return b"".join(side.seal(body))


@pytest.mark.parametrize("secret", [SECRET, None], ids=["secret", "none"])
def test_two_sides_learn_who_the_other_is_and_read_what_it_writes(secret: str | None) -> None:
    dialler, listener = joined(secret)
    assert (dialler.peer and dialler.peer.name, listener.peer and listener.peer.uid) == ("w-0", "u1")
    for body in (b"a", b"b" * 70_000, b""):
        assert list(listener.feed(sealed(dialler, body))) == [body]
        assert list(dialler.feed(sealed(listener, body))) == [body]


@given(st.lists(st.binary(max_size=300), max_size=6), st.lists(st.integers(1, 40), min_size=1))
def test_it_does_not_matter_in_what_pieces_frames_arrive(bodies: list[bytes], pieces: list[int]) -> None:
    dialler, listener = joined()
    stream = b"".join(sealed(dialler, body) for body in bodies)
    found: list[bytes | None] = []
    at = turn = 0
    while at < len(stream):
        end = at + pieces[turn % len(pieces)]
        found += listener.feed(stream[at:end])
        at, turn = end, turn + 1
    assert found == bodies
    assert listener.unread_bytes == 0


@pytest.mark.parametrize(
    ("dialler", "listener"), [(OTHER, SECRET), (None, SECRET), (SECRET, None)], ids=["another", "none", "older peer"]
)
def test_a_peer_without_the_secret_opens_nothing_on_either_side(dialler: str | None, listener: str | None) -> None:
    caller, called = sides(dialler, listener)
    list(called.feed(caller.hello()))
    with pytest.raises(FrameError, match="secret"):
        list(caller.feed(called.hello() + sealed(called, b"")))
    with pytest.raises(FrameError, match="secret"):
        list(called.feed(sealed(caller, b"")))
    assert not (caller.is_open or called.is_open)


def test_a_guessable_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="a secret of 3 characters is none"):
        sides("abc")


def test_a_frame_counts_once_in_its_order_and_not_for_its_sender() -> None:
    dialler, listener = joined()
    frames = [sealed(dialler, body) for body in (BODY, b"second", b"third")]
    assert list(listener.feed(frames[0])) == [BODY]
    for side, frame in ((listener, frames[0]), (joined()[1], frames[2]), (dialler, frames[1])):
        with pytest.raises(FrameError):
            list(side.feed(frame))
    dialler, listener = joined()
    first, second = sealed(dialler, b"first"), sealed(dialler, b"second")
    with pytest.raises(FrameError, match="not for this place"):
        list(listener.feed(second + first))


def test_what_was_recorded_on_one_connection_opens_no_other() -> None:
    dialler, listener = sides()
    hello = dialler.hello()
    list(listener.feed(hello))
    list(dialler.feed(listener.hello() + sealed(listener, b"")))
    recorded = sealed(dialler, b"") + sealed(dialler, BODY)
    assert list(listener.feed(recorded)) == [None, BODY]
    _, again = sides()
    assert list(again.feed(hello)) == [None]
    with pytest.raises(FrameError):
        list(again.feed(recorded))


@given(st.data())
def test_any_bit_that_changed_on_the_way_is_noticed(data: st.DataObject) -> None:
    dialler, listener = joined()
    frame = bytearray(sealed(dialler, BODY))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = list(listener.feed(bytes(frame)))
    except FrameError:
        return
    assert found == []  # it waits for the rest of a frame that is longer than this one


def test_a_changed_hello_is_noticed() -> None:
    dialler, listener = sides()
    hello = json.loads(dialler.hello()[4:])
    list(listener.feed(framed(json.dumps(hello | {"name": "w-2"}).encode())))
    list(dialler.feed(listener.hello()))
    with pytest.raises(FrameError):
        list(dialler.feed(sealed(listener, b"")))


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (Hello("other", "w-0", "u0", "00"), "w-0 is a worker of another job, other"),
        (Hello("job", "w-1", "u1", "00"), "w-1 says that it is this very worker"),
        (Hello("job", "w-0", "u9", "00"), r"w-0 \(u9\) is where w-0 \(u0\) was expected"),
        (Joins(1), "the first frame is no hello"),
    ],
)
def test_whoever_is_not_the_worker_that_was_dialled_is_refused(hello: Hello | Joins, why: str) -> None:
    dialler, _ = sides()
    with pytest.raises(FrameError, match=why):
        list(dialler.feed(framed(encode_message(hello))))


@pytest.mark.parametrize(
    ("greeted", "proven", "length", "most"),
    [
        *((False, False, length, 4096) for length in (4097, MAX_BYTES, 2**32 - 1)),
        (True, False, 33, 32),
        (True, True, MAX_BYTES + 33, MAX_BYTES + 32),
    ],
)
def test_no_more_is_kept_of_a_peer_than_it_may_send_by_then(
    greeted: bool, proven: bool, length: int, most: int
) -> None:
    dialler, listener = joined() if proven else sides()
    if greeted and not proven:
        list(listener.feed(dialler.hello()))
    with pytest.raises(FrameError, match=f"of which at most {most}"):
        list(listener.feed(struct.pack("!I", length)))


@given(st.lists(st.binary(max_size=200) | st.binary(max_size=60).map(framed), max_size=8), st.booleans())
def test_any_bytes_are_waited_for_or_refused_and_never_open_a_connection(pieces: list[bytes], hello: bool) -> None:
    dialler, listener = sides()
    if hello:
        list(listener.feed(dialler.hello()))
    try:
        for piece in pieces:
            assert list(listener.feed(piece)) == []
            assert listener.unread_bytes <= 4100
    except FrameError as error:
        assert len(str(error)) < 1500
    assert not listener.is_open


def test_a_hello_of_a_newer_version_is_understood() -> None:
    _, listener = sides()
    hello = {"type": "Hello", "job": "job", "name": "w-1", "uid": "u1", "nonce": "0", "protocol": 9, "mood": "good"}
    assert list(listener.feed(framed(json.dumps(hello).encode()))) == [None]
    assert listener.peer is not None
    assert listener.peer.protocol == 9
