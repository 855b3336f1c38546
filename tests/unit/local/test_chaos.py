"""Faults of real processes as they are seen from outside: each has its effect, is taken back, and leaves nothing."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heterotrain_operator.clusters.local import leftovers, partition, sockets
from heterotrain_operator.clusters.local.chaos import FAULTS, LASTING, STARVED_CORES, UNDOES, Chaos, ChaosError
from heterotrain_operator.clusters.local.cluster import LocalCluster
from heterotrain_operator.clusters.local.limits import Mechanism
from heterotrain_operator.clusters.local.partition import silenced
from heterotrain_operator.clusters.local.sockets import Ends
from heterotrain_operator.core.model import Decision
from heterotrain_operator.core.state import Memory
from unit.local.small_jobs import (
    IGNORE_TERM,
    PLAN,
    SLEEP,
    ended,
    eventually,
    key,
    make_job,
    neighbours_of,
    only,
)

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("nothing_stays_behind")]

Start = Callable[..., LocalCluster]
NAME = "job-cpu-0"
WITH_A_CHILD = f"""
import subprocess, sys
subprocess.Popen([sys.executable, '-S', '-c', {SLEEP!r}], start_new_session=True)
print('up', flush=True)
while True: pass
"""
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


@pytest.fixture
def chaos_in() -> Iterator[Callable[..., Chaos]]:
    """Makes the chaos of a cluster; it is closed in the end."""
    made: list[Chaos] = []

    def make(cluster: LocalCluster, **options: Callable[[], float]) -> Chaos:
        made.append(Chaos(cluster, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


ChaosIn = Callable[..., Chaos]


def pids(cluster: LocalCluster) -> set[int]:
    return cluster.process(NAME).limits.pids()


def states(cluster: LocalCluster) -> set[str]:
    return {leftovers._stat_fields(pid)[0] for pid in pids(cluster) | {cluster.pid(NAME)}}


def planned(cluster: LocalCluster) -> None:
    cluster.observe()
    cluster.act(Decision("Running", "", plan=PLAN), Memory.initial())


def test_killed_worker_goes_with_all_its_processes(start: Start, chaos_in: ChaosIn) -> None:
    cluster = start(make_job(WITH_A_CHILD))
    eventually(lambda: "up" in cluster.log_file(NAME).read_text())
    before = pids(cluster)
    assert len(before) == 2
    chaos_in(cluster).begin("kill", NAME)
    assert ended(cluster).exit_code == 128 + signal.SIGKILL
    eventually(lambda: not any(map(leftovers.alive, before)))


def test_stopped_worker_stands_still_until_it_is_continued(
    mechanism: Mechanism, start: Start, chaos_in: ChaosIn
) -> None:
    cluster = start(make_job(WITH_A_CHILD, resources={"limits": {"cpu": "900m"}}), mechanism)
    planned(cluster)
    eventually(lambda: "up" in cluster.log_file(NAME).read_text())
    chaos = chaos_in(cluster)
    chaos.begin("stop", NAME)
    eventually(lambda: states(cluster) == {"T"})
    used = cluster.process(NAME).limits.cpu_seconds()
    chaos.begin("stop", NAME)
    assert states(cluster) == {"T"}
    assert cluster.process(NAME).limits.cpu_seconds() == used, "whatever limits it lets it run"
    assert chaos.end(NAME, UNDOES["continue"]) == ("stop",)
    eventually(lambda: cluster.process(NAME).limits.cpu_seconds() > used)


def test_slow_worker_has_neighbours_at_an_unchanged_limit(start: Start, chaos_in: ChaosIn) -> None:
    cluster = start(make_job(SLEEP, resources={"limits": {"cpu": "500m"}}))
    planned(cluster)
    chaos = chaos_in(cluster)
    chaos.begin("slow", NAME, neighbours=2)
    assert len(neighbours_of(os.getpid())) == 2
    assert cluster.process(NAME).limits.cores() == pytest.approx(0.5)
    assert chaos.end(NAME, UNDOES["restore"]) == ("slow",)
    assert not neighbours_of(os.getpid())


def test_starved_worker_has_hardly_any_cpu(start: Start, chaos_in: ChaosIn) -> None:
    cluster = start(make_job(SLEEP, resources={"limits": {"cpu": "500m"}}))
    planned(cluster)
    chaos = chaos_in(cluster)
    chaos.begin("starve", NAME)
    assert cluster.process(NAME).limits.cores() == pytest.approx(STARVED_CORES)
    chaos.end(NAME, UNDOES["restore"])
    assert cluster.process(NAME).limits.cores() == pytest.approx(0.5)


def test_what_a_schedule_changed_meanwhile_stays(start: Start, chaos_in: ChaosIn) -> None:
    cluster = start(make_job(SLEEP, resources={"limits": {"cpu": "500m"}}))
    planned(cluster)
    chaos = chaos_in(cluster)
    chaos.begin("starve", NAME)
    chaos.begin("slow", NAME)
    cluster.set_cpu_limit(NAME, 0.25)
    cluster.set_neighbours(NAME, 3)
    assert set(chaos.end(NAME, UNDOES["restore"])) == {"slow", "starve"}
    assert (cluster.cpu_limit(NAME), cluster.neighbours(NAME)) == (0.25, 3)


def test_leaving_worker_is_asked_and_counts_as_disrupted(start: Start, chaos_in: ChaosIn) -> None:
    polite = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\nprint('up', flush=True)\n"
    cluster = start(make_job(polite + SLEEP))
    eventually(lambda: "up" in cluster.log_file(NAME).read_text())
    chaos_in(cluster).begin("leave", NAME)
    worker = ended(cluster)
    assert (worker.exit_code, worker.disrupted) == (3, True)


def test_worker_that_does_not_leave_is_killed_after_its_grace_period(start: Start, chaos_in: ChaosIn) -> None:
    cluster = start(make_job(IGNORE_TERM))
    eventually(lambda: "deaf" in cluster.log_file(NAME).read_text())
    chaos_in(cluster).begin("leave", NAME)
    assert ended(cluster).exit_code == 128 + signal.SIGKILL


@pytest.mark.parametrize("fault", LASTING)
def test_fault_ends_after_its_time(fault: str, start: Start, chaos_in: ChaosIn) -> None:
    cluster = start(make_job(SLEEP))
    now = [100.0]
    chaos = chaos_in(cluster, monotonic=lambda: now[0])
    chaos.begin(fault, NAME, seconds=5.0)
    now[0] += 4.9
    assert chaos.tend() == ()
    now[0] += 0.2
    (over,) = chaos.tend()
    assert (over.worker, over.fault) == (NAME, fault)
    assert chaos.standing == chaos.tend() == ()


def test_last_word_decides_when_a_fault_ends(start: Start, chaos_in: ChaosIn) -> None:
    cluster = start(make_job(SLEEP))
    now = [0.0]
    chaos = chaos_in(cluster, monotonic=lambda: now[0])
    chaos.begin("stop", NAME, seconds=5.0)
    chaos.begin("stop", NAME)
    now[0] = 1e6
    assert chaos.tend() == ()
    eventually(lambda: states(cluster) == {"T"})


def test_successor_of_a_worker_has_no_fault(start: Start, chaos_in: ChaosIn) -> None:
    cluster = start(make_job(SLEEP))
    planned(cluster)
    chaos = chaos_in(cluster)
    for fault in (*LASTING, "kill"):
        chaos.begin(fault, NAME)
    ended(cluster)
    with pytest.raises(ChaosError, match="job-cpu-0 has ended"):
        chaos.begin("stop", NAME)
    cluster.act(Decision("Restarting", "", delete=(NAME,)), Memory.initial())
    eventually(lambda: not cluster.observe()[0].workers)
    cluster.act(Decision("Running", "", create=(key(),)), Memory.initial())
    assert chaos.tend() == chaos.standing == ()
    eventually(lambda: states(cluster) <= {"S", "R"} and states(cluster))
    assert not neighbours_of(os.getpid())
    assert only(cluster).cpu_limit is None


def test_closing_takes_everything_back(start: Start, chaos_in: ChaosIn) -> None:
    cluster = start(make_job(SLEEP, resources={"limits": {"cpu": "500m"}}))
    planned(cluster)
    chaos = chaos_in(cluster)
    for fault in LASTING:
        chaos.begin(fault, NAME)
    chaos.close()
    eventually(lambda: states(cluster) <= {"S", "R"})
    assert not neighbours_of(os.getpid())
    assert cluster.process(NAME).limits.cores() == pytest.approx(0.5)
    assert chaos.end(NAME, LASTING) == ()


def test_unknown_worker_is_named_with_those_there_are(start: Start, chaos_in: ChaosIn) -> None:
    chaos = chaos_in(start(make_job(SLEEP)))
    for fault in FAULTS:
        with pytest.raises(ValueError, match="there is no worker 'job-cpu-7'; there are job-cpu-0"):
            chaos.begin(fault, "job-cpu-7")


class Talk:
    """Workers that talk: 1 and 2 with 0, and each with itself. Counts what came back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def heard(self, worker: str) -> int:
        file = self._folder / worker
        return int(file.read_text()) if file.exists() else 0

    def goes_on(self, worker: str, by: int = 1) -> None:
        before = self.heard(worker)
        eventually(lambda: self.heard(worker) >= before + by)

    def is_silent(self, worker: str, while_: str) -> None:
        """Nothing comes back to `worker` while much does to another."""
        self.goes_on(while_, 30)  # what was under way has come, and new sockets have been found
        before = self.heard(worker)
        self.goes_on(while_, 30)
        assert self.heard(worker) == before

    def port(self) -> int:
        return int((self._folder / "port").read_text())

    def closed(self) -> bool:
        return (self._folder / "closed").exists()

    def more(self, worker: str) -> None:
        """Let a worker open one more connection."""
        (self._folder / f"{worker}.more").touch()


