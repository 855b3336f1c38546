"""Planned changes, workers that leave, and workers that were away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.groups.convening import attending
from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.roster import Number, Roster, Standing
from heterotrain.groups.convening.settling import Meeting, Verdict, settle
from heterotrain.groups.convening.worker_state import Phase, is_prepared, may_commit, needing_all
from unit.convening.job import Job
from unit.convening.workers import FIRST, Worker, broken, form, joining, meet, training

ABC = Standing(Roster(FIRST, tuple("abc")))
NEXT = Number(1, 2)
CHANGE = Roster(Number(2, 0), tuple("abj"), announcer="a")


def job_of(size: int) -> Job:
    """A job without faults that has trained for a while."""
    job = Job(3, size)
    job.faulty = False
    job.run(30)
    return job


def members_of(job: Job, uid: str) -> tuple[str, ...]:
    """Of the attempt that a worker trains in."""
    roster = job.trainers[uid].roster
    assert roster is not None
    return roster.members


# --- planned changes --------------------------------------------------------------------------------------------------


def test_planned_change_counts_as_accepted_before_its_groups_are_made():
    worker = training("b", "abc").take(p.Prepared(CHANGE, FIRST))
    assert worker.state.standing.pending == (CHANGE,)
    assert is_prepared(worker.state, CHANGE.number)


def test_worker_that_has_left_an_attempt_accepts_no_change_that_was_prepared_in_it():
    """What it has promised since does not know of the change, to which those who still live there might switch."""
    late = p.Prepared(CHANGE, FIRST)
    meeting = broken("b", "abc").take(late)
    assert not is_prepared(meeting.state, CHANGE.number), "it has said what it knows"
    making = broken("b", "abc").hear("a", form(NEXT, "abc", ABC), 1.0)
    assert not is_prepared(making.take(late).state, CHANGE.number)
    assert not is_prepared(making.take(p.Made(NEXT)).take(late).state, CHANGE.number)
    assert is_prepared(making.take(p.Prepared(CHANGE, NEXT)).state, CHANGE.number)


def test_joiner_goes_over_to_the_change_that_it_has_accepted_last_under_a_number():
    """It learns of nothing that was abandoned. A leader that has joined later than others may have seen fewer tries,
    so that it uses a number again."""
    later = Roster(CHANGE.number, tuple("aj"), announcer="a")
    worker = joining("j", CHANGE, later)
    assert worker.state.standing.pending == (later,)
    assert worker.take(p.Switched(later.number)).state.standing == Standing(later)


def test_joiner_forgets_older_changes_as_it_accepts_another_one():
    """It learns of nothing that was abandoned, and would need a quorum of workers that are long gone."""
    later = Roster(Number(2, 3), tuple("aj"), announcer="a")
    assert joining("j", CHANGE, later).state.standing.pending == (later,)


def test_member_forgets_no_change_as_it_accepts_another_one():
    """Others may have gone over to it, unless its announcer says that they have not."""
    later = Roster(Number(2, 3), tuple("abj"), announcer="a")
    worker = training("b", "abc", CHANGE).take(p.Prepared(later, FIRST))
    assert worker.state.standing.pending == (CHANGE, later)


def test_joiner_forgets_no_attempt_that_a_meeting_has_formed_with_it():
    """The others may have made its groups, and wait for the first contribution without end."""
    formed = Roster(NEXT, tuple("abj"))
    worker = joining("j")
    worker.state = replace(worker.state, standing=Standing(None, (formed,)))
    assert worker.take(p.Prepared(CHANGE, None)).state.standing.pending == (formed, CHANGE)


def test_joiner_that_accepts_an_older_change_late_forgets_no_newer_one():
    newer = Roster(Number(2, 3), tuple("aj"), announcer="a")
    assert joining("j", newer, CHANGE).state.standing.pending == (newer, CHANGE)


def test_joiner_that_had_accepted_what_was_abandoned_goes_on_alone_as_any_other_would():
    """It waited for the members of the abandoned change, and for good: no plan could tell it otherwise."""
    change = Roster(CHANGE.number, tuple("aj"), announcer="a")
    joiner = joining("j", CHANGE, change).take(p.Connected("a")).take(p.Switched(change.number)).take(p.Agreed(7))
    for at in range(1, 6):
        joiner.hear("a", p.Alive(change.number), float(at), echo=at - 0.1).take(p.Committed(7 + at, float(at)))
    joiner.take(p.Closed("a")).take(p.Refused("a")).take(p.Broken(12)).tick_until(20.0)
    assert [each.roster.members for each in joiner.forms()] == [("j",)]


def test_joiner_that_was_called_to_a_meeting_accepts_no_change_beside_it():
    worker = joining("j", CHANGE).hear("a", p.Call(NEXT, FIRST, begun=True), 1.0)
    other = Roster(Number(3, 0), tuple("abj"), announcer="a")
    assert not is_prepared(worker.take(p.Prepared(other, None)).state, other.number)


def test_leaver_that_the_switch_has_not_reached_goes_on_only_with_those_who_join():
    """The stayer may have gone over with them before it died. So those who leave have to accept a change as well."""
    change = Roster(Number(2, 0), tuple("aj"), announcer="a")
    leaver = training("b", "ab").take(p.Prepared(change, FIRST)).take(p.Committed(8, 1.0), 2.0)
    leaver.take(p.Committed(9, 2.5), 3.0).take(p.Broken(9)).take(p.Refused("a"), 3.1).tick_until(20.0)
    assert "a" in leaver.state.leases.proven
    assert not leaver.forms()
    alone = training("b", "ab").take(p.Committed(8, 1.0), 2.0).take(p.Committed(9, 2.5), 3.0)
    alone.take(p.Broken(9)).take(p.Refused("a"), 3.1).tick_until(20.0)
    assert alone.forms(), "without a change it is the only one that lives"


def test_change_that_was_given_up_needs_no_quorum():
    worker = training("b", "abc").take(p.Prepared(CHANGE, FIRST)).take(p.Abandoned(CHANGE.number))
    assert not is_prepared(worker.state, CHANGE.number)


def test_announcer_says_at_the_meeting_what_it_has_announced():
    worker = training("c", "abc", CHANGE).take(p.Announced(CHANGE.number)).take(p.Broken(7))
    message = worker.sent("a")[0].message
    assert isinstance(message, p.Meet)
    assert message.announced == {CHANGE.number}


def test_worker_that_a_change_leaves_out_ends_at_the_switch():
    worker = training("c", "abc", CHANGE).take(p.Switched(CHANGE.number))
    assert worker.state.phase is Phase.OUT
    assert worker.does(p.Exit)


def test_switch_to_what_was_never_accepted_changes_nothing():
    worker = training("b", "abc").take(p.Switched(CHANGE.number))
    assert (worker.state.phase, worker.state.standing) == (Phase.TRAINING, ABC)


def test_joiner_that_was_not_needed_at_a_meeting_waits_for_another_plan():
    """Were it to go on meeting, it would miss the switch to the next change that names it."""
    member = training("b", "ab", number=Number(1, 3)).take(p.Connected("j"), 0.5)
    met = p.Meet(Number(1, 3), Standing(None, (CHANGE,)), 0, has_state=False, begun=False)
    fence = member.hear("j", met, 1.0).sent("j")[0].message
    assert fence == p.Fenced(Number(1, 3), ("a", "b"))
    joiner = joining("j", CHANGE).hear("b", p.Call(Number(1, 3), FIRST, begun=True), 1.0)
    assert joiner.state.phase is Phase.MEETING
    assert joiner.hear("b", fence).state.phase is Phase.WAITING
    assert is_prepared(joiner.state, CHANGE.number), "a newer change that it has accepted may still begin"


def test_joiner_that_was_only_called_to_a_meeting_takes_part_in_the_next_change():
    """As one whom a plan names that says who has ended: the others form without it, and then take it in."""
    called = joining("j").hear("b", p.Call(Number(1, 3), FIRST, begun=True), 1.0)
    assert called.state.phase is Phase.MEETING
    later = called.take(p.Prepared(CHANGE, None))
    assert (later.state.phase, later.state.convener) == (Phase.WAITING, None)
    assert is_prepared(later.state, CHANGE.number)
    form = p.Form(Roster(Number(1, 3), ("b", "j")), 3, "a plan", ABC)
    assert not later.hear("b", form).forms(), "nobody in that change knows of it"


def test_joiner_with_an_older_change_is_let_go_by_whoever_called_it_and_went_on_without_it():
    """Before it is, it accepts no other change, so the operator would give it up as one that does not follow."""
    number = Number.by_word_of(3)
    older, newer = CHANGE, Roster(Number(3, 0), tuple("abj"), announcer="a")
    joiner = joining("j", older).hear("b", p.Call(number, FIRST, begun=True), 1.0).take(p.Connected("b"))
    beats = joiner.tick_until(5.0).all
    assert [each.message for each in beats if isinstance(each, p.Send)][-1] == p.Beat(None)
    meeting = broken("b", "ab").take(p.Connected("j")).hear("j", p.Beat(None))
    assert p.Fenced not in [type(each.message) for each in meeting.sent("j")], "it may be needed yet"
    member = training("b", "ab", number=number).take(p.Connected("j"), 0.5)
    fence = member.hear("j", p.Beat(None), 5.0).sent("j")[0].message
    assert fence == p.Fenced(number, ("a", "b"))
    assert joiner.hear("b", fence).state.phase is Phase.WAITING
    assert is_prepared(joiner.take(p.Prepared(newer, None)).state, newer.number)


def test_joiner_is_let_go_only_by_whom_it_meets():
    joiner = (
        joining("j").hear("b", p.Call(NEXT, FIRST, begun=True), 1.0).hear("c", p.Call(Number(2, 1), NEXT, begun=True))
    )
    assert joiner.tick_until(2.0).state.convener == "c"
    assert joiner.hear("b", p.Fenced(Number(1, 3), ("a", "b"))).state.phase is Phase.MEETING


def test_joiner_that_was_let_go_accepts_nothing_below_what_it_has_promised():
    joiner = joining("j").hear("b", p.Call(Number(2, 1), FIRST, begun=True), 1.0)
    joiner.hear("b", p.Fenced(Number(2, 1), ("a", "b")))
    assert not is_prepared(joiner.take(p.Prepared(CHANGE, None)).state, CHANGE.number)


def test_joiner_that_has_promised_a_later_attempt_takes_part_in_no_change():
    called = joining("j").hear("b", p.Call(Number(2, 1), FIRST, begun=True), 1.0)
    assert called.take(p.Prepared(CHANGE, None)).state.phase is Phase.MEETING
    assert not is_prepared(called.state, CHANGE.number)


def test_joiner_that_waits_may_be_called_and_switches_no_more():
    joiner = joining("j", CHANGE).hear("b", p.Call(NEXT, FIRST, begun=True), 1.0)
    assert joiner.take(p.Switched(CHANGE.number)).state.phase is Phase.MEETING


# --- who comes and goes -----------------------------------------------------------------------------------------------


def heard_from_b_alone(seconds: float = 4.9) -> Worker:
    """The first of three, whose attempt breaks after it has heard nothing of the third for so long."""
    worker = training("a", "abc")
    for second in range(1, int(seconds) + 1):
        worker.hear("b", p.Beat(FIRST), float(second), echo=None)
    worker.take(p.Broken(7), seconds)
    return worker.hear("b", meet("b", worker.state.promised, ABC))


def test_member_that_was_gone_and_is_heard_for_a_moment_alone_holds_nobody_up():
    """Whoever makes groups with it waits for them to fail, and then it may be heard for a moment again."""
    worker = heard_from_b_alone().hear("c", meet("c", NEXT, ABC))
    assert not worker.forms(), "it may be back"
    worker.tick_until(6.0)
    assert [each.roster.members for each in worker.forms()] == [("a", "b")]


def test_nobody_is_bound_to_a_member_that_was_heard_for_a_moment_alone():
    worker = heard_from_b_alone().hear("c", meet("c", NEXT, ABC))
    assert worker.sent("c")
    assert all(each.echo is None for each in worker.sent("c"))


def test_member_that_is_back_trains_with_the_others_once_it_was_heard_again():
    worker = heard_from_b_alone().hear("c", meet("c", NEXT, ABC))
    worker.take(p.Connected("c"))
    worker.tick_until(5.5)
    assert any(isinstance(each.message, p.Call) for each in worker.all if isinstance(each, p.Send) and each.uid == "c")
    worker.hear("c", meet("c", NEXT, ABC)).tick_until(6.0)
    assert [each.roster.members for each in worker.forms()] == [("a", "b", "c")]


# --- who leaves -------------------------------------------------------------------------------------------------------


def test_first_member_that_leaves_is_not_waited_for_to_convene():
    job = job_of(3)
    job.ask_to_leave("w0", None)
    job.end("w2")
    before = job.highest
    assert job.run(job.now + 10.0, lambda: job.highest >= before + 3)
    assert members_of(job, "w1") == ("w0", "w1"), "half is no quorum without the first"
    assert job.interventions == 0


def test_worker_that_leaves_convenes_only_if_all_leave():
    worker = training("a", "abc").take(p.Leaving()).take(p.Broken(7))
    assert worker.state.convener == "b"
    follower = broken("c", "abc").hear("a", p.Alive(FIRST, leaving=True), 0.5)
    assert follower.state.convener == "b", "it says so to those who take it for the convener"
    next_one = broken("b", "abc").hear("a", meet("a", NEXT, ABC, leaving=True), 0.5)
    assert next_one.state.convener == "b"
    for uid in ("b", "c"):
        worker.hear(uid, p.Alive(FIRST, leaving=True), 0.5)
    assert worker.state.convener == "a"


def test_member_that_leaves_is_left_out_when_the_attempt_breaks_and_ends():
    job = job_of(4)
    job.ask_to_leave("w0", None)
    job.end("w3")
    job.run(job.now + 10.0)
    assert job.machines["w0"].exited
    assert members_of(job, "w1") == members_of(job, "w2") == ("w1", "w2")


def test_workers_that_are_all_asked_to_leave_go_on_until_they_are_ended():
    job = job_of(3)
    for uid in ("w0", "w1", "w2"):
        job.ask_to_leave(uid, None)
    job.end("w2")
    before = job.highest
    assert job.run(job.now + 20.0, lambda: job.highest >= before + 3)


def test_leaving_by_itself_breaks_nothing():
    job = job_of(3)
    attempts = job.attempts
    job.ask_to_leave("w1", None)
    job.run(job.now + 20.0)
    assert job.attempts == attempts


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
    worker.hear("a", p.Alive(FIRST), 60.1, echo=50.0)
    assert not may_commit(worker.state, worker.now), "this was on its way while it was stopped"
    worker.hear("a", p.Alive(FIRST), 60.2, echo=60.0)
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


def test_vouching_for_whom_nobody_has_heard_of_counts_for_nothing():
    assert "z" not in training("a", "ab").take(p.Vouched("z"), 1.0).state.leases.heard


def test_worker_whose_interpreter_is_held_is_waited_for():
    job = job_of(3)
    attempts, before = job.attempts, job.highest
    job.hold(job.machines["w0"], 20.0)
    assert job.run(job.now + 30.0, lambda: job.highest >= before + 3)
    assert (job.attempts, job.interventions) == (attempts, 0)


def test_worker_that_was_away_is_back_once_a_peer_has_answered_it():
    worker = broken("a", "ab").sleep_until(60.0)
    worker.hear("b", p.Alive(FIRST), 61.0, echo=59.0)
    assert worker.state.away, "this was on its way while it was stopped"
    worker.hear("b", p.Alive(FIRST), 62.0, echo=60.5)
    assert not worker.state.away


def test_worker_that_comes_into_an_attempt_is_not_away():
    worker = broken("a", "ab").tick_until(7.0)
    assert worker.forms()
    worker.sleep_until(60.0)
    assert worker.state.away
    assert not worker.take(p.Made(NEXT)).state.away, "it is the only member, or connected with all others"


# --- who has left the attempt, or has no place any more ---------------------------------------------------------------


def test_member_that_has_promised_a_newer_attempt_is_not_waited_for_in_the_older():
    worker = training("b", "abc").hear("a", p.Call(NEXT, FIRST, begun=True), 1.0)
    assert worker.does(p.Cut)
    making = broken("b", "abc").hear("a", form(NEXT, "abc", ABC), 1.0)
    assert making.hear("c", meet("c", Number(1, 3), ABC), 1.5).does(p.Cut)


def test_member_whose_channel_lost_the_attempt_formed_is_sent_it_again():
    worker = broken("a", "ab").hear("b", meet("b", NEXT, Standing(Roster(FIRST, tuple("ab")))), 0.1)
    formed = worker.forms()[0]
    assert formed in [each.message for each in worker.sent("b")]
    worker.take(p.Closed("b"), 0.2).take(p.Connected("b"), 0.3)
    worker.hear("b", meet("b", NEXT, Standing(Roster(FIRST, tuple("ab")))))
    assert [each.message for each in worker.sent("b")] == [formed]


def test_worker_that_met_and_died_is_not_formed_with():
    worker = broken("a", "abc").hear("b", meet("b", NEXT, ABC), 0.1).take(p.Closed("b")).take(p.Refused("b"))
    worker.hear("c", meet("c", NEXT, ABC, proven="b", refused="b"), 0.2)
    assert [each.roster.members for each in worker.forms()] == [("a", "c")]


def test_worker_that_a_plan_evicts_ends():
    assert training("b", "abc").take(p.Plan(2, ("a", "c"), evicted=frozenset("b"))).does(p.Exit)


def test_worker_that_trains_ends_when_the_job_begins_again_from_a_checkpoint():
    assert training("b", "abc").take(p.Plan(2, ("a", "b"), starts=True)).does(p.Exit)


def test_worker_that_has_made_groups_and_never_trained_begins_with_another_plan():
    """A member may have gone over to that plan before all had come to the same state."""
    start = p.Plan(1, ("a", "b"), starts=True)
    worker = joining("a").take(start)
    worker.hear("b", meet("b", Number(1, 1), Standing(Roster(Number(1, 0), ("a", "b"))), begun=False), 0.5)
    worker.take(p.Made(Number(1, 1)), 1.0).take(p.Plan(2, ("a", "c"), starts=True), 2.0)
    assert not worker.does(p.Exit)
    assert (worker.state.phase, worker.state.standing.everyone) == (Phase.MEETING, ("a", "c"))
    worker.tick_until(30.0)
    assert [each.roster.members for each in worker.forms()] == [("a", "b")], "all whom it names are needed"


def test_member_that_a_plan_evicts_is_waited_for_no_more():
    worker = training("a", "abc").take(p.Plan(2, ("a", "b"), evicted=frozenset("c")))
    assert worker.state.phase is Phase.BREAKING


def test_older_plan_that_comes_late_changes_nothing():
    worker = training("b", "abc").take(p.Plan(3, ("a", "b", "c"))).take(p.Plan(2, ("a", "c"), evicted=frozenset("b")))
    assert worker.state.phase is Phase.TRAINING


def test_worker_that_knows_only_an_older_attempt_is_told_of_the_newer_one_and_ends():
    newer = training("b", "bc", number=Number(1, 4)).take(p.Connected("a"), 0.5)
    fence = newer.hear("a", p.Call(NEXT, FIRST, begun=True), 1.0).sent("a")[0].message
    assert fence == p.Fenced(Number(1, 4), ("b", "c"))
    assert broken("a", "abc").hear("b", fence, 1.0).does(p.Exit)
    assert not broken("a", "abc").hear("b", p.Fenced(NEXT, ("a", "b")), 1.0).does(p.Exit)


def test_worker_left_out_before_others_joined_does_not_train_beside_those_who_joined():
    """By the operator's word all have ended whom it knows, but the newcomer has trained with them since."""
    job = job_of(3)
    for other in ("w1", "w2"):
        job.block("w0", other)
        job.block(other, "w0")
    job.run(job.now + 20.0)
    job.begin_change(1, 0)
    assert job.run(job.now + 10.0, lambda: "j20" in job.machines and job.machines["j20"].state.phase is Phase.TRAINING)
    job.run(job.now + 10.0)
    job.stop(job.machines["j20"])
    job.run(job.now + 4.5)  # until it proves nothing about those who end
    job.end("w1")
    job.end("w2")
    job.go_on(job.machines["j20"])
    job.open_ways()
    job.run(job.now + 10.0)
    before = job.highest
    job.operate()
    assert job.run(job.now + 30.0, lambda: job.highest >= before + 3)
    assert members_of(job, "j20") == ("j20",)
    assert job.machines["w0"].exited


