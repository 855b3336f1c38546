"""What a worker promises to others and accepts: attempts of a convener, and planned changes."""

from __future__ import annotations

from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.roster import Number, Roster, Standing
from heterotrain.groups.convening.worker_state import is_prepared
from unit.convening.workers import ABC, CHANGE, FIRST, NEXT, Worker, broken, form, joining, training


def answering() -> Worker:
    """The second of three: it has answered the third at 10 s, and meets the first since 10.1 s."""
    worker = training("b", "abc").tick_until(9.5)
    worker.receive("a", p.Alive(FIRST)).receive("c", p.Beat(FIRST)).receive("c", p.Beat(FIRST), 10.0)
    assert worker.sent("c")[0].echo == 1010.0
    worker.tick_until(10.1).take(p.Broken(7))
    assert worker.state.convener == "a"
    return worker


def test_worker_accepts_nothing_without_a_peer_before_a_silence_has_passed_since_it_answered_that_peer():
    worker = answering()
    worker.receive("a", p.Alive(FIRST), 14.0)
    assert not worker.receive("a", form(NEXT, "ab", ABC), 14.9).forms(), "c may take it for proven dead until 14"
    assert worker.receive("a", form(NEXT, "ab", ABC), 15.1).forms()


def test_committed_step_binds_to_all_with_whom_it_was_committed():
    worker = training("b", "abc").take(p.Committed(8, 1.0), 2.0).receive("a", p.Alive(FIRST), 2.0).take(p.Broken(8))
    assert not worker.receive("a", form(NEXT, "ab", ABC), 6.9).forms()
    assert worker.receive("a", form(NEXT, "ab", ABC), 7.1).forms()


def test_step_says_nothing_about_a_peer_since_this_workers_contribution_to_it():
    """The peer may have contributed long before, left the attempt, and agreed to another one."""
    worker = training("a", "abc").take(p.Committed(8, 1.0), 2.0)
    assert "b" not in worker.take(p.Committed(9, 6.0), 7.0).take(p.Refused("b"), 7.1).state.leases.proven
    assert "b" in worker.take(p.Committed(10, 7.5), 8.0).take(p.Refused("b"), 8.1).state.leases.proven


def test_attempt_of_a_number_below_the_promised_one_is_not_accepted():
    worker = broken("b", "abc").receive("a", p.Call(Number(1, 4), FIRST, begun=True), 1.0)
    assert not worker.receive("a", form(Number(1, 2), "abc", ABC)).forms(), "it came late"
    assert worker.receive("a", form(Number(1, 4), "abc", ABC)).forms()


def test_attempt_of_anybody_but_the_one_it_was_promised_to_is_not_accepted():
    worker = broken("b", "abc")
    assert not worker.receive("c", form(NEXT, "abc", ABC)).forms()
    assert worker.receive("a", form(NEXT, "abc", ABC)).forms()


def test_number_that_was_promised_to_one_convener_is_never_promised_to_the_next():
    """Otherwise two attempts of one number could be accepted by a quorum each, and only one of them be complete."""
    worker = broken("c", "abc")
    assert (worker.state.convener, worker.state.promised) == ("a", NEXT)
    worker.take(p.Refused("a"), 1.0)
    assert worker.state.convener == "b"
    assert worker.state.promised > NEXT


def test_worker_that_has_accepted_an_attempt_without_a_peer_answers_that_peer_no_more():
    worker = broken("b", "abc").receive("a", form(NEXT, "ab", ABC, excused="c"), 1.0)
    answer = worker.receive("c", p.Beat(FIRST), 2.0).sent("c")[0]
    assert answer.echo is None, "it would prove for c that nothing was accepted without it"
    assert "c" not in worker.state.leases.granted


def test_what_those_who_met_know_together_is_remembered_by_all_who_accept():
    """A convener that fails leaves it to them to ask for a quorum of attempts that only others had accepted."""
    unsure = Roster(Number(1, 2), tuple("ac"))
    known = ABC.accept(unsure)
    worker = broken("b", "abc").receive("a", p.Call(Number(1, 3), FIRST, begun=True), 0.5)
    worker.receive("a", form(Number(1, 3), "abc", known), 1.0)
    assert set(worker.state.standing.pending) == {unsure, Roster(Number(1, 3), tuple("abc"))}


def test_planned_change_counts_as_accepted_before_its_groups_are_made():
    worker = training("b", "abc").take(p.Prepared(CHANGE, FIRST))
    assert worker.state.standing.pending == (CHANGE,)
    assert is_prepared(worker.state, CHANGE.number)


def test_worker_that_has_left_an_attempt_accepts_no_change_that_was_prepared_in_it():
    """What it has promised since does not know of the change, to which those who still live there might switch."""
    late = p.Prepared(CHANGE, FIRST)
    meeting = broken("b", "abc").take(late)
    assert not is_prepared(meeting.state, CHANGE.number), "it has said what it knows"
    making = broken("b", "abc").receive("a", form(NEXT, "abc", ABC), 1.0)
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


def test_member_forgets_no_change_as_it_accepts_another_one():
    """Others may have gone over to it, unless its announcer says that they have not."""
    later = Roster(Number(2, 3), tuple("abj"), announcer="a")
    worker = training("b", "abc", CHANGE).take(p.Prepared(later, FIRST))
    assert worker.state.standing.pending == (CHANGE, later)


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


def test_announcer_says_at_the_meeting_what_it_has_announced():
    worker = training("c", "abc", CHANGE).take(p.Announced(CHANGE.number)).take(p.Broken(7))
    message = worker.sent("a")[0].message
    assert isinstance(message, p.Meet)
    assert message.announced == {CHANGE.number}