@pytest.fixture
def talk(tmp_path: Path, start: Start) -> tuple[Talk, LocalCluster]:
    cluster = start(make_job(TALK, str(tmp_path), replicas=3))
    talk = Talk(tmp_path)
    for worker in ("job-cpu-1", "job-cpu-2", "job-cpu-1.itself"):
        talk.goes_on(worker)
    return talk, cluster


def test_partitioned_worker_is_heard_by_nobody_but_itself(talk: tuple[Talk, LocalCluster], chaos_in: ChaosIn) -> None:
    said, cluster = talk
    chaos = chaos_in(cluster)
    chaos.begin("partition", "job-cpu-1")
    said.is_silent("job-cpu-1", while_="job-cpu-2")
    said.goes_on("job-cpu-1.itself")
    said.more("job-cpu-1")
    said.is_silent("job-cpu-1.again", while_="job-cpu-2")
    assert chaos.end("job-cpu-1", UNDOES["heal"]) == ("partition",)
    said.goes_on("job-cpu-1")
    eventually(lambda: said.heard("job-cpu-1.again") > 0)
    assert not said.closed()
    chaos.begin("kill", "job-cpu-1")
    eventually(said.closed)  # no duplicate of its sockets keeps its connections open


def silent(cluster: LocalCluster, name: str) -> int:
    """At how many sockets of a worker the kernel drops what arrives."""
    found = 0
    for pid in cluster.process(name).limits.pids():
        for inode, descriptor in sockets.inodes(pid).items():
            with sockets.duplicate(pid, descriptor, inode) as duplicate:
                if duplicate is not None:
                    found += sockets.is_silent(duplicate)
    return found


