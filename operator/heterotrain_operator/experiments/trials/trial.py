"""The trials of an experiment, in the order in which they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PROFILE = "Profile"


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial to run; `round` counts from 1. The profile runs before (0) and after (1) all others, once for each
    `level` of CPU limits.
    """

    policy: str
    round: int
    level: int = 0

    @property
    def is_profile(self) -> bool:
        """True if it only measures the workers."""
        return self.policy == PROFILE

    @property
    def slug(self) -> str:
        """Its name in file names."""
        return f"{self.policy.lower()}-{self.round}" + (f"-limits-{self.level}" if self.level else "")


def trials_of(policies: Sequence[str], rounds: int, profile: bool, levels: int = 1) -> tuple[Trial, ...]:
    """What to run, in order: all policies in each round, and profiles before and after under each of `levels` sets of
    CPU limits.

    The order is reversed so that a machine which becomes slower or faster meanwhile favours no policy.
    """
    trials = []
    for number in range(1, rounds + 1):
        order = policies if number % 2 else tuple(reversed(policies))
        trials += [Trial(policy, number) for policy in order]
    if not profile:
        return tuple(trials)
    before, after = (tuple(Trial(PROFILE, number, level) for level in range(levels)) for number in (0, 1))
    return (*before, *trials, *reversed(after))
