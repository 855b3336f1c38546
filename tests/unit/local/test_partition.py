"""A worker that is partitioned from the others gets nothing from them, and they get nothing from it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from heterotrain_operator.clusters.local import partition, sockets
from heterotrain_operator.clusters.local.chaos import UNDOES, Chaos, ChaosError
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.clusters.local.partition import silenced
from heterotrain_operator.clusters.local.sockets import Ends
from unit.cli.commands import eventually
from unit.local.small_jobs import make_job

Start = Callable[..., LocalCluster]
TALK = """
import os, pathlib, socket, sys, threading, time

folder, name = pathlib.Path(sys.argv[1]), os.environ["HETEROTRAIN_WORKER"]

def write(file, value):
    part = folder / (file + ".part")
    part.write_text(str(value))
    part.rename(folder / file)

def echo(connection):
    while data := connection.recv(1):
        connection.sendall(data)
    write("closed", "")

def listen(port_file):
    server = socket.create_server(("127.0.0.1", 0))
    write(port_file, server.getsockname()[1])
    while True:
        threading.Thread(target=echo, args=(server.accept()[0],), daemon=True).start()

def ping(port_file, count_file):
    while not (folder / port_file).exists():
        time.sleep(0.01)
    connection = socket.create_connection(("127.0.0.1", int((folder / port_file).read_text())))
    count = 0
    while True:
        connection.sendall(b"x")
        connection.recv(1)
        count += 1
        write(count_file, count)
        time.sleep(0.005)

if name.endswith("0"):
    listen("port")
threading.Thread(target=listen, args=(name + ".own",), daemon=True).start()
threading.Thread(target=ping, args=(name + ".own", name + ".itself"), daemon=True).start()
threading.Thread(target=ping, args=("port", name), daemon=True).start()
while not (folder / (name + ".more")).exists():
    time.sleep(0.01)
ping("port", name + ".again")
"""
ChaosIn = Callable[..., Chaos]


class Talk:
    """Workers that talk: 1 and 2 with 0, and each with itself. Counts what came back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def received(self, worker: str) -> int:
        file = self._folder / worker
        return int(file.read_text()) if file.exists() else 0

    def goes_on(self, worker: str, by: int = 1) -> None:
        before = self.received(worker)
        eventually(lambda: self.received(worker) >= before + by)

    def is_silent(self, worker: str, while_: str) -> None:
        """Nothing comes back to `worker` while much does to another."""
        self.goes_on(while_, 30)  # what was under way has come, and new sockets have been found
        before = self.received(worker)
        self.goes_on(while_, 30)
        assert self.received(worker) == before

    def port(self) -> int:
        return int((self._folder / "port").read_text())

    def closed(self) -> bool:
        return (self._folder / "closed").exists()

    def more(self, worker: str) -> None:
        """Let a worker open one more connection."""
        (self._folder / f"{worker}.more").touch()


def silent(cluster: LocalCluster, name: str) -> int:
    """At how many sockets of a worker the kernel drops what arrives."""
    found = 0
    for pid in cluster.process(name).limits.pids():
        for inode, descriptor in sockets.inodes(pid).items():
            with sockets.duplicate(pid, descriptor, inode) as duplicate:
                if duplicate is not None:
                    found += sockets.is_silent(duplicate)
    return found


