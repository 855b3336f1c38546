"""Who may form the next attempt."""

from __future__ import annotations

import pytest

from heterotrain.groups.convening.leases import Leases
from heterotrain.groups.convening.roster import Number, Roster, Standing, has_quorum, joint

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


def test_older_attempts_do_not_matter_once_a_newer_one_is_complete():
    assert Standing(FIVE).accept(THREE).form(THREE) == Standing(THREE)
    assert joint([Standing(FIVE).accept(THREE), Standing(THREE)]) == Standing(THREE)


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


def test_joiner_alone_may_form_nothing():
    assert not Standing(None, (THREE,)).allows(set("abc"), set())


def test_refusal_proves_death_only_soon_after_what_the_peer_has_answered():
    heard = Leases().receive("d", now=10.0, sent=500.0, echo=9.0)
    assert heard.refuse("d", 12.9, 4.0).proven == {"d"}
    late = heard.refuse("d", 13.1, 4.0)
    assert (late.refused, late.proven) == ({"d"}, set())


def test_answer_that_was_on_its_way_for_long_gives_no_lease():
    assert not Leases().receive("d", now=100.0, sent=500.0, echo=9.0).refuse("d", 100.1, 4.0).proven


def test_port_of_a_worker_from_which_nothing_came_may_only_not_be_open_yet():
    assert not Leases().refuse("d", 1.0, 4.0).refused


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


def test_answer_that_waited_for_the_next_beat_binds_no_longer_than_one_at_once():
    late, _ = Leases().receive("d", now=10.0, sent=500.0, echo=None).answer("d", 10.9)
    assert late.owed(["d"], 10.9, 5.0) == (("d", pytest.approx(4.1)),)


def test_frame_that_is_answered_again_prolongs_no_lease():
    heard = Leases().receive("d", now=10.0, sent=500.0, echo=None)
    once, echo = heard.answer("d", 10.0)
    again, echo_again = once.answer("d", 14.0)
    assert echo == echo_again == 500.0
    assert again.granted == {"d": 10.0}
    assert again.owed(["d"], 14.0, 5.0) == (("d", 1.0),)
