"""Figures of memory and CPU are read from either version of cgroups, as containers and machines mount them."""

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain.reporting import cgroups as own
from heterotrain.reporting import resources

GIBIBYTE = 1 << 30
NO_LIMIT_V1 = "9223372036854771712"
STAT_V2 = (
    "usage_usec 81530412\nuser_usec 70120000\nsystem_usec 11410412\nnice_usec 0\n"
    "nr_periods 4120\nnr_throttled 1033\nthrottled_usec 12500000\nnr_bursts 0\nburst_usec 0"
)
STAT_V1 = "nr_periods 4120\nnr_throttled 1033\nthrottled_time 12500000000\nnr_bursts 0\nburst_time 0"
PRESSURE = "some avg10=3.26 avg60=1.65 avg300=2.76 total=18250000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0"
PRESSURE_OF_NODE = PRESSURE.replace("18250000", "44000000")

FIGURES = st.sampled_from(
    [
        "some ",
        "total=",
        "throttled_usec ",
        "throttled_time ",
        "max ",
        "1e308 ",
        "9" * 400 + " ",
        "-1 ",
        "nan ",
        "0 ",
        "\n",
    ]
)

Machine = Callable[..., None]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Sets up a process in a cgroup of version 1 or 2 whose files hold this."""
    (tmp_path / "proc" / "self").mkdir(parents=True)

    def make(memberships: str, mounts: str, files: dict[str, str]) -> None:
        (tmp_path / "proc" / "self" / "cgroup").write_text(memberships)
        (tmp_path / "proc" / "self" / "mountinfo").write_text(mounts.format(root=tmp_path))
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")
            (file.parent / "cgroup.procs").touch()
        own.own_cgroup.cache_clear()

    for module in (resources, own):
        monkeypatch.setattr(module, "PROC", tmp_path / "proc")
    yield make
    own.own_cgroup.cache_clear()


def container(version: int, files: dict[str, str]) -> tuple[str, str, dict[str, str]]:
    """A container that sees its own cgroup alone, at the mount point."""
    if version == 2:
        return (
            "0::/\n",
            "678 667 0:26 / {root}/cg ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw\n",
            {f"cg/{name}": text for name, text in files.items()},
        )
    path = "/kubepods/burstable/pod6f1c/ab12"
    return (
        f"9:memory:{path}\n8:cpuset:{path}\n2:cpu,cpuacct:{path}\n1:name=systemd:{path}\n0::{path}\n",
        f"699 698 0:30 {path} {{root}}/systemd ro - cgroup cgroup rw,xattr,name=systemd\n"
        f"700 698 0:32 {path} {{root}}/cpu ro,nosuid master:9 - cgroup cgroup rw,cpu,cpuacct\n"
        f"701 698 0:38 {path} {{root}}/memory ro,nosuid master:15 - cgroup cgroup rw,memory\n",
        {f"{name.partition('.')[0]}/{name}": text for name, text in files.items()},
    )


MEMORY, CORES, THROTTLED = resources.memory_limit_bytes, resources.cpu_limit_cores, resources.cpu_throttled_seconds


@pytest.mark.parametrize(
    ("figure", "version", "files", "expected"),
    [
        (MEMORY, 2, {"memory.max": str(GIBIBYTE)}, GIBIBYTE),
        (MEMORY, 2, {"memory.max": "max"}, None),
        (MEMORY, 1, {"memory.limit_in_bytes": str(GIBIBYTE)}, GIBIBYTE),
        (MEMORY, 1, {"memory.limit_in_bytes": NO_LIMIT_V1}, None),
        (MEMORY, 2, {"memory.max": "-1"}, None),
        (CORES, 2, {"cpu.max": "50000 100000"}, 0.5),
        (CORES, 2, {"cpu.max": "max 100000"}, None),
        (CORES, 2, {"cpu.max": "50000 0"}, None),
        (CORES, 1, {"cpu.cfs_quota_us": "3000", "cpu.cfs_period_us": "10000"}, 0.3),
        (CORES, 1, {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, None),
        (THROTTLED, 1, {"cpu.stat": STAT_V1}, 12.5),
        (THROTTLED, 2, {"cpu.stat": STAT_V2}, 12.5),
    ],
)
def test_figures_are_those_of_the_workers_own_cgroup_of_either_version(
    machine: Machine, figure: Callable[[], float | None], version: int, files: dict[str, str], expected: float | None
) -> None:
    machine(*container(version, files))
    assert figure() == expected


def test_controllers_of_version_1_count_where_version_2_is_mounted_beside_them(machine: Machine) -> None:
    memberships, mounts, files = container(1, {"cpu.stat": STAT_V1, "cpu.cfs_quota_us": "50000"})
    unified = "702 698 0:25 / {root}/unified rw - cgroup2 cgroup2 rw,nsdelegate\n"
    machine(memberships, unified + mounts, files | {"unified/cpu.stat": STAT_V2.replace("12500000", "1")})
    assert resources.cpu_throttled_seconds() == 12.5


def test_pressure_is_the_containers_and_else_the_machines(machine: Machine) -> None:
    machine(*container(2, {"cpu.pressure": PRESSURE, "../proc/pressure/cpu": PRESSURE_OF_NODE}))
    assert resources.cpu_pressure_seconds() == 18.25
    machine(*container(1, {"cpu.stat": STAT_V1}))
    assert resources.cpu_pressure_seconds() == 44


def test_folder_is_found_below_a_mount_that_shows_the_whole_machine(machine: Machine) -> None:
    machine(
        "0::/heterotrain/digits-cpu-0\n",
        "30 23 0:26 / {root}/cg rw shared:4 - cgroup2 cgroup2 rw\n",
        {"cg/heterotrain/digits-cpu-0/cpu.max": "50000 100000", "cg/cpu.stat": STAT_V2},
    )
    assert resources.cpu_limit_cores() == 0.5


def test_kernel_that_tells_nothing_gives_nothing(machine: Machine) -> None:
    machine(*container(2, {}))
    assert resources.memory_bytes() is None
    assert resources.peak_memory_bytes() is None
    assert resources.children_memory_bytes() == 0
    assert resources.memory_limit_bytes() is None
    assert resources.cpu_limit_cores() is None
    assert resources.cpu_throttled_seconds() is None
    assert resources.cpu_pressure_seconds() is None
    assert resources.thread_times() is None


def test_process_without_descriptors_left_has_no_figures_of_its_children() -> None:
    script = """