@pytest.mark.processes
@pytest.mark.usefixtures("nothing_stays_behind")
def test_partitioned_worker_reaches_nobody_but_itself_until_that_is_healed(
    tmp_path: Path, start: Start, chaos_in: ChaosIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, talk = start(make_job(TALK, str(tmp_path), replicas=3)), Talk(tmp_path)
    for worker in ("job-cpu-1", "job-cpu-2", "job-cpu-1.itself"):
        talk.goes_on(worker)
    before = (threading.active_count(), len(list(Path("/proc/self/fd").iterdir())))
    chaos = chaos_in(cluster)
    chaos.begin("partition", "job-cpu-1")
    # Its connection with 0 and its listener, but neither end of its connection with itself.
    assert [silent(cluster, f"job-cpu-{index}") for index in range(3)] == [1, 2, 0]
    talk.is_silent("job-cpu-1", while_="job-cpu-2")
    talk.goes_on("job-cpu-1.itself")
    talk.more("job-cpu-1")
    talk.is_silent("job-cpu-1.again", while_="job-cpu-2")
    assert chaos.end("job-cpu-1", UNDOES["heal"]) == ("partition",)
    assert [silent(cluster, f"job-cpu-{index}") for index in range(3)] == [0, 0, 0]
    assert threading.active_count() <= before[0]
    assert len(list(Path("/proc/self/fd").iterdir())) <= before[1]
    talk.goes_on("job-cpu-1")
    eventually(lambda: talk.received("job-cpu-1.again") > 0)
    assert not talk.closed()

    chaos.begin("partition", "job-cpu-0")
    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", talk.port()), timeout=0.2)
    chaos.begin("partition", "job-cpu-2")
    chaos.end("job-cpu-0", UNDOES["heal"])
    talk.goes_on("job-cpu-1")
    talk.is_silent("job-cpu-2", while_="job-cpu-1")
    with socket.create_connection(("127.0.0.1", talk.port()), timeout=30) as connection:
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"
    eventually(talk.closed)
    chaos.end("job-cpu-2", UNDOES["heal"])

    with monkeypatch.context() as lacking:
        lacking.setattr(sockets, "PIDFD_GETFD", 99_999)
        with pytest.raises(ChaosError, match=r"job-cpu-1: .* no pidfd_getfd.* Linux 5\.6"):
            chaos.begin("partition", "job-cpu-1")
        lacking.setattr(sockets, "_duplicate", refuse)
        with pytest.raises(ChaosError, match=r"job-cpu-1: .*Operation not permitted.*SYS_PTRACE"):
            chaos.begin("partition", "job-cpu-1")
        (tmp_path / "ttl").write_text("255\n")
        lacking.setattr(partition, "HOPS", (tmp_path / "none", tmp_path / "ttl"))
        with pytest.raises(ChaosError, match=r"ip_default_ttl .*must be below 255"):
            chaos.begin("partition", "job-cpu-1")
    assert chaos.standing == ()
    talk.goes_on("job-cpu-1")

    (tmp_path / "closed").unlink()
    chaos.begin("kill", "job-cpu-1")
    eventually(talk.closed)  # no duplicate of its sockets keeps its connections open


def refuse(pid: int, descriptor: int) -> int:
    """What a machine does on which a process may not reach into the sockets of another."""
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_silent_socket_gets_nothing_until_it_is_restored(family: socket.AddressFamily, kind: socket.SocketKind) -> None:
    host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    with socket.socket(family, kind) as receiver, socket.socket(family, kind) as sender:
        try:
            receiver.bind((host, 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        receiver.settimeout(0.1)
        if kind == socket.SOCK_STREAM:
            receiver.listen()
        take = receiver.accept if kind == socket.SOCK_STREAM else lambda: (None, receiver.recv(1))
        sockets.silence(receiver)
        sender.setblocking(False)
        sender.connect_ex(receiver.getsockname())
        if kind == socket.SOCK_DGRAM:
            sender.send(b"x")
        with pytest.raises(TimeoutError):
            take()
        sockets.restore(receiver)
        receiver.settimeout(30)
        if kind == socket.SOCK_DGRAM:
            sender.send(b"x")
        connection, _ = take()  # of an attempt to connect that the kernel makes again
        if connection is not None:
            connection.close()


A, B, C = ("127.0.0.1", 1), ("127.0.0.1", 2), ("127.0.0.1", 3)


@pytest.mark.parametrize(
    ("cut", "expected"),
    [((), set()), (("a",), {1, 2, 3}), (("b",), {1, 2, 6}), (("a", "b"), {1, 2, 3, 6}), (("gone",), set())],
)
def test_both_ends_are_silenced_but_no_worker_to_itself(cut: tuple[str, ...], expected: set[int]) -> None:
    known = {
        1: ("a", Ends(A, B)),
        2: ("b", Ends(B, A)),
        3: ("a", Ends(A, None)),
        4: ("a", Ends(A, C)),
        5: ("a", Ends(C, A)),
        6: ("b", Ends(C, B)),  # to somebody who is no worker
    }
    assert silenced(cut, known) == expected