def test_newest_thing_that_a_peer_said_counts():
    """A `Meet` that a newer one has overtaken says what is not true any more."""
    worker = broken("a", "abc")
    worker.hear("b", meet("b", Number(1, 4), ABC.accept(CHANGE)), 1.0).hear("b", meet("b", NEXT, ABC), 1.1)
    assert worker.state.met["b"].meet.number == Number(1, 4)


def test_member_that_has_met_says_so_again_only_if_it_is_called_or_knows_more():
    worker = broken("c", "abc")
    for second in (1.0, 2.0, 3.0):
        worker.hear("a", p.Alive(FIRST), second)
        worker.tick_until(second + 0.9)
    said = [each.message for each in worker.all if isinstance(each, p.Send) and each.uid == "a"]
    assert sum(isinstance(each, p.Meet) for each in said) == 1
    assert sum(isinstance(each, p.Beat) for each in said) >= 2
    called = worker.hear("a", p.Call(worker.state.promised, FIRST, begun=True)).sent("a")
    assert isinstance(called[-1].message, p.Meet)
    worker.take(p.Refused("b")).tick_until(6.0)
    last = [each for each in worker.all if isinstance(each, p.Send) and isinstance(each.message, p.Meet)][-1].message
    assert isinstance(last, p.Meet) and last.refused == {"b"}


