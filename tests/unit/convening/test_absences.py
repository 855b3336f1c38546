"""Members that were gone for a moment, were late, or were stopped themselves."""

from __future__ import annotations

import pytest

from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.worker_state import Phase, may_commit
from unit.convening.job import job_of
from unit.convening.workers import ABC, FIRST, NEXT, Worker, broken, meet, training

# --- who comes and goes -----------------------------------------------------------------------------------------------


def received_from_b_alone(seconds: float = 4.9) -> Worker:
    """The first of three, whose attempt breaks after it has heard nothing of the third for so long."""
    worker = training("a", "abc")
    for second in range(1, int(seconds) + 1):
        worker.receive("b", p.Beat(FIRST), float(second), echo=None)
    worker.take(p.Broken(7), seconds)
    return worker.receive("b", meet("b", worker.state.promised, ABC))


def test_member_that_was_gone_and_is_there_for_a_moment_alone_holds_nobody_up():
    """Whoever makes groups with it waits for them to fail, and then it may be heard for a moment again."""
    worker = received_from_b_alone().receive("c", meet("c", NEXT, ABC))
    assert not worker.forms(), "it may be back"
    worker.tick_until(6.0)
    assert [each.roster.members for each in worker.forms()] == [("a", "b")]


def test_nobody_is_bound_to_a_member_that_was_there_for_a_moment_alone():
    worker = received_from_b_alone().receive("c", meet("c", NEXT, ABC))
    assert worker.sent("c")
    assert all(each.echo is None for each in worker.sent("c"))


def test_member_that_is_back_trains_with_the_others_once_something_came_again():
    worker = received_from_b_alone().receive("c", meet("c", NEXT, ABC))
    worker.take(p.Connected("c"))
    worker.tick_until(5.5)
    assert any(isinstance(each.message, p.Call) for each in worker.all if isinstance(each, p.Send) and each.uid == "c")
    worker.receive("c", meet("c", NEXT, ABC)).tick_until(6.0)
    assert [each.roster.members for each in worker.forms()] == [("a", "b", "c")]


# --- who was late, or away --------------------------------------------------------------------------------------------


def test_worker_that_was_late_itself_takes_nobody_for_silent():
    worker = training("a", "ab").sleep_until(4.0).tick_until(8.0)
    assert worker.state.phase is Phase.TRAINING, "it has listened for 4 s"
    assert worker.tick_until(10.5).state.phase is Phase.BREAKING


def test_only_member_that_was_away_trains_on():
    """No attempt is formed without it, so there is nobody whose word it could wait for."""
    worker = training("a", "a")
    assert not may_commit(worker.state, 60.0), "before it has noticed"
    worker.sleep_until(60.0)
    assert may_commit(worker.state, worker.now)
    assert not worker.does(p.Cut)


def test_last_that_lives_was_away_and_forms_the_next_attempt_alone():
    worker = training("c", "abc").take(p.Committed(8, 1.0), 2.0).take(p.Committed(9, 2.5), 3.0).take(p.Broken(9))
    worker.take(p.Refused("a"), 3.1).take(p.Refused("b"), 3.1)
    first = worker.forms()[0].roster
    worker.sleep_until(60.0).take(p.MakingFailed(first.number)).tick_until(70.0)
    assert [each.roster.members for each in worker.forms()[1:]] == [("c",)], "they had agreed to nothing without it"


def test_first_of_two_that_was_away_goes_on_alone_once_a_newer_plan_names_it():
    """The job may have begun again elsewhere from a checkpoint; nobody is left to tell it."""
    worker = training("a", "ab").sleep_until(60.0).take(p.Broken(7)).take(p.Refused("b")).tick_until(90.0)
    assert not worker.forms()
    worker.take(p.Plan(2, ("a",)), 91.0).tick_until(93.0)
    assert worker.forms()


def test_member_that_was_away_commits_once_a_peer_has_answered_that_it_is_still_one():
    worker = training("b", "abc").sleep_until(60.0)
    assert [each.message for each in worker.sent("a")] == [p.Beat(FIRST)], "at once"
    assert not may_commit(worker.state, worker.now)
    worker.receive("a", p.Alive(FIRST), 60.1, echo=50.0)
    assert not may_commit(worker.state, worker.now), "this was on its way while it was stopped"
    worker.receive("a", p.Alive(FIRST), 60.2, echo=60.0)
    assert may_commit(worker.state, worker.now)
    assert not worker.does(p.Cut)


def test_member_that_was_away_and_that_nobody_answers_leaves_its_attempt():
    worker = training("b", "abc").sleep_until(60.0).tick_until(67.0)
    assert worker.state.phase is Phase.BREAKING


@pytest.mark.parametrize("seconds", [6.0, 40.0])
def test_workers_that_were_all_stopped_together_go_on_in_the_same_attempt(seconds: float):
    job = job_of(3)
    attempts, before = job.attempts, job.highest
    for machine in job.machines.values():
        job.stop(machine)
    job.run(job.now + seconds)
    for machine in job.machines.values():
        job.go_on(machine)
    assert job.run(job.now + 10.0, lambda: job.highest >= before + 3)
    assert (job.attempts, job.interventions) == (attempts, 0)


def test_job_of_one_worker_that_was_stopped_goes_on_as_if_nothing_had_been():
    job = job_of(1)
    attempts, before = job.attempts, job.highest
    job.stop(job.machines["w0"])
    job.run(job.now + 60.0)
    job.go_on(job.machines["w0"])
    assert job.run(job.now + 5.0, lambda: job.highest >= before + 3)
    assert (job.attempts, job.interventions) == (attempts, 0)


def test_peer_that_is_vouched_for_is_not_silent_and_has_granted_nothing():
    worker = training("a", "ab")
    before = worker.state.leases
    for second in range(1, 30):
        worker.take(p.Vouched("b"), float(second))
    assert worker.state.phase is Phase.TRAINING
    after = worker.state.leases
    assert (after.contact, after.granted) == (before.contact, before.granted)
    assert worker.tick_until(36.0).state.phase is Phase.BREAKING


def test_vouching_for_whom_nobody_knows_counts_for_nothing():
    assert "z" not in training("a", "ab").take(p.Vouched("z"), 1.0).state.leases.received_at


def test_worker_whose_interpreter_is_held_is_waited_for():
    job = job_of(3)
    attempts, before = job.attempts, job.highest
    job.hold(job.machines["w0"], 20.0)
    assert job.run(job.now + 30.0, lambda: job.highest >= before + 3)
    assert (job.attempts, job.interventions) == (attempts, 0)


def test_worker_that_was_away_is_back_once_a_peer_has_answered_it():
    worker = broken("a", "ab").sleep_until(60.0)
    worker.receive("b", p.Alive(FIRST), 61.0, echo=59.0)
    assert worker.state.away, "this was on its way while it was stopped"
    worker.receive("b", p.Alive(FIRST), 62.0, echo=60.5)
    assert not worker.state.away


def test_worker_that_comes_into_an_attempt_is_not_away():
    worker = broken("a", "ab").tick_until(7.0)
    assert worker.forms()
    worker.sleep_until(60.0)
    assert worker.state.away
    assert not worker.take(p.Made(NEXT)).state.away, "it is the only member, or connected with all others"
