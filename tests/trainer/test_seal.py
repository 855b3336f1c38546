"""A peer that reaches the leader's port but does not know the job's secret can neither join nor be believed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from heterotrain import contract
from heterotrain.contract import Member, Plan, TrainingConfig
from heterotrain.groups.generation import Generation
from heterotrain.groups.membership import MembershipError, Rendezvous
from heterotrain.groups.seal import SealedStore, SealError
from heterotrain.job.worker import Worker
from trainer.gang import SECRET, Gang, free_port

OTHER = "07he2" * 8
PATIENCE_SECONDS = 60.0


@pytest.fixture
def below() -> dist.TCPStore:
    """The store that anybody reaches."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=1))


@pytest.fixture
def ours(below: dist.TCPStore) -> SealedStore:
    return SealedStore(below, SECRET)


def test_store_holds_what_is_put_there(ours: SealedStore) -> None:
    ours.set("a", b"\x00\xff")
    ours.set("b", "text")
    assert (ours.get("a"), ours.get("b")) == (b"\x00\xff", b"text")
    assert ours.check(["a", "b"])
    assert not ours.check(["a", "c"])
    ours.wait(["a", "b"])
    with pytest.raises(dist.DistStoreError):
        ours.get("c")


def test_value_is_swapped_only_against_the_expected_one(ours: SealedStore) -> None:
    assert ours.compare_set("attempt", "", "1") == b"1"
    assert ours.compare_set("attempt", "", "2") == b"1"
    assert ours.compare_set("attempt", "1", "2") == b"2"


def test_intruder_finds_nothing_by_its_name(below: dist.TCPStore, ours: SealedStore) -> None:
    ours.set("here/1.1/0", "cpu")
    assert not below.check(["here/1.1/0"])
    assert not SealedStore(below, OTHER).check(["here/1.1/0"])


def test_what_a_intruder_writes_is_not_believed(below: dist.TCPStore, ours: SealedStore) -> None:
    ours.set("attempt", "1")
    (name,) = below.list_keys()
    for forged in ("", "2", "x" * 33):
        below.set(name, forged)
        with pytest.raises(SealError, match="attempt in the leader's store was not written by a worker of this job"):
            ours.get("attempt")


def test_value_counts_for_its_own_key_only(below: dist.TCPStore, ours: SealedStore) -> None:
    ours.set("here/1.1/0", "cpu")
    ours.set("here/1.1/1", "cuda")
    first, second = below.list_keys()
    below.set(first, below.get(second))  # type: ignore[arg-type]  # bytes, though not in its types
    with pytest.raises(SealError):
        ours.get("here/1.1/0"), ours.get("here/1.1/1")


def test_guessable_secret_is_refused(below: dist.TCPStore) -> None:
    with pytest.raises(ValueError, match="a secret of 3 characters is none"):
        SealedStore(below, "abc")
    environment = {
        contract.ENV_JOB: "digits",
        contract.ENV_WORKER: "w-0",
        contract.ENV_UID: "u",
        contract.ENV_PLAN_DIR: "/plan",
        contract.ENV_CONFIG: TrainingConfig(steps=1).to_json(),
    }
    with pytest.raises(ValueError, match="HETEROTRAIN_SECRET: expected at least 16 characters, found 0"):
        Worker.from_environment({**environment, contract.ENV_SECRET: ""})
    worker = Worker.from_environment({**environment, contract.ENV_SECRET: SECRET})
    assert worker is not None
    assert worker.secret == SECRET
    assert SECRET not in repr(worker)


# --- meeting ----------------------------------------------------------------------------------------------------


def plan_of_two() -> Plan:
    address = f"127.0.0.1:{free_port()}"
    return Plan(1, 1, "step", (Member("a", "u0", address, "cpu", 8), Member("b", "u1", address, "cpu", 8)))


def meet(plan: Plan, rank: int, secret: str | None, seconds: float) -> Generation:
    rendezvous = Rendezvous(
        plan,
        rank,
        "cpu",
        deadline_seconds=PATIENCE_SECONDS,
        spare_port=None,
        check_stop=lambda: None,
        secret=secret,
    )
    try:
        return rendezvous.meet(seconds)
    finally:
        rendezvous.leave()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as made:
        yield made


def both(pool: ThreadPoolExecutor, secrets: Sequence[str | None], seconds: float) -> list[Generation]:
    """Two workers that meet, with these secrets. Raises what meeting raises."""
    plan = plan_of_two()
    meetings = [pool.submit(meet, plan, rank, secret, seconds) for rank, secret in enumerate(secrets)]
    return [meeting.result() for meeting in meetings]


@pytest.mark.parametrize("secret", [SECRET, None], ids=["secret", "older operator"])
def test_workers_of_one_secret_or_none_meet(pool: ThreadPoolExecutor, secret: str | None) -> None:
    generations = both(pool, [secret, secret], PATIENCE_SECONDS)
    tensors = [torch.ones(1), torch.ones(1)]
    sums = [made.sum_gradients(tensor) for made, tensor in zip(generations, tensors, strict=True)]
    for each in sums:
        each.wait()
    assert [tensor.item() for tensor in tensors] == [2.0, 2.0]
    for made in generations:
        made.leave()


@pytest.mark.parametrize("other", [OTHER, None], ids=["another secret", "none"])
def test_worker_that_does_not_know_the_secret_is_not_met(pool: ThreadPoolExecutor, other: str | None) -> None:
    with pytest.raises(MembershipError, match="gave up waiting for b in generation"):
        both(pool, [SECRET, other], 1.0)


def test_intruder_that_spoils_the_store_is_found_out(pool: ThreadPoolExecutor) -> None:
    plan = plan_of_two()
    host, _, port = plan.members[0].address.rpartition(":")
    leader = pool.submit(meet, plan, 0, SECRET, PATIENCE_SECONDS)
    intruder = dist.TCPStore(host, int(port), wait_for_workers=False, timeout=timedelta(seconds=PATIENCE_SECONDS))
    while not leader.done():
        for name in intruder.list_keys():
            intruder.set(name, "7")
    with pytest.raises(MembershipError, match="was not written by a worker of this job"):
        leader.result()


@pytest.mark.processes
def test_job_of_an_older_operator_trains_without_a_secret(tmp_path: Path) -> None:
    command = ["tests/trainer/scripts/train.py", "--out", str(tmp_path)]
    with Gang(tmp_path, command, (30, 34), TrainingConfig(steps=5), secret=None) as gang:
        gang.succeed()
