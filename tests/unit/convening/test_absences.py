"""Members that were gone, late, stopped or asked to leave, and workers that have no place any more."""

from __future__ import annotations

import pytest

from heterotrain.groups.convening import attending
from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.roster import Number, Roster, Standing
from heterotrain.groups.convening.settling import Attendance, Verdict, settle
from heterotrain.groups.convening.worker_state import Phase, may_commit, needing_all
from unit.convening.job import Job, job_of
from unit.convening.workers import ABC, CHANGE, FIRST, NEXT, Worker, broken, form, joining, meet, training


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


def test_worker_that_was_late_itself_takes_nobody_for_silent():
    worker = training("a", "ab").sleep_until(4.0).tick_until(8.0)
    assert worker.state.phase is Phase.TRAINING, "it has listened for 4 s"
    assert worker.tick_until(10.5).state.phase is Phase.BREAKING


def test_member_that_was_away_commits_once_a_peer_has_answered_that_it_is_still_one():
    worker = training("b", "abc").sleep_until(60.0)
    assert [each.message for each in worker.sent("a")] == [p.Beat(FIRST)], "at once"
    assert not may_commit(worker.state, worker.now)
    worker.receive("a", p.Alive(FIRST), 60.1, echo=50.0)
    assert not may_commit(worker.state, worker.now), "this was on its way while it was stopped"
    worker.receive("a", p.Alive(FIRST), 60.2, echo=60.0)
    assert may_commit(worker.state, worker.now)
    assert not worker.does(p.Cut)


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


def test_peer_that_is_vouched_for_is_not_silent_and_has_granted_nothing():
    worker = training("a", "ab")
    before = worker.state.leases
    for second in range(1, 30):
        worker.take(p.Vouched("b"), float(second))
    assert worker.state.phase is Phase.TRAINING
    after = worker.state.leases
    assert (after.contact, after.granted) == (before.contact, before.granted)
    assert worker.tick_until(36.0).state.phase is Phase.BREAKING


def members_of(job: Job, uid: str) -> tuple[str, ...]:
    """Of the attempt that a worker trains in."""
    roster = job.trainers[uid].roster
    assert roster is not None
    return roster.members


def test_worker_that_leaves_convenes_only_if_all_leave():
    worker = training("a", "abc").take(p.Leaving()).take(p.Broken(7))
    assert worker.state.convener == "b"
    follower = broken("c", "abc").receive("a", p.Alive(FIRST, leaving=True), 0.5)
    assert follower.state.convener == "b", "it says so to those who take it for the convener"
    next_one = broken("b", "abc").receive("a", meet("a", NEXT, ABC, leaving=True), 0.5)
    assert next_one.state.convener == "b"
    for uid in ("b", "c"):
        worker.receive(uid, p.Alive(FIRST, leaving=True), 0.5)
    assert worker.state.convener == "a"


def test_member_that_leaves_is_left_out_when_the_attempt_breaks_and_ends():
    job = job_of(4)
    job.ask_to_leave("w0", None)
    job.end("w3")
    job.run(job.now + 10.0)
    assert job.machines["w0"].exited
    assert members_of(job, "w1") == members_of(job, "w2") == ("w1", "w2")


def test_member_that_has_promised_a_newer_attempt_is_not_waited_for_in_the_older():
    worker = training("b", "abc").receive("a", p.Call(NEXT, FIRST, begun=True), 1.0)
    assert worker.does(p.Cut)
    making = broken("b", "abc").receive("a", form(NEXT, "abc", ABC), 1.0)
    assert making.receive("c", meet("c", Number(1, 3), ABC), 1.5).does(p.Cut)


def test_worker_that_a_plan_evicts_ends():
    assert training("b", "abc").take(p.PlanShown(2, ("a", "c"), evicted=frozenset("b"))).does(p.Exit)


def test_worker_that_knows_only_an_older_attempt_learns_of_the_newer_one_and_ends():
    newer = training("b", "bc", number=Number(1, 4)).take(p.Connected("a"), 0.5)
    fence = newer.receive("a", p.Call(NEXT, FIRST, begun=True), 1.0).sent("a")[0].message
    assert fence == p.Fenced(Number(1, 4), ("b", "c"))
    assert broken("a", "abc").receive("b", fence, 1.0).does(p.Exit)
    assert not broken("a", "abc").receive("b", p.Fenced(NEXT, ("a", "b")), 1.0).does(p.Exit)


