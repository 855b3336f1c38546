"""What a worker promises to others and accepts: attempts of a convener, and planned changes."""

from __future__ import annotations

from dataclasses import replace

from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.roster import Number, Roster, Standing
from heterotrain.groups.convening.worker_state import Phase, is_prepared
from unit.convening.workers import ABC, CHANGE, FIRST, NEXT, Worker, broken, form, joining, meet, training


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


def test_worker_that_meets_one_is_not_bound_again_by_the_beats_of_another():
    """A peer that only some can reach would otherwise stop everybody for as long as it beats."""
    worker = broken("b", "abc")
    for now in (1.0, 2.0, 3.0, 4.0):
        worker.receive("c", p.Beat(FIRST), now)
    worker.receive("a", p.Alive(FIRST), 4.0)
    assert worker.receive("a", form(NEXT, "ab", ABC), 5.1).forms()


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


def test_worker_is_free_of_a_peer_whose_port_refuses():
    assert answering().receive("a", form(NEXT, "ab", ABC, excused="c"), 11.0).forms()


def test_joiner_answers_nobody_whom_the_change_leaves_out():
    """It may switch to the change at any time."""
    worker = joining("j", Roster(Number(2, 0), tuple("abj"), announcer="a"))
    assert worker.receive("c", p.Call(NEXT, FIRST, begun=False), 1.0).sent("c")[0].echo is None


def test_attempt_that_is_only_accepted_is_not_taken_for_complete():
    worker = broken("b", "abc").receive("a", form(NEXT, "abc", ABC), 1.0)
    assert worker.state.standing.formed == Roster(FIRST, tuple("abc"))
    worker.take(p.Made(NEXT))
    assert worker.state.standing == Standing(Roster(NEXT, tuple("abc")))


def test_joiner_that_has_promised_a_later_attempt_takes_part_in_no_change():
    called = joining("j").receive("b", p.Call(Number(2, 1), FIRST, begun=True), 1.0)
    assert called.take(p.Prepared(CHANGE, None)).state.phase is Phase.MEETING
    assert not is_prepared(called.state, CHANGE.number)


def test_joiner_is_let_go_only_by_whom_it_meets():
    joiner = (
        joining("j")
        .receive("b", p.Call(NEXT, FIRST, begun=True), 1.0)
        .receive("c", p.Call(Number(2, 1), NEXT, begun=True))
    )
    assert joiner.tick_until(2.0).state.convener == "c"
    assert joiner.receive("b", p.Fenced(Number(1, 3), ("a", "b"))).state.phase is Phase.MEETING


def test_joiner_with_an_older_change_is_let_go_by_whoever_called_it_and_went_on_without_it():
    """Before it is, it accepts no other change, so the operator would give it up as one that does not follow."""
    number = Number.by_word_of(3)
    older, newer = CHANGE, Roster(Number(3, 0), tuple("abj"), announcer="a")
    joiner = joining("j", older).receive("b", p.Call(number, FIRST, begun=True), 1.0).take(p.Connected("b"))
    beats = joiner.tick_until(5.0).all
    assert [each.message for each in beats if isinstance(each, p.Send)][-1] == p.Beat(None)
    meeting = broken("b", "ab").take(p.Connected("j")).receive("j", p.Beat(None))
    assert p.Fenced not in [type(each.message) for each in meeting.sent("j")], "it may be needed yet"
    member = training("b", "ab", number=number).take(p.Connected("j"), 0.5)
    fence = member.receive("j", p.Beat(None), 5.0).sent("j")[0].message
    assert fence == p.Fenced(number, ("a", "b"))
    assert joiner.receive("b", fence).state.phase is Phase.WAITING
    assert is_prepared(joiner.take(p.Prepared(newer, None)).state, newer.number)


