"""Who may form the next attempt, and what a convener makes of those who have met."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain.groups.convening import protocol as p
from heterotrain.groups.convening.leases import Leases
from heterotrain.groups.convening.roster import Number, Roster, Standing, has_quorum, joint
from heterotrain.groups.convening.settling import Attendance, Holds, Lost, Met, Out, Waits, settle
from unit.convening.workers import ABC, FIRST, NEXT, RULES, meet, training

FIVE = Roster(Number(1, 1), tuple("abcde"))
THREE = Roster(Number(1, 2), tuple("abc"))


@pytest.mark.parametrize(
    ("present", "dead", "expected"),
    [
        ("abc", "", True),
        ("ab", "", False),
        ("cde", "", True),
        ("ab", "cd", True),
        ("ab", "c", True),  # half of four, with the first
        ("de", "c", False),  # the other half
        ("b", "a", False),
        ("a", "bcde", True),
        ("", "abcde", False),
        ("abc", "abc", True),  # who is present lives
    ],
)
def test_quorum_is_majority_without_the_proven_dead_or_half_with_the_first(present: str, dead: str, expected: bool):
    assert has_quorum(FIVE.members, set(present), set(dead)) is expected


def test_no_two_disjoint_sets_have_a_quorum_whatever_each_knows_of_the_dead():
    members = tuple("abcd")
    subsets = [{uid for bit, uid in enumerate(members) if mask >> bit & 1} for mask in range(16)]
    for one in subsets:
        for other in subsets:
            if one & other:
                continue
            for dead_to_one in subsets:
                for dead_to_other in subsets:
                    if dead_to_one & (one | other) or dead_to_other & (one | other):
                        continue
                    both = has_quorum(members, one, dead_to_one) and has_quorum(members, other, dead_to_other)
                    assert not both, (one, other, dead_to_one, dead_to_other)


def test_attempt_that_others_may_have_completed_needs_a_quorum_of_its_own():
    # a, b and c were to form 1.2. a and b have accepted it and never learnt whether c did; c, d and e know nothing.
    unsure = Standing(FIVE).accept(THREE)
    assert not unsure.allows(set("ab"), set()), "c, d and e may be going on with the majority of 1.1"
    assert Standing(FIVE).allows(set("cde"), set())
    assert not joint([Standing(FIVE), unsure]).allows(set("cde"), set()), "a and b may be going on with 1.2"
    assert Standing(FIVE).form(THREE).allows(set("ab"), set()), "all of 1.2 have been in it"


def test_planned_change_counts_unless_its_announcer_is_here_and_has_not_announced_it():
    change = Roster(Number(2, 0), tuple("ajklm"), announcer="a")
    preparing = Standing(THREE).accept(change)
    assert not joint([preparing]).allows(set("bc"), {"a"}), "a may have switched with all who have joined"
    assert joint([preparing], {"a": {Number(2, 0)}}).pending == (change,)
    assert joint([preparing], {"a": set()}).allows(set("ab"), set())


def test_workers_that_the_operator_saw_end_count_only_if_nobody_else_is_missing():
    standing = Standing(FIVE)
    assert not standing.allows({"e"}, set(), set("abc")), "d may have gone on with some of them before they ended"
    assert not standing.allows({"d"}, set(), set("abc")), "as e may, though it has no quorum"
    assert standing.allows({"e"}, set(), set("abcd"))
    assert not standing.allows({"e"}, set()), "without the operator's word nobody has ended"


def test_refusal_proves_death_only_soon_after_what_the_peer_has_answered():
    heard = Leases().receive("d", now=10.0, sent=500.0, echo=9.0)
    assert heard.refuse("d", 12.9, 4.0).proven == {"d"}
    late = heard.refuse("d", 13.1, 4.0)
    assert (late.refused, late.proven) == ({"d"}, set())


def test_committed_step_is_an_answer_to_the_contribution_before_it():
    first = Leases().stepped(["d"], now=10.0, began=None)
    assert not first.refuse("d", 10.1, 4.0).proven, "d may not have received this worker's contribution yet"
    assert first.stepped(["d"], now=12.0, began=9.0).refuse("d", 12.9, 4.0).proven


def test_worker_that_was_late_prolongs_no_lease():
    leases = Leases().receive("d", now=10.0, sent=500.0, echo=9.0).grant(["d"], 10.0)
    late = leases.restart(60.0)
    assert not late.is_silent("d", 64.0, 0.0, 5.0)
    assert not late.refuse("d", 60.0, 4.0).proven
    assert late.granted == leases.granted


ABCDE = Standing(Roster(FIRST, tuple("abcde")))
LATE = 100.0  # when all who have not met are silent


def meeting(
    *met: tuple[str, p.Meet], plan: p.PlanShown | None = None, number: Number = NEXT, away: bool = False
) -> Attendance:
    """Of the first of those who have met, which convenes, all of them at `LATE`."""
    return Attendance(
        me=met[0][0],
        number=number,
        met={uid: Met(each, LATE) for uid, each in met},
        leases=Leases(),
        since=0.0,
        away=away,
        plan=plan,
        silence_seconds=RULES.silence_seconds,
        split=RULES.split,
    )


def here(uid: str, standing: Standing = ABC, **changes: object) -> tuple[str, p.Meet]:
    return uid, replace(meet(uid, NEXT, standing), **changes)  # type: ignore[arg-type]


def members_of(verdict: object) -> str:
    assert isinstance(verdict, p.Form), verdict
    return "".join(verdict.roster.members)


def test_those_who_may_still_come_are_waited_for():
    early = replace(meeting(here("a"), here("b")), since=LATE - 1)
    assert settle(early, LATE) == Waits(("c",))
    assert members_of(settle(meeting(here("a"), here("b")), LATE)) == "ab"


def test_who_met_under_another_number_has_promised_nothing_for_this_one():
    verdict = settle(meeting(here("a"), here("b", number=FIRST)), LATE)
    assert isinstance(verdict, Holds)


def test_member_that_is_dead_without_a_proof_counts_against_the_quorum():
    assert isinstance(settle(meeting(here("a", refused=frozenset("bc"))), LATE), Holds)
    assert members_of(settle(meeting(here("a", proven=frozenset("bc"), refused=frozenset("bc"))), LATE)) == "a"


def test_proof_of_a_worker_that_has_not_met_under_this_number_counts_for_nothing():
    """It may have accepted with the dead one what those who met do not know."""
    old = here("c", number=FIRST, proven=frozenset("b"))
    assert isinstance(settle(meeting(here("a"), old, away=False), LATE), Holds)


def test_convener_forms_nothing_without_a_peer_to_which_one_who_met_is_bound():
    verdict = settle(meeting(here("a", owes=(("c", 3.0),)), here("b")), LATE + 1)
    assert verdict == Waits(("c",), LATE + 3.0)
    assert members_of(settle(meeting(here("a", owes=(("c", 3.0),)), here("b")), LATE + 3.5)) == "ab"
    assert members_of(settle(meeting(here("a", owes=(("c", 3.0),), refused=frozenset("c")), here("b")), LATE)) == "ab"


def test_what_an_announcer_said_under_another_number_counts_for_nothing():
    """It may have announced the switch since."""
    change = Roster(Number(2, 0), tuple("ajklm"), announcer="a")
    old = here("a", number=FIRST)
    met = [here("b", ABC.accept(change)), here("c")]
    assert settle(meeting(*met, old), LATE) == Holds(("a", "j", "k", "l", "m"))
    assert members_of(settle(meeting(*met, here("a")), LATE)) == "abc"


def test_attempt_begins_after_the_last_step_that_anybody_here_has_committed():
    verdict = settle(meeting(here("a", step=6), here("b"), here("c", step=9, has_state=False)), LATE)
    assert isinstance(verdict, p.Form)
    assert verdict.base == 7, "what c counts it has no state of"


def test_first_attempt_of_a_job_needs_all_whom_its_plan_names():
    start = Standing(Roster(Number(1, 0), tuple("abc")))
    two = [here("a", start, begun=False), here("b", start, begun=False)]
    assert settle(meeting(*two), LATE) == Holds(("c",))
    without = p.PlanShown(2, ("a", "b"), evicted=frozenset("c"))
    assert members_of(settle(meeting(*two, plan=without), LATE)) == "ab"


def test_worker_that_leaves_is_left_out_if_the_others_are_a_quorum():
    verdict = settle(meeting(here("a"), here("b", leaving=True), here("c")), LATE)
    assert members_of(verdict) == "ac"
    assert isinstance(verdict, p.Form)
    assert verdict.excused == {"b"}, "they need not wait until they are free of it"


def test_worker_that_leaves_is_taken_along_if_the_others_are_no_quorum():
    assert members_of(settle(meeting(here("a", leaving=True), here("b")), LATE)) == "ab"


def test_all_is_lost_only_if_everybody_who_might_have_the_state_has_ended():
    met = [here("b", has_state=False), here("c", has_state=False)]
    assert settle(meeting(*met), LATE) == Holds(("a",))
    assert settle(meeting(*met[:1], here("c", has_state=False, refused=frozenset("a"))), LATE) == Lost()
    lone = here("e", ABCDE, has_state=False, refused=frozenset("abcd"))
    assert isinstance(settle(meeting(lone), LATE), Holds), "it has no quorum, so others may have gone on"


def test_who_has_ended_by_the_operators_word_counts_under_a_number_of_its_plan():
    plan = p.PlanShown(2, ("c",), evicted=frozenset("ab"))
    assert isinstance(settle(meeting(here("c"), plan=plan), LATE), Holds), "who has ended may have formed it"
    before = Number(1, 999)
    assert isinstance(settle(meeting(here("c", number=before), plan=plan, number=before), LATE), Holds)
    number = Number.by_word_of(2)
    assert Number(1, 999) < number < Number(2, 0), "between all of earlier plans and the change to this one"
    assert members_of(settle(meeting(here("c", number=number), plan=plan, number=number), LATE)) == "c"


def test_word_of_the_operator_counts_only_once_all_have_met_whom_its_plan_names():
    """A worker that is not known here may have trained with those who have ended, in an attempt not known here."""
    plan = p.PlanShown(2, ("c", "j"), evicted=frozenset("ab"))
    number = Number.by_word_of(2)
    alone = here("c", number=number)
    assert settle(meeting(alone, plan=plan, number=number), LATE) == Holds(("a", "b", "j"))
    newcomer = ("j", meet("j", number, Standing(), has_state=False))
    assert members_of(settle(meeting(alone, newcomer, plan=plan, number=number), LATE)) == "c"
    knows_more = ("j", meet("j", number, Standing(Roster(Number(1, 5), tuple("abj")))))
    assert isinstance(settle(meeting(alone, knows_more, plan=plan, number=number), LATE), Out)


def test_proof_of_a_worker_that_leaves_counts_for_nothing():
    """All others are free of it, so they may have accepted attempts without it."""
    leaver = here("e", ABCDE, leaving=True, proven=frozenset("cd"))
    assert isinstance(settle(meeting(here("b", ABCDE), leaver), LATE), Holds)


def test_worker_that_leaves_is_taken_along_where_all_are_needed():
    everyone = meeting(here("a"), here("b", leaving=True), here("c"))
    assert members_of(settle(replace(everyone, all_needed=True), LATE)) == "abc"
    assert settle(replace(meeting(here("a"), here("b")), all_needed=True), LATE) == Holds(("c",))


def test_word_of_a_plan_older_than_the_attempt_counts_for_nothing():
    """It named everybody who lived then, and others have joined since."""
    third = Standing(Roster(Number(3, 0), tuple("abc")))
    plan = p.PlanShown(2, ("c",), evicted=frozenset("ab"))
    number = Number(3, 1)
    assert isinstance(settle(meeting(("c", meet("c", number, third)), plan=plan, number=number), LATE), Holds)


def test_word_of_a_plan_counts_after_a_change_to_the_one_before_was_made_again():
    """Numbers run ahead of plans nowhere, or what a plan says would be taken for older than the attempt."""
    broke = Number(2, 2)  # formed after the change to plan 2 was accepted, and broke
    change = Standing(Roster(Number.of_change(2, broke, 2), tuple("ab"), announcer="a"))
    plan = p.PlanShown(3, ("b",), evicted=frozenset("a"))
    number = Number.by_word_of(3)
    met = "b", meet("b", number, change)
    assert members_of(settle(meeting(met, plan=plan, number=number), LATE)) == "b"


def test_newcomer_that_the_operators_plan_names_is_called_even_if_nobody_here_ever_trained():
    """Those who have ended may have trained with it, although the one that is here has never made its groups."""
    start = Standing(Roster(Number(1, 0), tuple("abc")))
    worker = training("c", "abc", number=Number(1, 0))
    worker.state = replace(worker.state, standing=start, begun=False, links=frozenset("j"))
    worker.take(p.PlanShown(2, ("c", "j"), evicted=frozenset("ab")), 0.5).take(p.Broken(0)).tick_until(12.0)
    calls = [each.message for each in worker.all if isinstance(each, p.Send) and each.uid == "j"]
    assert p.Call(Number.by_word_of(2), Number(1, 0), begun=True) in calls
    assert not worker.forms()


def test_frame_that_is_answered_again_prolongs_no_lease():
    heard = Leases().receive("d", now=10.0, sent=500.0, echo=None)
    once, echo = heard.answer("d", 10.0)
    again, echo_again = once.answer("d", 14.0)
    assert echo == echo_again == 500.0
    assert again.granted == {"d": 10.0}
    assert again.owed(["d"], 14.0, 5.0) == (("d", 1.0),)


def test_port_of_a_worker_from_which_nothing_came_may_only_not_be_open_yet():
    assert not Leases().refuse("d", 1.0, 4.0).refused


def test_answer_that_was_on_its_way_for_long_gives_no_lease():
    assert not Leases().receive("d", now=100.0, sent=500.0, echo=9.0).refuse("d", 100.1, 4.0).proven


def test_joiner_alone_may_form_nothing():
    assert not Standing(None, (THREE,)).allows(set("abc"), set())


def test_answer_that_waited_for_the_next_beat_binds_no_longer_than_one_at_once():
    late, _ = Leases().receive("d", now=10.0, sent=500.0, echo=None).answer("d", 10.9)
    assert late.owed(["d"], 10.9, 5.0) == (("d", pytest.approx(4.1)),)
