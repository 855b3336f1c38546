"""Random jobs on random clusters: decisions never raise, keep every bound, and rest when nothing happens any more."""

from __future__ import annotations

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from random_scenarios import broken_rules, is_calm, random_scenario

# A smaller seed is no simpler scenario, so nothing is shrunk.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=settings().max_examples // 5, deadline=None, phases=PHASES)
@given(SEEDS, st.booleans())
def test_whatever_happens_plans_are_sound(seed: int, forgetful: bool) -> None:
    """`python hack/bench/random_scenarios.py` tries thousands."""
    assert broken_rules(random_scenario(seed), forgetful=forgetful) == []


def test_some_scenarios_are_calm_enough_to_come_to_rest() -> None:
    assert sum(is_calm(random_scenario(seed)) for seed in range(200)) >= 10
