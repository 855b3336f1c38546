"""The socket of a run: who may ask, what may be asked, and that nobody holds the run up."""

from __future__ import annotations

import json
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heterotrain_operator.experiments import control
from heterotrain_operator.experiments.control import ControlError, ControlServer, NotRunningError, ask, is_running
from heterotrain_operator.experiments.trials.faults import asked_of
from hostile import spoilt_text

TEXT = spoilt_text({"do": "stop", "worker": "job-a-0", "seconds": 3})
SENT = st.binary(max_size=200) | TEXT.map(lambda text: text.encode(errors="replace"))
Answer = Callable[[Mapping[str, Any]], dict[str, Any]]


def echo(question: Mapping[str, Any]) -> dict[str, Any]:
    return {"asked": question}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ControlServer]:
    with ControlServer(tmp_path) as made:
        yield made


def served(server: ControlServer, act: Callable[[], Any], answer: Answer = echo) -> Any:
    """What `act` returns, or the exception that it raises, while the server serves."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(act())
        except (ControlError, NotRunningError) as error:
            result.append(error)

    client = threading.Thread(target=run)
    client.start()
    while client.is_alive():
        server.serve(answer)
        client.join(0.005)
    return result[0]


def raw(folder: Path, *pieces: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(folder / control.SOCKET))
        for piece in pieces:
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def test_question_is_answered_in_pieces_too_and_nobody_else_may_ask(server: ControlServer, tmp_path: Path) -> None:
    assert served(server, lambda: ask(tmp_path, {"do": "list"})) == {"asked": {"do": "list"}}
    assert json.loads(served(server, lambda: raw(tmp_path, b'{"a"', b": 1}", b"\n"))) == {"asked": {"a": 1}}
    assert is_running(tmp_path)
    assert stat.S_IMODE((tmp_path / control.SOCKET).stat().st_mode) == 0o600


def test_socket_may_lie_deeper_than_an_address_is_long(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["a-long-name-of-a-folder"] * 8)
    folder.mkdir(parents=True)
    with ControlServer(folder) as server:
        assert served(server, lambda: ask(folder, {"x": 1})) == {"asked": {"x": 1}}


def test_run_that_ended_leaves_no_socket_and_a_file_is_none(tmp_path: Path) -> None:
    ControlServer(tmp_path).close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(NotRunningError, match="there is no run"):
        ask(tmp_path, {})
    (tmp_path / control.SOCKET).write_text("")
    assert not is_running(tmp_path)


@pytest.mark.parametrize("look", [is_running, lambda folder: ask(folder, {})], ids=["look", "ask"])
def test_socket_that_a_killed_run_left_is_removed(tmp_path: Path, look: Callable[[Path], bool]) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / control.SOCKET))
    left.close()
    try:
        assert look(tmp_path) is False
    except NotRunningError as error:
        assert "has ended" in str(error)
    assert not (tmp_path / control.SOCKET).exists()


def test_next_run_takes_the_place_of_a_socket_that_was_left(tmp_path: Path) -> None:
    first = ControlServer(tmp_path)
    with ControlServer(tmp_path) as second:
        first.close()  # which must not remove what is not its own
        assert served(second, lambda: ask(tmp_path, {"x": 1})) == {"asked": {"x": 1}}


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"", "not JSON"),
        (b"[1]\n", "expected an object"),
        (b"[" * 3000 + b"\n", "is no question"),
        (b"x" * 100_000, "of which at most 4096 are read"),
        (b'{"n": ' + b"9" * 4000, "is no question"),
    ],
)
def test_what_is_no_question_is_told_so(server: ControlServer, tmp_path: Path, sent: bytes, says: str) -> None:
    def act() -> bytes:
        try:
            return raw(tmp_path, sent)
        except ConnectionError:  # the server reads no further than it must
            return b"of which at most 4096 are read"

    assert says in served(server, act).decode()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=SENT)
def test_whatever_is_sent_the_server_answers_and_goes_on(server: ControlServer, tmp_path: Path, sent: bytes) -> None:
    def judged(question: Mapping[str, Any]) -> dict[str, Any]:
        return {"act": asked_of(question).act}

    def act() -> bytes:
        try:
            return raw(tmp_path, sent)
        except ConnectionError:
            return b"{}"

    said = json.loads(served(server, act, judged))
    assert set(said) in ({"act"}, {"error", "kind"}, set())


def test_silent_and_deaf_clients_hold_nobody_up(
    server: ControlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "PATIENCE_SECONDS", 0.1)
    silent = [socket.socket(socket.AF_UNIX) for _ in range(control.MAX_CONNECTIONS)]
    try:
        for each in silent:
            each.connect(str(tmp_path / control.SOCKET))
            each.sendall(b'{"x":')
        long = {"text": "x" * 400_000}  # more than a socket's buffer holds
        assert served(server, lambda: ask(tmp_path, {"x": 1}), lambda _: long) == long
    finally:
        for each in silent:
            each.close()


def test_client_that_leaves_is_forgotten(server: ControlServer, tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for sent in (b"", b'{"x": 1}\n'):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(tmp_path / control.SOCKET))
            connection.sendall(sent)
        for _ in range(3):
            server.serve(lambda _: {"text": "x" * 400_000})
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_answer_that_is_none_is_an_error_of_its_own(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / control.SOCKET))
        other.listen()

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"[1]\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ControlError, match="gives no answer: expected an object"):
            ask(tmp_path, {})
        thread.join()


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ({}, "there is no fault None; there are kill, stop, slow, starve, partition, leave, join, continue, heal, "),
        ({"do": ["kill"]}, "there is no fault a list"),
        ({"do": "stop"}, "worker must be a worker's name, found None"),
        ({"do": "stop", "worker": "\ud800"}, "worker must be"),
        ({"do": "stop", "worker": "w", "seconds": 0}, "seconds must be above 0"),
        ({"do": "stop", "worker": "w", "seconds": float("nan")}, "seconds must be above 0"),
        ({"do": "stop", "worker": "w", "seconds": 10**400}, "at most a week"),
        ({"do": "kill", "worker": "w", "seconds": 1}, "kill does not last; seconds are for stop, partition, slow"),
        ({"do": "slow", "worker": "w", "neighbours": 65}, "neighbours must be a number from 1 to 64, found 65"),
    ],
)
def test_what_cannot_be_asked_is_named(question: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        asked_of(question)


def test_run_that_ends_before_it_has_read_the_question_has_ended(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening, ThreadPoolExecutor(1) as threads:
        listening.bind(str(tmp_path / control.SOCKET))
        listening.listen()
        asked = threads.submit(ask, tmp_path, {"do": "list"})
        connection, _ = listening.accept()
        connection.recv(1, socket.MSG_PEEK)  # what is not read when it closes resets the connection
        connection.close()
        with pytest.raises(NotRunningError, match="has ended"):
            asked.result()
