"""Whoever comes, goes, is slow, late or hostile: each sample is applied once, and somebody may always go on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterotrain.asynchronous.ledger import Ledger, LedgerError
from heterotrain.asynchronous.service import Accepted, Bound, Grant, Refused, Service, Update
from heterotrain.data.sampler import CARRY, DROP, PARTIAL, Position, Rules, Share


@dataclass
class Job:
    """A server, and workers that do as they are granted; the next one to deliver is chosen by the test."""

    rules: Rules
    bound: Bound
    batches: dict[str, int]
    life: int = 0
    granted: dict[str, Grant] = field(default_factory=dict)
    seen: Counter[tuple[int, int]] = field(default_factory=Counter)
    applied: list[tuple[str, Share, int, int]] = field(default_factory=list)  # who, what, on which version, as which

    def __post_init__(self) -> None:
        self.service = Service(Ledger(self.rules), self.bound, "0")
        self.service.follow(self.batches)

    def enter(self, worker: str) -> None:
        self.granted.pop(worker, None)
        self.service.enter(worker, 0.0)
        self.grant()

    def leave(self, worker: str) -> None:
        self.granted.pop(worker, None)
        self.service.leave(worker)
        self.grant()

    def follow(self, batches: dict[str, int]) -> None:
        self.batches = batches
        self.service.follow(batches)
        self.granted = {worker: grant for worker, grant in self.granted.items() if worker in batches}
        self.grant()

    def restart(self) -> None:
        """The server dies, and its successor goes on from its checkpoint."""
        ledger = Ledger.of(self.service.ledger.document(), self.rules)
        self.life += 1
        self.service = Service(ledger, self.bound, str(self.life), self.service.version)
        self.service.follow(self.batches)
        self.granted.clear()

    def grant(self) -> None:
        for grant in self.service.grants(0.0):
            if grant.lease is not None:
                self.granted[grant.worker] = grant

    def deliver(self, worker: str) -> Accepted | Refused:
        grant = self.granted.pop(worker)
        assert grant.lease is not None
        verdict = self.service.judge(Update(worker, str(self.life), grant.lease.number, grant.version), 0.0)
        if isinstance(verdict, Accepted):
            self.service.applied(verdict, 0.0)
            self.applied.append((worker, verdict.lease.share, grant.version, self.service.version))
            epoch, start, stop = verdict.lease.share
            for place in range(start, stop):
                self.seen[epoch + place // self.rules.length, place % self.rules.length] += 1
        self.grant()
        return verdict

    def run(self, order: list[str] | None = None) -> None:
        """Deliver in this order, over and over, or by names, until all is applied."""
        turn = 0
        while not self.service.is_over:
            names = [name for name in order or sorted(self.batches) if name in self.granted]
            assert names, f"nobody may go on: {self.service.workers}, {self.service.ledger.document()}"
            self.deliver(names[turn % len(names)])
            turn += 1

    def assert_each_once(self) -> None:
        epochs = self.rules.epochs or 0
        assert self.seen == {(epoch, place): 1 for epoch in range(epochs) for place in range(self.rules.length)}


BOUNDS = st.sampled_from([Bound(), Bound(0), Bound(1), Bound(3), Bound(1, "Discard"), Bound(4, "Discard")])
NAMES = ["a", "b", "c", "d"]


@settings(max_examples=50)
@given(st.data(), BOUNDS, st.sampled_from([PARTIAL, CARRY]), st.sampled_from([1, 2]))
def test_each_sample_is_applied_once_and_somebody_may_always_go_on(
    data: st.DataObject, bound: Bound, last_step: str, least: int
) -> None:
    rules = Rules(data.draw(st.integers(2, 60)), least, last_step, epochs=data.draw(st.integers(1, 3)))
    job = Job(rules, bound, {"a": 4, "b": 9})
    for _ in range(data.draw(st.integers(0, 60))):
        there = sorted(job.service.workers)
        what = data.draw(st.sampled_from(["deliver", "deliver", "deliver", "enter", "leave", "follow", "restart"]))
        if what == "deliver" and job.granted:
            job.deliver(data.draw(st.sampled_from(sorted(job.granted))))
        elif what == "enter":
            job.enter(data.draw(st.sampled_from(sorted(job.batches))))
        elif what == "leave" and there:
            job.leave(data.draw(st.sampled_from(there)))
        elif what == "follow":
            first, *others = data.draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
            batches = {first: data.draw(st.integers(1, 12))} | {name: data.draw(st.integers(0, 12)) for name in others}
            job.follow(batches)
        elif what == "restart":
            job.restart()
    for worker in job.batches:
        if worker not in job.service.workers:
            job.enter(worker)
    job.run()
    job.assert_each_once()
    assert all(share.stop - share.start >= min(least, rules.length) for _, share, _, _ in job.applied)
    assert [grant.lease for grant in job.service.grants(0.0)] == []


def test_nobody_is_more_than_the_bound_ahead_of_the_slowest() -> None:
    job = Job(Rules(1000, epochs=1), Bound(2), {"fast": 5, "slow": 5})
    for worker in job.batches:
        job.enter(worker)
    for _ in range(3):
        job.deliver("fast")
    assert "fast" not in job.granted
    job.deliver("slow")
    assert "fast" in job.granted
    job.run()
    job.assert_each_once()


def test_nobody_waits_until_a_worker_that_was_without_samples_has_caught_up() -> None:
    job = Job(Rules(1000, epochs=1), Bound(2), {"a": 5, "b": 5})
    job.enter("a")
    job.enter("b")
    job.follow({"a": 5, "b": 0})
    job.deliver("b")
    for _ in range(20):
        job.deliver("a")
    job.follow({"a": 5, "b": 5})
    for _ in range(3):
        job.deliver("a")
    assert "a" not in job.granted
    job.deliver("b")
    assert "a" in job.granted


def test_running_statistics_follow_a_worker_by_its_batch_also_where_the_samples_end() -> None:
    alone = Service(Ledger(Rules(100, epochs=1)), Bound(), "0")
    alone.follow({"a": 32})
    assert [alone.share_of("a", samples) for samples in (32, 4)] == [1.0, 1.0]
    alone.follow({"a": 30, "b": 10, "c": 0})
    assert [alone.share_of(*each) for each in (("a", 30), ("b", 3), ("c", 20), ("c", 99))] == [0.75, 0.25, 0.5, 1.0]


def test_with_a_bound_of_nothing_a_round_is_computed_on_one_version_and_has_the_samples_of_a_step() -> None:
    job = Job(Rules(70, epochs=2), Bound(0), {"a": 2, "b": 5})
    job.enter("b")
    assert not job.granted
    job.enter("a")
    job.run(["b", "a"])
    rounds = [job.applied[at : at + 2] for at in range(0, len(job.applied), 2)]
    assert len(rounds) == 20
    for number, each in enumerate(rounds):
        assert {version for _, _, version, _ in each} == {2 * number}
        cursor = number % 10 * 7
        epoch = number // 10
        assert sorted(share for _, share, _, _ in each) == [
            Share(epoch, cursor, cursor + 2),
            Share(epoch, cursor + 2, cursor + 7),
        ]


def test_nobody_begins_before_all_are_there_or_have_had_time_enough() -> None:
    job = Job(Rules(100, epochs=1), Bound(), {"a": 5, "b": 5, "c": 0})
    job.enter("a")
    assert not job.granted and job.service.missing() == ["b"]
    job.enter("b")
    assert job.granted.keys() == {"a", "b"}
    job.deliver("a")
    job.restart()
    job.enter("b")
    assert job.granted.keys() == {"b"}, "a server that goes on waits for nobody"
    late = Job(Rules(100, epochs=1), Bound(), {"a": 5, "b": 5})
    late.enter("a")
    late.service.begin()
    late.grant()
    assert late.granted.keys() == {"a"}


def test_late_update_is_not_applied_and_nobody_waits_for_it() -> None:
    job = Job(Rules(60, epochs=1), Bound(1, "Discard"), {"fast": 5, "slow": 5})
    for worker in job.batches:
        job.enter(worker)
    for _ in range(4):
        job.deliver("fast")
    verdict = job.deliver("slow")
    assert verdict == Refused("it is late", late=True)
    assert isinstance(job.deliver("slow"), Accepted)  # it has caught up
    job.run()
    job.assert_each_once()


def test_late_worker_that_alone_has_samples_left_ends_the_job() -> None:
    job = Job(Rules(25, epochs=1), Bound(1, "Discard"), {"fast": 5, "slow": 5})
    for worker in job.batches:
        job.enter(worker)
    while "fast" in job.granted:
        job.deliver("fast")
    assert isinstance(job.deliver("slow"), Refused)
    job.run(["slow", "fast"])
    job.assert_each_once()


def test_at_the_end_a_fast_worker_computes_what_a_slow_one_has_not_begun() -> None:
    job = Job(Rules(40, epochs=1), Bound(), {"fast": 10, "slow": 10})
    for worker in job.batches:
        job.enter(worker)
    for _ in range(3):
        job.deliver("fast")
    assert "fast" not in job.granted
    job.deliver("slow")
    job.assert_each_once()


def test_what_a_worker_without_samples_had_ahead_goes_out_at_once() -> None:
    job = Job(Rules(100, epochs=9), Bound(), {"a": 10, "b": 10})
    job.enter("a")
    job.enter("b")
    assert job.granted["b"].ahead is not None
    held = job.granted["b"].ahead.share
    job.follow({"a": 10, "b": 0})
    job.deliver("b")
    job.deliver("a")  # it computes what it had ahead, and loads
    assert job.granted["a"].ahead is not None and job.granted["a"].ahead.share == held


@pytest.mark.parametrize(
    ("update", "why"),
    [
        (Update("a", "0", 1, 0), "an earlier life"),
        (Update("c", "1", 1, 0), "not entered"),
        (Update("a", "1", 9, 0), "never given"),
        (Update("a", "1", 2, 0), "another worker's"),
        (Update("a", "1", 3, 0), "not the one to compute now"),
        (Update("a", "1", 1, 5), "computed on version 5, where 0"),
    ],
)
def test_update_that_does_not_fit_is_refused_and_changes_nothing(update: Update, why: str) -> None:
    service = Service(Ledger(Rules(100, epochs=1)), Bound(), "1")
    service.follow({"a": 5, "b": 5})
    service.enter("a", 0.0)
    service.enter("b", 0.0)
    service.grants(0.0)
    before = service.ledger.document()
    verdict = service.judge(update, 1.0)
    assert isinstance(verdict, Refused) and not verdict.late
    assert why in verdict.why
    assert (service.ledger.document(), service.version) == (before, 0)


def test_update_is_applied_once() -> None:
    job = Job(Rules(100, epochs=1), Bound(), {"a": 5})
    job.enter("a")
    grant = job.granted["a"]
    assert grant.lease is not None
    job.deliver("a")
    again = job.service.judge(Update("a", "0", grant.lease.number, grant.version), 0.0)
    assert isinstance(again, Refused) and "committed" in again.why


def test_worker_learns_the_final_parameters_when_the_job_ends_before_its_samples() -> None:
    job = Job(Rules(100, steps=2), Bound(), {"a": 5, "b": 5})
    job.enter("a")
    job.enter("b")
    job.deliver("a")
    job.service.finish()
    grant = job.granted["b"]
    assert grant.lease is not None
    assert isinstance(job.service.judge(Update("b", "0", grant.lease.number, grant.version), 0.0), Refused)
    assert job.service.grants(0.0) == [Grant("b", 1, None)]


def test_time_that_a_worker_waits_for_its_grant_is_counted() -> None:
    service = Service(Ledger(Rules(100, epochs=1)), Bound(0), "1")
    service.follow({"a": 5, "b": 5})
    service.enter("a", 1.0)
    assert service.grants(1.0) == []
    service.enter("b", 3.0)
    service.grants(3.5)
    assert {name: each.waited for name, each in service.workers.items()} == {"a": 2.5, "b": 0.5}


@pytest.mark.parametrize(
    "document",
    [
        None,
        {"epoch": 0, "cursor": 10, "ranges": []},
        {"epoch": -1, "cursor": 0, "ranges": []},
        {"epoch": 0, "cursor": 0, "ranges": {}},
        {"epoch": 0, "cursor": 5, "ranges": [[0, 3]]},
        {"epoch": 0, "cursor": 5, "ranges": [[0, 3, 3]]},
        {"epoch": 0, "cursor": 5, "ranges": [[0, 3, 6]]},
        {"epoch": 0, "cursor": 5, "ranges": [[0, 0, 3], [0, 2, 5]]},
        {"epoch": 0, "cursor": 5, "ranges": [[True, 0, 3]]},
    ],
)
def test_document_that_is_no_ledger_is_refused(document: object) -> None:
    with pytest.raises(LedgerError, match=r"^ledger: "):
        Ledger.of(document, Rules(10, epochs=2))


def test_job_that_drops_samples_has_no_ledger() -> None:
    with pytest.raises(ValueError, match=r"^last_step: Drop"):
        Ledger(Rules(10, last_step=DROP, epochs=1), Position())
