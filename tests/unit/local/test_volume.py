"""The plan's volume is replaced as the kubelet does it, and keeps plan and memory under one precondition."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from heterotrain.contract import PLAN_FILE, Member, Plan, parse_plan
from heterotrain_operator.clusters.local.volume import DATA, STATE_FILE, PlanVolume, Stored
from heterotrain_operator.clusters.port import PlanConflictError


def plan(version: int, members: int = 2) -> Plan:
    workers = (Member(f"w{rank}", f"u{rank}", "127.0.0.1:1", "cpu", version) for rank in range(members))
    return Plan(version, 1, "step", tuple(workers))


def test_an_empty_volume_holds_nothing(tmp_path: Path) -> None:
    assert PlanVolume(tmp_path / "plan").read() == Stored()


def test_workers_see_the_plan_and_not_the_memory(tmp_path: Path) -> None:
    volume = PlanVolume(tmp_path)
    volume.write(None, plan(1), "{}")
    assert parse_plan((tmp_path / PLAN_FILE).read_text()) == plan(1)
    assert [entry.name for entry in tmp_path.iterdir() if not entry.name.startswith("..")] == [PLAN_FILE]


def test_layout_is_that_of_the_kubelet(tmp_path: Path) -> None:
    volume = PlanVolume(tmp_path)
    version = volume.write(None, plan(1), "{}")
    assert (tmp_path / PLAN_FILE).readlink() == Path(DATA) / PLAN_FILE
    assert str((tmp_path / DATA).readlink()) == version
    assert version.startswith("..2")
    assert not (tmp_path / version).is_symlink()


def test_memory_before_the_first_plan(tmp_path: Path) -> None:
    volume = PlanVolume(tmp_path)
    version = volume.write(None, None, "early")
    assert volume.read() == Stored(version, None, "early")
    assert not (tmp_path / PLAN_FILE).exists()


def test_a_plan_stays_the_same_file_while_only_memory_changes(tmp_path: Path) -> None:
    volume = PlanVolume(tmp_path)
    first = volume.write(None, plan(1), "a")
    before = (tmp_path / PLAN_FILE).stat()
    second = volume.write(first, None, "b")
    after = (tmp_path / PLAN_FILE).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert volume.read() == Stored(second, plan(1), "b")


def test_a_write_upon_an_outdated_observation_conflicts_and_changes_nothing(tmp_path: Path) -> None:
    volume = PlanVolume(tmp_path)
    observed = volume.read().version
    current = volume.write(observed, plan(1), "a")
    with pytest.raises(PlanConflictError):
        PlanVolume(tmp_path).write(observed, plan(2), "b")
    assert volume.read() == Stored(current, plan(1), "a")


def test_old_versions_do_not_pile_up(tmp_path: Path) -> None:
    volume = PlanVolume(tmp_path)
    version = None
    for number in range(1, 20):
        version = volume.write(version, plan(number), "")
    assert len(list(tmp_path.glob("..2*"))) == 2  # the newest, and the one that readers may still be in


def read_for_ever(folder: Path, stop: Event, ready: Event, results: multiprocessing.SimpleQueue[list[int]]) -> None:
    versions = []
    while not stop.is_set():
        seen = parse_plan((folder / PLAN_FILE).read_bytes())
        assert {member.batch_size for member in seen.members} == {seen.version}
        versions.append(seen.version)
        ready.set()
    results.put(versions)


def test_a_concurrent_reader_never_sees_a_torn_or_older_plan(tmp_path: Path) -> None:
    volume = PlanVolume(tmp_path)
    version = volume.write(None, plan(1, members=200), "")
    context = multiprocessing.get_context("spawn")
    stop, ready, results = context.Event(), context.Event(), context.SimpleQueue()
    reader = context.Process(target=read_for_ever, args=(tmp_path, stop, ready, results))
    reader.start()
    assert ready.wait(60)
    for number in range(2, 100):
        version = volume.write(version, plan(number, members=200), "")
    stop.set()
    reader.join(60)
    assert reader.exitcode == 0
    versions = results.get()
    assert versions == sorted(versions)


def test_plan_and_memory_are_read_as_of_one_version(tmp_path: Path) -> None:
    volume = PlanVolume(tmp_path)
    version = volume.write(None, plan(3), "three")
    assert (tmp_path / version / STATE_FILE).read_text() == "three"
    assert volume.read() == Stored(version, plan(3), "three")
