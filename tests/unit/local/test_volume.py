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


def test_volume_is_laid_out_as_the_kubelets_and_shows_workers_the_plan_alone(tmp_path: Path) -> None:
    volume = PlanVolume(tmp_path / "plan")
    assert volume.read() == Stored()
    early = volume.write(None, None, "early")
    assert volume.read() == Stored(early, None, "early"), "memory before the first plan"
    visible = volume.directory / PLAN_FILE
    assert not visible.exists()

    version = volume.write(early, plan(1), "first")
    assert visible.readlink() == Path(DATA) / PLAN_FILE
    assert str((volume.directory / DATA).readlink()) == version
    assert version.startswith("..2")
    assert not (volume.directory / version).is_symlink()
    assert (volume.directory / version / STATE_FILE).read_text() == "first"
    assert parse_plan(visible.read_text()) == plan(1)
    assert [entry.name for entry in volume.directory.iterdir() if not entry.name.startswith("..")] == [PLAN_FILE]

    before = visible.stat()
    second = volume.write(version, None, "second")
    after = visible.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns), "the same file"
    assert volume.read() == Stored(second, plan(1), "second")


def test_write_upon_an_outdated_observation_conflicts_and_changes_nothing(tmp_path: Path) -> None:
    volume = PlanVolume(tmp_path)
    observed = volume.read().version
    current = volume.write(observed, plan(1), "a")
    with pytest.raises(PlanConflictError):
        PlanVolume(tmp_path).write(observed, plan(2), "b")
    assert volume.read() == Stored(current, plan(1), "a")


def read_for_ever(folder: Path, stop: Event, ready: Event, results: multiprocessing.SimpleQueue[list[int]]) -> None:
    versions = []
    while not stop.is_set():
        seen = parse_plan((folder / PLAN_FILE).read_bytes())
        assert {member.batch_size for member in seen.members} == {seen.version}
        versions.append(seen.version)
        ready.set()
    results.put(versions)


def test_concurrent_reader_never_sees_a_torn_or_older_plan_and_old_ones_do_not_pile_up(tmp_path: Path) -> None:
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
    assert len(list(tmp_path.glob("..2*"))) == 2  # the newest, and the one that readers may still be in