import resource
from heterotrain.reporting import resources
from heterotrain.reporting.cpu_use import CpuMeter
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
assert resources.cpu_seconds() > 0
assert resources.children_memory_bytes() == 0
assert resources.thread_times() is None
assert CpuMeter().read().wait_seconds is None
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@given(
    text=st.text(max_size=200) | st.lists(FIGURES | st.text(max_size=9)).map("".join),
    version=st.sampled_from([1, 2]),
    table=st.text(max_size=200),
)
def test_no_file_of_any_content_makes_reading_fail(
    tmp_path_factory: pytest.TempPathFactory, text: str, version: int, table: str
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        root = tmp_path_factory.mktemp("machine")
        (root / "proc" / "self" / "task" / "7").mkdir(parents=True)
        for module in (resources, own):
            monkeypatch.setattr(module, "PROC", root / "proc")
        memberships, mounts, _ = container(version, {})
        surrogates = {"errors": "surrogatepass"}
        for file in ("cgroup", "mountinfo", "status", "task/7/schedstat", "task/7/children"):
            (root / "proc" / "self" / file).write_text(table, **surrogates)
        own.own_cgroup.cache_clear()
        own.own_cgroup()
        (root / "proc" / "self" / "cgroup").write_text(memberships)
        (root / "proc" / "self" / "mountinfo").write_text(mounts.format(root=root))
        for folder in ("cg", "cpu", "memory"):
            (root / folder).mkdir()
            (root / folder / "cgroup.procs").touch()
            for file in ("cpu.max", "cpu.stat", "cpu.pressure", "cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.max"):
                (root / folder / file).write_text(text, **surrogates)
        own.own_cgroup.cache_clear()
        assert own.own_cgroup() != own.NoCgroup(), "its files are read"
        figures = [
            resources.memory_bytes(),
            resources.memory_limit_bytes(),
            resources.cpu_limit_cores(),
            resources.cpu_throttled_seconds(),
            resources.cpu_pressure_seconds(),
        ]
        assert all(figure is None or figure >= 0 for figure in figures)
        assert all(min(times) >= 0 for times in (resources.thread_times() or {}).values())
    own.own_cgroup.cache_clear()


def test_every_threads_wait_for_the_cpu_is_read() -> None:
    ready, done = threading.Event(), threading.Event()

    def work() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        ready.set()
        block = b"x" * (1 << 20)
        while not done.is_set():
            hashlib.sha256(block).digest()  # without the interpreter's lock

    def delayed() -> float:
        return sum(times.delayed for times in (resources.thread_times() or {}).values())

    before = delayed()
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        ready.wait()
        begun = resources.cpu_seconds()
        while resources.cpu_seconds() < begun + 0.2:  # of CPU time, of which two threads on one CPU wait for as much
            time.sleep(0.01)
        waited = delayed() - before
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert waited > 0.05


def test_cpu_time_of_processes_that_load_data_counts() -> None:
    before = resources.cpu_seconds()
    burn = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        living = resources.cpu_seconds() - before
        child.communicate(b"\n")
    ended = resources.cpu_seconds() - before
    assert living >= 0.19
    assert ended >= living - 0.02, "it counts after its end, too"