def test_convener_looks_at_all_who_met_only_once_it_may_be_settled(monkeypatch: pytest.MonkeyPatch):
    """Otherwise a meeting of a thousand would cost it a thousand times a thousand."""
    looks: list[float] = []

    def counted(meeting: Attendance, now: float) -> Verdict:
        looks.append(now)
        return settle(meeting, now)

    monkeypatch.setattr(attending, "settle", counted)
    everyone = Standing(Roster(FIRST, tuple("abcdefgh")))
    worker = broken("a", "abcdefgh")
    before = len(looks)
    for uid in "bcdefg":
        worker.receive(uid, meet(uid, NEXT, everyone))
    assert len(looks) == before
    assert worker.receive("h", meet("h", NEXT, everyone)).forms()


def test_what_is_known_of_workers_that_are_gone_is_bounded():
    worker = training("a", "ab")
    for generation in range(2, 300):
        change = Roster(Number(generation, 0), ("a", f"j{generation}"), announcer="a")
        worker.take(p.Prepared(change, worker.state.standing.formed.number if worker.state.standing.formed else None))
        worker.take(p.Announced(change.number)).take(p.Switched(change.number), float(generation)).take(p.Agreed(7))
        worker.receive(f"j{generation}", p.Alive(change.number), echo=float(generation))
    state, leases = worker.state, worker.state.leases
    assert len(state.announced) == 1
    known = (
        leases.received_at,
        leases.latest,
        leases.contact,
        leases.granted,
        leases.echoed,
        leases.refused,
        leases.proven,
    )
    assert max(map(len, known)) < 100
    assert "j299" in leases.received_at and "j299" in leases.contact


def test_member_that_is_given_up_as_silent_ends_the_attempt_for_all():
    assert training("c", "abc").receive("a", p.GiveUp(FIRST, "b"), 1.0).does(p.Cut)
    assert not training("c", "abc").receive("a", p.GiveUp(Number(1, 0), "b"), 1.0).does(p.Cut), "an older attempt"


def test_attempt_that_this_worker_is_no_member_of_is_not_accepted():
    assert not broken("b", "abc").receive("a", form(NEXT, "ac", ABC), 6.0).forms()


def test_switch_that_comes_while_the_attempt_breaks_counts():
    worker = (
        training("b", "abc", CHANGE).receive("a", p.Call(NEXT, FIRST, begun=True), 1.0).take(p.Switched(CHANGE.number))
    )
    assert (worker.state.phase, worker.state.standing.formed) == (Phase.BREAKING, CHANGE)


def test_newest_thing_that_a_peer_said_counts():
    """A `Meet` that a newer one has overtaken says what is not true any more."""
    worker = broken("a", "abc")
    worker.receive("b", meet("b", Number(1, 4), ABC.accept(CHANGE)), 1.0).receive("b", meet("b", NEXT, ABC), 1.1)
    assert worker.state.met["b"].meet.number == Number(1, 4)


def test_member_that_dies_while_groups_are_made_is_not_waited_for():
    worker = broken("b", "abc").receive("a", form(NEXT, "abc", ABC), 1.0).take(p.Refused("c"))
    assert worker.does(p.Cut)


def test_older_plan_that_comes_late_changes_nothing():
    worker = (
        training("b", "abc")
        .take(p.PlanShown(3, ("a", "b", "c")))
        .take(p.PlanShown(2, ("a", "c"), evicted=frozenset("b")))
    )
    assert worker.state.phase is Phase.TRAINING


def test_member_that_a_plan_evicts_is_waited_for_no_more():
    worker = training("a", "abc").take(p.PlanShown(2, ("a", "b"), evicted=frozenset("c")))
    assert worker.state.phase is Phase.BREAKING


def test_worker_that_trains_ends_when_the_job_begins_again_from_a_checkpoint():
    assert training("b", "abc").take(p.PlanShown(2, ("a", "b"), starts=True)).does(p.Exit)


def test_step_of_an_earlier_attempt_says_nothing_about_those_who_joined_since():
    worker = training("a", "ab", CHANGE).take(p.Committed(8, 1.0), 2.0).take(p.Switched(CHANGE.number), 2.5)
    worker.take(p.Agreed(8)).take(p.Committed(9, 3.0), 4.0).take(p.Refused("j"), 4.1)
    assert "j" in worker.state.leases.refused
    assert not worker.state.leases.proven


