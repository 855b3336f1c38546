"""What two workers write to each other on one connection: frames of bytes, each proven by the job's secret.

A frame is its length in 4 bytes, its body, and an HMAC if there is a secret. Both sides begin with a hello, which has
no HMAC, and an empty frame, by whose HMAC each proves that it knows the secret. The key of all HMACs is derived from
both hellos and hence from both nonces, so nothing that was recorded on another connection counts here; each HMAC is
over the direction, the frame's place in the sequence, and the body, so no frame counts twice, elsewhere in the
sequence, or for its own sender. This file reads and writes no socket.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Iterator

from heterotrain.groups.peering.message_documents import encode_message, parse_message
from heterotrain.groups.peering.messages import Hello
from heterotrain.peers import MAX_BYTES, PeerError

SECRET_LENGTH = 16
"""The fewest characters of a secret."""

_MAC = hashlib.sha256
_MAC_BYTES = _MAC().digest_size
_LENGTH = struct.Struct("!I")
_PLACE = struct.Struct("!cQ")
_MAX_HELLO_BYTES = 4096
_NONCE_BYTES = 16


class FrameError(ValueError):
    """The peer writes what no worker of this job would write; the text says what."""


def greeting(job: str, name: str, uid: str) -> Hello:
    """The hello of one connection, with a nonce of its own."""
    return Hello(job, name, uid, secrets.token_hex(_NONCE_BYTES))


class Frames:
    """One side of one connection: makes the frames that it writes, and takes apart what it reads."""

    def __init__(self, own: Hello, secret: str | None, *, dials: bool, expected: tuple[str, str] | None = None) -> None:
        """Whoever `dials` may expect a worker of this name and UID. Raises ValueError if the secret is too short to be
        one."""
        if secret is not None and len(secret) < SECRET_LENGTH:
            raise ValueError(f"a secret of {len(secret)} characters is none; it takes {SECRET_LENGTH}")
        self.peer: Hello | None = None
        self.is_open = False
        self._own = own
        self._own_document = encode_message(own)
        self._base = None if secret is None else hmac.new(secret.encode(), b"heterotrain peers", _MAC).digest()
        self._key = b""
        self._dials = dials
        self._expected = expected
        self._unread = bytearray()
        self._sealed = 0
        self._opened = 0

    def hello(self) -> bytes:
        """The first frame, which whoever dials writes at once, and the other side once it has read a hello."""
        return _LENGTH.pack(len(self._own_document)) + self._own_document

    def seal(self, body: bytes) -> list[bytes]:
        """The parts of the next frame, for one that comes after the peer's hello. The first one has no body."""
        parts = [_LENGTH.pack(len(body) + (0 if self._base is None else _MAC_BYTES)), body]
        if self._base is not None:
            parts.append(self._mac(b"d" if self._dials else b"l", self._sealed, body))
        self._sealed += 1
        return parts

    @property
    def unread_bytes(self) -> int:
        """How many bytes are kept of a frame that is not complete."""
        return len(self._unread)

    def feed(self, data: bytes) -> Iterator[bytes | None]:
        """The bodies of the frames that these bytes complete; None in place of the first, after which `peer` is known,
        and of the second, after which it `is_open`. Raises FrameError; nothing may be fed after that."""
        self._unread += data
        while (body := self._next()) is not None:
            if self.peer is None:
                self._meet(body)
                yield None
            elif not self.is_open:
                self._check_proof(body)
                self.is_open = True
                yield None
            else:
                yield self._opened_body(body)

    def take(self, into: memoryview) -> int:
        """Bytes that follow the newest frame and are none, as far as they were fed: how many are in `into` now."""
        taken = min(len(into), len(self._unread))
        into[:taken] = self._unread[:taken]
        del self._unread[:taken]
        return taken

    # --- inside -------------------------------------------------------------------------------------------------

    def _next(self) -> bytes | None:
        if len(self._unread) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._unread)
        if length > self._longest():
            raise FrameError(f"a frame has {length} bytes, of which at most {self._longest()} are read")
        end = _LENGTH.size + length
        if len(self._unread) < end:
            return None
        body = bytes(memoryview(self._unread)[_LENGTH.size : end])
        del self._unread[:end]
        return body

    def _longest(self) -> int:
        if self.peer is None:
            return _MAX_HELLO_BYTES
        return MAX_BYTES + _MAC_BYTES if self.is_open else _MAC_BYTES

    def _meet(self, document: bytes) -> None:
        try:
            hello = parse_message(document)
        except PeerError as error:
            raise FrameError(str(error)) from error
        if not isinstance(hello, Hello):
            raise FrameError("the first frame is no hello")
        if hello.job != self._own.job:
            raise FrameError(f"{hello.name} is a worker of another job, {hello.job}")
        if hello.uid == self._own.uid:
            raise FrameError(f"{hello.name} says that it is this very worker")
        if self._expected is not None and (hello.name, hello.uid) != self._expected:
            name, uid = self._expected
            raise FrameError(f"{hello.name} ({hello.uid}) is where {name} ({uid}) was expected")
        self.peer = hello
        if self._base is not None:
            documents = (self._own_document, document) if self._dials else (document, self._own_document)
            transcript = b"".join(_LENGTH.pack(len(each)) + each for each in documents)
            self._key = hmac.new(self._base, transcript, _MAC).digest()

    def _check_proof(self, body: bytes) -> None:
        if self._opened_body(body):
            raise FrameError(
                "the frame after the hello is not empty, or proves a secret that this worker does not have"
            )

    def _opened_body(self, frame: bytes) -> bytes:
        if self._base is None:
            self._opened += 1
            return frame
        body, mac = frame[:-_MAC_BYTES], frame[-_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(b"l" if self._dials else b"d", self._opened, body)):
            raise FrameError("a frame was not written, or not for this place, by a worker that knows the job's secret")
        self._opened += 1
        return body

    def _mac(self, direction: bytes, place: int, body: bytes) -> bytes:
        mac = hmac.new(self._key, _PLACE.pack(direction, place), _MAC)
        mac.update(body)
        return mac.digest()
