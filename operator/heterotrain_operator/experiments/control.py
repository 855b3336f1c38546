"""How another command reaches a run: a Unix socket in the run's folder, one question and one answer per connection.

The run answers between two looks at its workers, in its own thread, since only that thread may start processes beside
workers; so the server never waits for a client.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heterotrain.foreign import parse_object

logger = logging.getLogger(__name__)

SOCKET = "control"
SOCKET_MODE = 0o600
MAX_REQUEST_BYTES = 4096
MAX_ANSWER_BYTES = 1 << 20
MAX_CONNECTIONS = 16
"""More than these wait until others have been answered."""

PATIENCE_SECONDS = 2.0
"""For a client to ask, and to take its answer."""

ANSWER_SECONDS = 60.0
"""For a run to answer: beside looking at its workers it may be between two trials."""

Answer = Mapping[str, Any]


class NotRunningError(Exception):
    """Nobody answers at the socket of a run: there is none, or its run has ended."""


class ControlError(Exception):
    """A run gave no answer that can be understood."""


@contextlib.contextmanager
def _short_path(folder: Path, name: str) -> Iterator[str]:
    """A path of a file in a folder that is short enough for the address of a socket, however deep the folder lies."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _removing_stale(path: Path) -> Iterator[None]:
    """Remove a socket at which nobody listens any more; not one that a new run has put in its place meanwhile."""
    inode = path.stat().st_ino
    try:
        yield
    except ConnectionRefusedError:
        with contextlib.suppress(OSError):
            if path.stat().st_ino == inode:
                path.unlink()
        raise


@dataclass(slots=True)
class _Client:
    """A connection; `answer` is what is still to be sent, None while the question is not whole."""

    connection: socket.socket
    until: float
    received: bytes = b""
    answer: bytes | None = field(default=None)


class ControlServer:
    """The socket of a run. A context manager; leaving it removes the socket."""

    def __init__(self, folder: Path) -> None:
        """Takes the place of a socket that a run which was killed has left. Raises OSError."""
        self._path = folder / SOCKET
        self._clients: list[_Client] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            os.fchmod(self._socket.fileno(), SOCKET_MODE)  # before it has a name, so that it never has another mode
            being_made = f".{SOCKET}-{os.getpid()}"
            (folder / being_made).unlink(missing_ok=True)
            with _short_path(folder, being_made) as path:
                self._socket.bind(path)
            self._socket.listen(MAX_CONNECTIONS)
            self._inode = (folder / being_made).stat().st_ino
            (folder / being_made).rename(self._path)
        except OSError:
            self._socket.close()
            raise

    def serve(self, answer: Callable[[dict[str, Any]], Answer]) -> None:
        """Answer what has been asked; waits for nobody. `answer` makes an answer of a question, which is any JSON
        object, and raises ValueError if it cannot.
        """
        while len(self._clients) < MAX_CONNECTIONS:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # nobody is there, or has left already
                break
            connection.setblocking(False)
            self._clients.append(_Client(connection, time.monotonic() + PATIENCE_SECONDS))
        self._clients = [client for client in self._clients if not self._done(client, answer)]

    def close(self) -> None:
        """Leave all clients, and remove the socket."""
        for client in self._clients:
            client.connection.close()
        self._clients.clear()
        self._socket.close()
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    def __enter__(self) -> ControlServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _done(self, client: _Client, answer: Callable[[dict[str, Any]], Answer]) -> bool:
        """Go on with a client as far as possible without waiting. Returns whether it is done, and closed."""
        try:
            done = self._go_on(client, answer) or time.monotonic() > client.until
        except OSError as error:
            logger.debug("a client of the control socket has left: %s", error)
            done = True
        if done:
            client.connection.close()
        return done

    def _go_on(self, client: _Client, answer: Callable[[dict[str, Any]], Answer]) -> bool:
        with contextlib.suppress(BlockingIOError):
            while client.answer is None:
                piece = client.connection.recv(MAX_REQUEST_BYTES)
                client.received += piece
                if b"\n" in client.received or not piece or len(client.received) > MAX_REQUEST_BYTES:
                    client.answer = _answered(client.received.partition(b"\n")[0], answer)
            while client.answer:
                client.answer = client.answer[client.connection.send(client.answer) :]
        return client.answer == b""


def _answered(question: bytes, answer: Callable[[dict[str, Any]], Answer]) -> bytes:
    try:
        said = answer(parse_object(question, MAX_REQUEST_BYTES))
    except ValueError as error:
        said = {"error": f"this is no question: {error}", "kind": "input"}
    return json.dumps(said).encode() + b"\n"


def ask(folder: Path, question: Answer) -> dict[str, Any]:
    """Ask the run of a folder.

    Raises NotRunningError if it has ended (a socket that it left is removed), ControlError if it gives no answer.
    """
    path = folder / SOCKET
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_SECONDS)
        try:
            with _short_path(folder, SOCKET) as short, _removing_stale(path):
                connection.connect(short)
        except ConnectionRefusedError:
            raise NotRunningError(f"the run of {folder} has ended") from None
        except (FileNotFoundError, NotADirectoryError):
            raise NotRunningError(f"there is no run in {folder}, or it has ended") from None
        except OSError as error:
            raise ControlError(f"{path}: {error.strerror or error}") from error
        try:
            connection.sendall(json.dumps(question).encode() + b"\n")
            received = b""
            while not received.endswith(b"\n"):
                piece = connection.recv(MAX_ANSWER_BYTES)
                received += piece
                if not piece or len(received) > MAX_ANSWER_BYTES:
                    break
            if not received:
                raise NotRunningError(f"the run of {folder} has ended")
            return parse_object(received, MAX_ANSWER_BYTES)
        except (ConnectionResetError, BrokenPipeError):
            raise NotRunningError(f"the run of {folder} has ended") from None
        except (OSError, ValueError) as error:
            raise ControlError(f"{path} gives no answer: {error}") from error


def is_running(folder: Path) -> bool:
    """Whether the run of a folder goes on; a socket that a run which was killed has left is removed."""
    if not (folder / SOCKET).is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            with _short_path(folder, SOCKET) as short, _removing_stale(folder / SOCKET):
                connection.setblocking(False)
                connection.connect(short)
        except BlockingIOError:  # many others ask
            return True
        except OSError:
            return False
    return True