def test_those_who_need_one_another_leave_nobody_behind_for_silence():
    worker = training("a", "abc").tick_until(3.0)
    worker.state = needing_all(worker.state)
    worker.tick_until(60.0)
    assert worker.state.phase is Phase.TRAINING
    worker.sleep_until(120.0)
    assert may_commit(worker.state, 120.0)
    worker.take(p.Closed("b")).take(p.Refused("b"))
    assert worker.does(p.Cut), "one that has ended is not waited for in a collective"


def test_member_whose_channel_lost_the_attempt_formed_is_sent_it_again():
    worker = broken("a", "ab").receive("b", meet("b", NEXT, Standing(Roster(FIRST, tuple("ab")))), 0.1)
    formed = worker.forms()[0]
    assert formed in [each.message for each in worker.sent("b")]
    worker.take(p.Closed("b"), 0.2).take(p.Connected("b"), 0.3)
    worker.receive("b", meet("b", NEXT, Standing(Roster(FIRST, tuple("ab")))))
    assert [each.message for each in worker.sent("b")] == [formed]


def test_worker_that_has_made_groups_and_never_trained_begins_with_another_plan():
    """A member may have gone over to that plan before all had come to the same state."""
    start = p.PlanShown(1, ("a", "b"), starts=True)
    worker = joining("a").take(start)
    worker.receive("b", meet("b", Number(1, 1), Standing(Roster(Number(1, 0), ("a", "b"))), begun=False), 0.5)
    worker.take(p.Made(Number(1, 1)), 1.0).take(p.PlanShown(2, ("a", "c"), starts=True), 2.0)
    assert not worker.does(p.Exit)
    assert (worker.state.phase, worker.state.standing.everyone) == (Phase.MEETING, ("a", "c"))
    worker.tick_until(30.0)
    assert [each.roster.members for each in worker.forms()] == [("a", "b")], "all whom it names are needed"


def test_first_plan_that_does_not_name_a_worker_lets_it_wait():
    assert joining("j").take(p.PlanShown(1, ("a", "b"), starts=True)).state.phase is Phase.WAITING


def test_first_member_that_leaves_is_not_waited_for_to_convene():
    job = job_of(3)
    job.ask_to_leave("w0", None)
    job.end("w2")
    before = job.highest
    assert job.run(job.now + 10.0, lambda: job.highest >= before + 3)
    assert members_of(job, "w1") == ("w0", "w1"), "half is no quorum without the first"
    assert job.interventions == 0


def test_worker_that_met_and_died_is_not_formed_with():
    worker = broken("a", "abc").receive("b", meet("b", NEXT, ABC), 0.1).take(p.Closed("b")).take(p.Refused("b"))
    worker.receive("c", meet("c", NEXT, ABC, proven="b", refused="b"), 0.2)
    assert [each.roster.members for each in worker.forms()] == [("a", "c")]


def test_only_member_that_was_away_trains_on():
    """No attempt is formed without it, so there is nobody whose word it could wait for."""
    worker = training("a", "a")
    assert not may_commit(worker.state, 60.0), "before it has noticed"
    worker.sleep_until(60.0)
    assert may_commit(worker.state, worker.now)
    assert not worker.does(p.Cut)


def test_vouching_for_whom_nobody_knows_counts_for_nothing():
    assert "z" not in training("a", "ab").take(p.Vouched("z"), 1.0).state.leases.received_at


def test_worker_that_comes_into_an_attempt_is_not_away():
    worker = broken("a", "ab").tick_until(7.0)
    assert worker.forms()
    worker.sleep_until(60.0)
    assert worker.state.away
    assert not worker.take(p.Made(NEXT)).state.away, "it is the only member, or connected with all others"


def test_worker_that_was_away_is_back_once_a_peer_has_answered_it():
    worker = broken("a", "ab").sleep_until(60.0)
    worker.receive("b", p.Alive(FIRST), 61.0, echo=59.0)
    assert worker.state.away, "this was on its way while it was stopped"
    worker.receive("b", p.Alive(FIRST), 62.0, echo=60.5)
    assert not worker.state.away


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
    worker.take(p.PlanShown(2, ("a",)), 91.0).tick_until(93.0)
    assert worker.forms()


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
