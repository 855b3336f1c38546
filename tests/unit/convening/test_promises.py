"""What a worker promises to others, and accepts of a convener."""

from __future__ import annotations

from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.roster import Number, Roster, Standing
from heterotrain.groups.convening.worker_state import Phase
from unit.convening.workers import FIRST, Worker, broken, form, joining, meet, training

ABC = Standing(Roster(FIRST, tuple("abc")))
NEXT = Number(1, 2)


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


def test_worker_is_free_of_a_peer_whose_port_refuses():
    assert answering().receive("a", form(NEXT, "ab", ABC, excused="c"), 11.0).forms()


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


def test_attempt_that_was_accepted_is_never_accepted_again():
    worker = broken("b", "abc").receive("a", form(NEXT, "abc", ABC), 1.0).take(p.MakingFailed(NEXT))
    assert worker.state.promised > NEXT
    assert len(worker.receive("a", form(NEXT, "abc", ABC)).forms()) == 1


def test_worker_that_has_accepted_an_attempt_without_a_peer_answers_that_peer_no_more():
    worker = broken("b", "abc").receive("a", form(NEXT, "ab", ABC, excused="c"), 1.0)
    answer = worker.receive("c", p.Beat(FIRST), 2.0).sent("c")[0]
    assert answer.echo is None, "it would prove for c that nothing was accepted without it"
    assert "c" not in worker.state.leases.granted


def test_joiner_answers_nobody_whom_the_change_leaves_out():
    """It may switch to the change at any time."""
    worker = joining("j", Roster(Number(2, 0), tuple("abj"), announcer="a"))
    assert worker.receive("c", p.Call(NEXT, FIRST, begun=False), 1.0).sent("c")[0].echo is None


def test_worker_that_meets_one_is_not_bound_again_by_the_beats_of_another():
    """A peer that only some can reach would otherwise stop everybody for as long as it beats."""
    worker = broken("b", "abc")
    for now in (1.0, 2.0, 3.0, 4.0):
        worker.receive("c", p.Beat(FIRST), now)
    worker.receive("a", p.Alive(FIRST), 4.0)
    assert worker.receive("a", form(NEXT, "ab", ABC), 5.1).forms()


def test_what_those_who_met_know_together_is_remembered_by_all_who_accept():
    """A convener that fails leaves it to them to ask for a quorum of attempts that only others had accepted."""
    unsure = Roster(Number(1, 2), tuple("ac"))
    known = ABC.accept(unsure)
    worker = broken("b", "abc").receive("a", p.Call(Number(1, 3), FIRST, begun=True), 0.5)
    worker.receive("a", form(Number(1, 3), "abc", known), 1.0)
    assert set(worker.state.standing.pending) == {unsure, Roster(Number(1, 3), tuple("abc"))}


def test_attempt_that_is_only_accepted_is_not_taken_for_complete():
    worker = broken("b", "abc").receive("a", form(NEXT, "abc", ABC), 1.0)
    assert worker.state.standing.formed == Roster(FIRST, tuple("abc"))
    worker.take(p.Made(NEXT))
    assert worker.state.standing == Standing(Roster(NEXT, tuple("abc")))


def test_attempt_that_a_peer_is_in_is_known_to_be_complete():
    """Its order counts from then on, or its members would look for conveners in the orders of two attempts."""
    change = Roster(Number(2, 0), tuple("abj"), announcer="a")
    worker = broken("b", "abc", change).receive("j", p.Alive(change.number), 1.0)
    assert worker.state.standing == Standing(change)


def test_joiner_that_waits_for_an_attempt_which_others_have_left_meets_them():
    change = Roster(Number(2, 0), tuple("bj"), announcer="a")
    worker = joining("j", change).receive("b", p.Alive(change.number), 1.0)
    assert worker.state.phase is Phase.WAITING, "it may still begin"
    worker.receive("b", p.Call(Number(2, 1), change.number, begun=True), 2.0)
    assert (worker.state.phase, worker.state.convener) == (Phase.MEETING, "b")


def test_who_convenes_after_another_listens_to_all_who_met_there():
    """They spoke to the one that is gone, and not to one another."""
    b = broken("b", "abc")
    for second in range(1, 9):
        b.receive("a", p.Alive(FIRST), now=float(second), echo=second - 0.5)
    b.take(p.Closed("a")).take(p.Refused("a"))
    assert not b.forms(), "c may still come"
    c = meet("c", b.state.promised, Standing(Roster(FIRST, tuple("abc"))), refused="a", proven="a")
    assert [form.roster.members for form in b.receive("c", c).forms()] == [("b", "c")]