def test_convener_looks_at_all_who_met_only_once_it_may_be_settled(monkeypatch: pytest.MonkeyPatch):
    """Otherwise a meeting of a thousand would cost it a thousand times a thousand."""
    looks: list[float] = []

    def counted(meeting: Meeting, now: float) -> Verdict:
        looks.append(now)
        return settle(meeting, now)

    monkeypatch.setattr(attending, "settle", counted)
    everyone = Standing(Roster(FIRST, tuple("abcdefgh")))
    worker = broken("a", "abcdefgh")
    before = len(looks)
    for uid in "bcdefg":
        worker.hear(uid, meet(uid, NEXT, everyone))
    assert len(looks) == before
    assert worker.hear("h", meet("h", NEXT, everyone)).forms()


def test_what_is_known_of_workers_that_are_gone_is_bounded():
    worker = training("a", "ab")
    for generation in range(2, 300):
        change = Roster(Number(generation, 0), ("a", f"j{generation}"), announcer="a")
        worker.take(p.Prepared(change, worker.state.standing.formed.number if worker.state.standing.formed else None))
        worker.take(p.Announced(change.number)).take(p.Switched(change.number), float(generation)).take(p.Agreed(7))
        worker.hear(f"j{generation}", p.Alive(change.number), echo=float(generation))
    state, leases = worker.state, worker.state.leases
    assert len(state.announced) == 1
    known = (leases.heard, leases.latest, leases.contact, leases.granted, leases.echoed, leases.refused, leases.proven)
    assert max(map(len, known)) < 100
    assert "j299" in leases.heard and "j299" in leases.contact


