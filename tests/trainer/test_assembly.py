"""Workers find one another, and whoever does not know the job's secret is none. Real sockets, threads instead of
processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch

from heterotrain import contract
from heterotrain.contract import Member, Plan, TrainingConfig
from heterotrain.groups.assembly import Assembly, MembershipError
from heterotrain.groups.convening.protocol import Form
from heterotrain.groups.convening.worker_state import Rules
from heterotrain.groups.generation import Generation
from heterotrain.groups.making import Maker, Traits
from heterotrain.job.worker import Worker
from trainer.gang import SECRET, free_port

OTHER = "07he2" * 8
PATIENCE_SECONDS = 60.0


def plan_of(workers: int) -> Plan:
    members = [Member(f"w-{n}", f"u{n}", f"127.0.0.1:{free_port()}", "cpu", 8) for n in range(workers)]
    return Plan(1, 1, "step", tuple(members))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def assemble(stack: ExitStack, plan: Plan, rank: int, secret: str | None, *, all_needed: bool = True) -> Assembly:
    rules = Rules(lambda uids: plan.to_json(), all_needed=all_needed)
    made = Assembly("job", plan.members[rank], rules, secret)
    stack.callback(made.close)
    made.begin(plan, starts=True)
    return made


def form(assembly: Assembly, seconds: float = PATIENCE_SECONDS) -> tuple[Form, str]:
    return assembly.await_form(time.monotonic() + seconds, lambda: None)


def make(assembly: Assembly, found: tuple[Form, str], plan: Plan, traits: Traits | None = None) -> Generation:
    attempt, convener = found
    maker = Maker(traits or {"device": "cpu"}, lambda *_: None, None, "gloo", lambda: False)
    making = maker.begin(plan, attempt.roster.number, attempt.roster.members.index(assembly.own.uid))
    store = assembly.store(attempt.roster.number, len(plan.members), convener, PATIENCE_SECONDS)
    making.meet_and_make(store)
    assembly.made(attempt.roster.number)
    return making.generation


@pytest.mark.parametrize("secret", [SECRET, None], ids=["secret", "older operator"])
def test_workers_of_one_secret_or_none_meet(stack: ExitStack, secret: str | None) -> None:
    plan = plan_of(3)
    assemblies = [assemble(stack, plan, rank, secret) for rank in range(3)]

    def train(assembly: Assembly) -> float:
        generation = make(assembly, form(assembly), plan)
        tensor = torch.ones(1)
        generation.sum_gradients(tensor).wait()
        generation.leave()
        return tensor.item()

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(train, assemblies)) == [3.0] * 3


@pytest.mark.parametrize("other", [OTHER, None], ids=["another secret", "none"])
def test_worker_that_does_not_know_the_secret_is_not_met(stack: ExitStack, other: str | None) -> None:
    plan = plan_of(2)
    ours, _ = assemble(stack, plan, 0, SECRET), assemble(stack, plan, 1, other)
    with pytest.raises(MembershipError, match=r"gave up waiting for w-1 in attempt 1\.1"):
        form(ours, 2.0)


@pytest.mark.parametrize("ended", [0, 2], ids=["the first", "another"])
def test_a_member_that_ended_is_waited_for_where_all_are_needed_but_for_the_first(stack: ExitStack, ended: int) -> None:
    """The operator may learn much later that a machine is lost, and whoever gave up before would be taken for the
    cause."""
    plan = plan_of(3)
    assemblies = [assemble(stack, plan, rank, SECRET) for rank in range(3)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda each: make(each, form(each), plan).leave(), assemblies))
        assemblies[ended].close()
        left = [each for rank, each in enumerate(assemblies) if rank != ended]
        for each in left:
            each.broken(0)
        for waiting in [pool.submit(form, each, PATIENCE_SECONDS if ended == 0 else 3.0) for each in left]:
            with pytest.raises(MembershipError, match="w-0 has ended" if ended == 0 else "gave up waiting for"):
                waiting.result()


ENVIRONMENT = {
    contract.ENV_JOB: "digits",
    contract.ENV_WORKER: "w-0",
    contract.ENV_UID: "u",
    contract.ENV_PLAN_DIR: "/plan",
    contract.ENV_CONFIG: TrainingConfig(steps=1).to_json(),
}


def test_guessable_secret_is_refused(stack: ExitStack) -> None:
    with pytest.raises(ValueError, match="a secret of 3 characters is none"):
        assemble(stack, plan_of(1), 0, "abc")
    with pytest.raises(ValueError, match="HETEROTRAIN_SECRET: expected at least 16 characters, found 0"):
        Worker.from_environment({**ENVIRONMENT, contract.ENV_SECRET: ""})
    worker = Worker.from_environment({**ENVIRONMENT, contract.ENV_SECRET: SECRET})
    assert worker is not None
    assert worker.secret == SECRET
    assert SECRET not in repr(worker)


def test_members_change_unless_the_environment_says_that_they_stay() -> None:
    for value, elastic in ((None, True), ("", True), ("1", True), ("0", False)):
        asked = {} if value is None else {contract.ENV_ELASTIC: value}
        worker = Worker.from_environment({**ENVIRONMENT, **asked})
        assert worker is not None
        assert worker.elastic is elastic
    with pytest.raises(ValueError, match="HETEROTRAIN_ELASTIC: expected 0 or 1, found 'true'"):
        Worker.from_environment({**ENVIRONMENT, contract.ENV_ELASTIC: "true"})