def test_partition_silences_both_ends_and_leaves_nothing(talk: tuple[Talk, LocalCluster], chaos_in: ChaosIn) -> None:
    _, cluster = talk
    before = (threading.active_count(), len(list(Path("/proc/self/fd").iterdir())))
    chaos = chaos_in(cluster)
    chaos.begin("partition", "job-cpu-1")
    # Its connection with 0 and its listener, but neither end of its connection with itself.
    assert [silent(cluster, f"job-cpu-{index}") for index in range(3)] == [1, 2, 0]
    chaos.end("job-cpu-1", UNDOES["heal"])
    assert [silent(cluster, f"job-cpu-{index}") for index in range(3)] == [0, 0, 0]
    assert threading.active_count() <= before[0]
    assert len(list(Path("/proc/self/fd").iterdir())) <= before[1]


def test_partitioned_worker_takes_no_connections(talk: tuple[Talk, LocalCluster], chaos_in: ChaosIn) -> None:
    said, cluster = talk
    chaos = chaos_in(cluster)
    chaos.begin("partition", "job-cpu-0")
    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", said.port()), timeout=0.2)
    chaos.begin("partition", "job-cpu-2")
    chaos.end("job-cpu-0", UNDOES["heal"])
    said.goes_on("job-cpu-1")
    said.is_silent("job-cpu-2", while_="job-cpu-1")
    with socket.create_connection(("127.0.0.1", said.port()), timeout=30) as connection:
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"


def test_what_a_machine_lacks_for_a_partition_is_named(
    talk: tuple[Talk, LocalCluster], chaos_in: ChaosIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, cluster = talk
    chaos = chaos_in(cluster)
    monkeypatch.setattr(sockets, "PIDFD_GETFD", 99_999)
    with pytest.raises(ChaosError, match=r"job-cpu-1: .* no pidfd_getfd.* Linux 5\.6"):
        chaos.begin("partition", "job-cpu-1")

    def refuse(pid: int, descriptor: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(sockets, "_duplicate", refuse)
    with pytest.raises(ChaosError, match=r"job-cpu-1: .*Operation not permitted.*SYS_PTRACE"):
        chaos.begin("partition", "job-cpu-1")
    assert chaos.standing == ()
    said.goes_on("job-cpu-1")


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


def test_machine_whose_packets_travel_as_far_as_any_is_named(
    talk: tuple[Talk, LocalCluster], chaos_in: ChaosIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ttl").write_text("255\n")
    monkeypatch.setattr(partition, "HOPS", (tmp_path / "none", tmp_path / "ttl"))
    with pytest.raises(ChaosError, match=r"ip_default_ttl .*must be below 255"):
        chaos_in(talk[1]).begin("partition", "job-cpu-1")


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