def test_step_of_an_earlier_attempt_says_nothing_about_those_who_joined_since():
    worker = training("a", "ab", CHANGE).take(p.Committed(8, 1.0), 2.0).take(p.Switched(CHANGE.number), 2.5)
    worker.take(p.Agreed(8)).take(p.Committed(9, 3.0), 4.0).take(p.Refused("j"), 4.1)
    assert "j" in worker.state.leases.refused
    assert not worker.state.leases.proven


def test_attempt_that_this_worker_is_no_member_of_is_not_accepted():
    assert not broken("b", "abc").hear("a", form(NEXT, "ac", ABC), 6.0).forms()


def test_switch_that_comes_while_the_attempt_breaks_counts():
    worker = (
        training("b", "abc", CHANGE).hear("a", p.Call(NEXT, FIRST, begun=True), 1.0).take(p.Switched(CHANGE.number))
    )
    assert (worker.state.phase, worker.state.standing.formed) == (Phase.BREAKING, CHANGE)


def test_first_plan_that_does_not_name_a_worker_lets_it_wait():
    assert joining("j").take(p.Plan(1, ("a", "b"), starts=True)).state.phase is Phase.WAITING


def test_member_that_is_given_up_as_silent_ends_the_attempt_for_all():
    assert training("c", "abc").hear("a", p.GiveUp(FIRST, "b"), 1.0).does(p.Cut)
    assert not training("c", "abc").hear("a", p.GiveUp(Number(1, 0), "b"), 1.0).does(p.Cut), "an older attempt"


def test_those_who_need_one_another_leave_nobody_behind_for_silence():
    worker = training("a", "abc").tick_until(3.0)
    worker.state = needing_all(worker.state)
    worker.tick_until(60.0)
    assert worker.state.phase is Phase.TRAINING
    worker.sleep_until(120.0)
    assert may_commit(worker.state, 120.0)
    worker.take(p.Closed("b")).take(p.Refused("b"))
    assert worker.does(p.Cut), "one that has ended is not waited for in a collective"


def test_member_that_dies_while_groups_are_made_is_not_waited_for():
    worker = broken("b", "abc").hear("a", form(NEXT, "abc", ABC), 1.0).take(p.Refused("c"))
    assert worker.does(p.Cut)
