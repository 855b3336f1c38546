"""The contract of the port (`clusters/port.py`), which every backend meets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from heterotrain.contract import Member, Plan
from heterotrain_operator.clusters.port import PlanConflictError
from heterotrain_operator.core.model import Decision, WorkerKey, WorkerSeen
from heterotrain_operator.core.remembered.job import RestartBudget
from heterotrain_operator.core.state import Remembered
from unit.clusters.backends import BACKENDS, Harness

REAL = "local"
"""The backend whose workers are real processes: each test takes it longest, so most do so in long runs only."""

ALWAYS = {
    "test_deleted_worker_goes_and_its_name_comes_back_with_another_uid",
    "test_worker_that_ended_stays_in_sight_until_it_is_deleted",
    "test_decision_made_again_after_a_conflict_is_carried_out",
}
"""What is tried with real processes every time: how workers come, go and end, and how records conflict."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let each test have every backend."""
    real = [pytest.mark.processes, *([] if metafunc.function.__name__ in ALWAYS else [pytest.mark.long])]
    backends = [pytest.param(name, marks=real if name == REAL else ()) for name in BACKENDS]
    metafunc.parametrize("backend", backends, indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    with BACKENDS[request.param](tmp_path) as harness:
        yield harness


def create(backend: Harness, *keys: WorkerKey) -> None:
    """Observe, create and let them run."""
    backend.observe()
    backend.act(Decision("Created", "", create=keys), Remembered.initial())
    backend.settle()


def workers(backend: Harness) -> dict[str, WorkerSeen]:
    return {worker.name: worker for worker in backend.observe()[0].workers}


def plan_of(version: int, *members: WorkerSeen) -> Plan:
    seats = tuple(Member(worker.name, worker.uid, "10.0.0.1:29500", worker.group, 16) for worker in members)
    return Plan(version, 1, "step", seats)


def test_worker_is_seen_under_the_identity_that_it_was_created_with(backend: Harness) -> None:
    seen, memory = backend.observe()
    assert (seen.workers, seen.plan, memory) == ((), None, None), "at first there is nothing"
    create(backend, *backend.keys)
    found = workers(backend)
    assert {(each.group, each.index, each.name) for each in found.values()} == {
        (key.group, key.index, key.name) for key in backend.keys
    }
    assert {each.phase for each in found.values()} == {"Running"}
    assert len({each.uid for each in found.values()} - {""}) == 2


def test_running_worker_has_an_address_of_its_own_and_observing_changes_nothing(backend: Harness) -> None:
    create(backend, *backend.keys)
    assert backend.observe() == backend.observe()
    first = {name: each.address for name, each in workers(backend).items()}
    assert len(set(first.values())) == 2
    for host, colon, port in (address.rpartition(":") for address in first.values()):
        assert host
        assert colon
        assert 0 < int(port) < 2**16
    assert {each.metrics for each in workers(backend).values()} == {None}, "nobody can read these"


def test_creating_what_is_there_changes_nothing(backend: Harness) -> None:
    create(backend, *backend.keys)
    before = workers(backend)
    create(backend, *backend.keys)
    assert {name: each.uid for name, each in workers(backend).items()} == {
        name: each.uid for name, each in before.items()
    }


def test_deleted_worker_goes_and_its_name_comes_back_with_another_uid(backend: Harness) -> None:
    create(backend, *backend.keys)
    first, other = backend.keys
    before = workers(backend)
    backend.act(Decision("Restarting", "", delete=(first.name,)), Remembered.initial())
    backend.settle()
    assert set(workers(backend)) == {other.name}
    create(backend, first)
    after = workers(backend)
    assert after[first.name].uid != before[first.name].uid
    assert after[other.name].uid == before[other.name].uid


def test_deleting_what_is_gone_or_going_changes_nothing(backend: Harness) -> None:
    create(backend, *backend.keys)
    first, other = backend.keys
    for _ in range(3):
        backend.observe()
        backend.act(Decision("Restarting", "", delete=(first.name, "never-there")), Remembered.initial())
    backend.settle()
    backend.observe()
    backend.act(Decision("Restarting", "", delete=(first.name,)), Remembered.initial())
    assert set(workers(backend)) == {other.name}


def test_no_two_workers_of_one_name_exist_at_once(backend: Harness) -> None:
    create(backend, *backend.keys)
    first = backend.keys[0]
    backend.observe()
    backend.act(Decision("Restarting", "", delete=(first.name,), create=(first,)), Remembered.initial())
    names = [worker.name for worker in backend.observe()[0].workers]
    assert sorted(names) == sorted(set(names))
    backend.settle()
    create(backend, first)
    assert set(workers(backend)) == {key.name for key in backend.keys}


def test_worker_that_ended_stays_in_sight_until_it_is_deleted(backend: Harness) -> None:
    create(backend, *backend.keys)
    first = backend.keys[0]
    backend.kill(first)
    for _ in range(2):
        ended = workers(backend)[first.name]
        assert (ended.phase, ended.exit_code, ended.finished) == ("Failed", 137, False)
    backend.act(Decision("Restarting", "", delete=(first.name,)), Remembered.initial())
    backend.settle()
    assert first.name not in workers(backend)


def test_plan_and_memory_are_observed_as_they_were_stored_by_whoever_starts_later_too(backend: Harness) -> None:
    create(backend, *backend.keys)
    plan, memory = plan_of(1, *workers(backend).values()), Remembered(plan_version=1, generation=1)
    backend.act(Decision("Running", "", plan=plan), memory)
    seen, remembered = backend.observe()
    assert (seen.plan, remembered) == (plan, memory)
    memory = Remembered(plan_version=1, budget=RestartBudget(restarts=3))
    backend.act(Decision("Running", ""), memory)
    seen, remembered = backend.observe()
    assert (seen.plan, remembered) == (plan, memory), "without a plan the stored one stays"
    seen, remembered = backend.observe_as_another()
    assert (seen.plan, remembered) == (plan, memory)


def test_damaged_plan_counts_as_none(backend: Harness) -> None:
    create(backend, *backend.keys)
    backend.act(Decision("Running", "", plan=plan_of(1, *workers(backend).values())), Remembered(plan_version=1))
    backend.damage_plan()
    assert backend.observe()[0].plan is None


def test_decision_upon_a_record_that_somebody_else_has_replaced_leaves_no_trace(backend: Harness) -> None:
    first, other = backend.keys
    create(backend, first)
    before = workers(backend)
    theirs = plan_of(7, *before.values())
    backend.write_as_another(theirs, Remembered(plan_version=7, budget=RestartBudget(restarts=1)))
    ours = Decision("Running", "", plan=plan_of(2, *before.values()), create=(other,), delete=(first.name,))
    with pytest.raises(PlanConflictError):
        backend.act(ours, Remembered(plan_version=2))
    backend.settle()
    seen, _ = backend.observe()
    assert seen.plan == theirs
    assert {worker.name: worker.uid for worker in seen.workers} == {first.name: before[first.name].uid}


def test_decision_made_again_after_a_conflict_is_carried_out(backend: Harness) -> None:
    first, other = backend.keys
    create(backend, first)
    before = workers(backend)
    backend.write_as_another(plan_of(7, *before.values()), Remembered(plan_version=7))
    ours = plan_of(8, *before.values())
    with pytest.raises(PlanConflictError):
        backend.act(Decision("Running", "", plan=ours), Remembered(plan_version=8))
    backend.observe()
    backend.act(Decision("Running", "", plan=ours, create=(other,)), Remembered(plan_version=8))
    backend.settle()
    assert backend.observe()[0].plan == ours
    assert set(workers(backend)) == {first.name, other.name}
