"""Planned changes: what accepts them, what gives them up, and which joiners are let go."""

from __future__ import annotations

from dataclasses import replace

from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.roster import Number, Roster, Standing
from heterotrain.groups.convening.worker_state import Phase, is_prepared
from unit.convening.workers import ABC, CHANGE, FIRST, NEXT, broken, form, joining, training


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
        joiner.receive("a", p.Alive(change.number), float(at), echo=at - 0.1).take(p.Committed(7 + at, float(at)))
    joiner.take(p.Closed("a")).take(p.Refused("a")).take(p.Broken(12)).tick_until(20.0)
    assert [each.roster.members for each in joiner.forms()] == [("j",)]


def test_joiner_that_was_called_to_a_meeting_accepts_no_change_beside_it():
    worker = joining("j", CHANGE).receive("a", p.Call(NEXT, FIRST, begun=True), 1.0)
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
    fence = member.receive("j", met, 1.0).sent("j")[0].message
    assert fence == p.Fenced(Number(1, 3), ("a", "b"))
    joiner = joining("j", CHANGE).receive("b", p.Call(Number(1, 3), FIRST, begun=True), 1.0)
    assert joiner.state.phase is Phase.MEETING
    assert joiner.receive("b", fence).state.phase is Phase.WAITING
    assert is_prepared(joiner.state, CHANGE.number), "a newer change that it has accepted may still begin"


def test_joiner_that_was_only_called_to_a_meeting_takes_part_in_the_next_change():
    """As one whom a plan names that says who has ended: the others form without it, and then take it in."""
    called = joining("j").receive("b", p.Call(Number(1, 3), FIRST, begun=True), 1.0)
    assert called.state.phase is Phase.MEETING
    later = called.take(p.Prepared(CHANGE, None))
    assert (later.state.phase, later.state.convener) == (Phase.WAITING, None)
    assert is_prepared(later.state, CHANGE.number)
    form = p.Form(Roster(Number(1, 3), ("b", "j")), 3, "a plan", ABC)
    assert not later.receive("b", form).forms(), "nobody in that change knows of it"


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


def test_joiner_is_let_go_only_by_whom_it_meets():
    joiner = (
        joining("j")
        .receive("b", p.Call(NEXT, FIRST, begun=True), 1.0)
        .receive("c", p.Call(Number(2, 1), NEXT, begun=True))
    )
    assert joiner.tick_until(2.0).state.convener == "c"
    assert joiner.receive("b", p.Fenced(Number(1, 3), ("a", "b"))).state.phase is Phase.MEETING


def test_joiner_that_was_let_go_accepts_nothing_below_what_it_has_promised():
    joiner = joining("j").receive("b", p.Call(Number(2, 1), FIRST, begun=True), 1.0)
    joiner.receive("b", p.Fenced(Number(2, 1), ("a", "b")))
    assert not is_prepared(joiner.take(p.Prepared(CHANGE, None)).state, CHANGE.number)


def test_joiner_that_has_promised_a_later_attempt_takes_part_in_no_change():
    called = joining("j").receive("b", p.Call(Number(2, 1), FIRST, begun=True), 1.0)
    assert called.take(p.Prepared(CHANGE, None)).state.phase is Phase.MEETING
    assert not is_prepared(called.state, CHANGE.number)


def test_joiner_that_waits_may_be_called_and_switches_no_more():
    joiner = joining("j", CHANGE).receive("b", p.Call(NEXT, FIRST, begun=True), 1.0)
    assert joiner.take(p.Switched(CHANGE.number)).state.phase is Phase.MEETING