def test_joiner_that_was_not_needed_at_a_meeting_waits_for_another_plan():
    """Were it to go on meeting, it would miss the switch to the next change that names it."""
    member = training("b", "ab", number=Number(1, 3)).take(p.Connected("j"), 0.5)
    met = p.Meet(Number(1, 3), Standing(None, (CHANGE,)), 0, has_state=False, begun=False)
    fence = member.receive("j", met, 1.0).sent("j")[0].message
    assert fence == p.Fenced(Number(1, 3), ("a", "b"))
    joiner = joining("j", CHANGE).receive("b", p.Call(Number(1, 3), FIRST, begun=True), 1.0)
    assert joiner.state.phase is Phase.MEETING
    assert joiner.receive("b", fence).state.phase is Phase.WAITING
    assert is_prepared(joiner.state, CHANGE.number), "a newer change that it has accepted may still begin"


def test_change_that_was_given_up_needs_no_quorum():
    worker = training("b", "abc").take(p.Prepared(CHANGE, FIRST)).take(p.Abandoned(CHANGE.number))
    assert not is_prepared(worker.state, CHANGE.number)


def test_joiner_that_accepts_an_older_change_late_forgets_no_newer_one():
    newer = Roster(Number(2, 3), tuple("aj"), announcer="a")
    assert joining("j", newer, CHANGE).state.standing.pending == (newer, CHANGE)


def test_worker_that_a_change_leaves_out_ends_at_the_switch():
    worker = training("c", "abc", CHANGE).take(p.Switched(CHANGE.number))
    assert worker.state.phase is Phase.OUT
    assert worker.does(p.Exit)


def test_joiner_that_was_let_go_accepts_nothing_below_what_it_has_promised():
    joiner = joining("j").receive("b", p.Call(Number(2, 1), FIRST, begun=True), 1.0)
    joiner.receive("b", p.Fenced(Number(2, 1), ("a", "b")))
    assert not is_prepared(joiner.take(p.Prepared(CHANGE, None)).state, CHANGE.number)


def test_joiner_that_had_accepted_what_was_abandoned_goes_on_alone_as_any_other_would():
    """It waited for the members of the abandoned change, and for good: no plan could tell it otherwise."""
    change = Roster(CHANGE.number, tuple("aj"), announcer="a")
    joiner = joining("j", CHANGE, change).take(p.Connected("a")).take(p.Switched(change.number)).take(p.Agreed(7))
    for at in range(1, 6):
        joiner.receive("a", p.Alive(change.number), float(at), echo=at - 0.1).take(p.Committed(7 + at, float(at)))
    joiner.take(p.Closed("a")).take(p.Refused("a")).take(p.Broken(12)).tick_until(20.0)
    assert [each.roster.members for each in joiner.forms()] == [("j",)]


def test_joiner_that_was_only_called_to_a_meeting_takes_part_in_the_next_change():
    """As one whom a plan names that says who has ended: the others form without it, and then take it in."""
    called = joining("j").receive("b", p.Call(Number(1, 3), FIRST, begun=True), 1.0)
    assert called.state.phase is Phase.MEETING
    later = called.take(p.Prepared(CHANGE, None))
    assert (later.state.phase, later.state.convener) == (Phase.WAITING, None)
    assert is_prepared(later.state, CHANGE.number)
    form = p.Form(Roster(Number(1, 3), ("b", "j")), 3, "a plan", ABC)
    assert not later.receive("b", form).forms(), "nobody in that change knows of it"


def test_switch_to_what_was_never_accepted_changes_nothing():
    worker = training("b", "abc").take(p.Switched(CHANGE.number))
    assert (worker.state.phase, worker.state.standing) == (Phase.TRAINING, ABC)


def test_joiner_forgets_no_attempt_that_a_meeting_has_formed_with_it():
    """The others may have made its groups, and wait for the first contribution without end."""
    formed = Roster(NEXT, tuple("abj"))
    worker = joining("j")
    worker.state = replace(worker.state, standing=Standing(None, (formed,)))
    assert worker.take(p.Prepared(CHANGE, None)).state.standing.pending == (formed, CHANGE)
