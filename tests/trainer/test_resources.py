"""Limits are read from either version of cgroups, mounted as in a container."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heterotrain.reporting import resources

GIBIBYTE = 1 << 30
NO_LIMIT_V1 = "9223372036854771712"

Machine = Callable[..., None]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Sets up a process in a cgroup of version 1 or 2 whose files hold this."""

    def make(version: int, **files: str) -> None:
        path, root = "/kubepods/pod/trainer", "/kubepods/pod/trainer"
        kind, controllers, options = ("cgroup2", "", "rw") if version == 2 else ("cgroup", "memory", "rw,memory")
        (tmp_path / "cgroup").write_text(f"4:{controllers}:{path}\n")
        (tmp_path / "mountinfo").write_text(f"30 23 0:26 {root} {tmp_path} ro - {kind} {kind} {options}\n")
        for name, text in files.items():
            (tmp_path / name.replace("__", ".")).write_text(text + "\n")
        resources._folder.cache_clear()

    monkeypatch.setattr(resources, "PROC_SELF", tmp_path)
    yield make
    resources._folder.cache_clear()


@pytest.mark.parametrize(
    ("version", "files", "limit"),
    [
        (2, {"memory__max": str(GIBIBYTE)}, GIBIBYTE),
        (2, {"memory__max": "max"}, None),
        (1, {"memory__limit_in_bytes": str(GIBIBYTE)}, GIBIBYTE),
        (1, {"memory__limit_in_bytes": NO_LIMIT_V1}, None),
        (1, {}, None),
        (2, {"memory__max": "much"}, None),
    ],
)
def test_memory_limit_is_that_of_the_workers_own_cgroup(
    machine: Machine, version: int, files: dict[str, str], limit: float | None
) -> None:
    machine(version, **files)
    assert resources.memory_limit_bytes() == limit


def test_kernel_that_tells_nothing_gives_nothing(machine: Machine) -> None:
    machine(2)
    assert resources.memory_bytes() is None
    assert resources.peak_memory_bytes() is None
    assert resources.children_memory_bytes() == 0
    assert resources.cpu_limit_cores() is None
