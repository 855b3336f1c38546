"""What each action about stragglers entails."""

from __future__ import annotations

from typing import get_args

from heterotrain_operator.api.spec.stragglers import Stragglers
from heterotrain_operator.core.stragglers.verdict import ACTIONS


def test_every_action_of_a_manifest_says_what_it_entails() -> None:
    assert ACTIONS.keys() == set(get_args(Stragglers.model_fields["action"].annotation))


def test_nothing_is_done_about_workers_that_nobody_judges() -> None:
    assert all(action.judges for action in ACTIONS.values() if action.hastens or action.changes_members)
