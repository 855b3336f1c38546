"""What a scenario's file asks for, ready to run: the simulated cluster, and under which policies and seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from heterotrain_operator.clusters.simulated.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Simulation:
    """`scenario` has the job's own policy and the first seed; each of `policies` runs with each of `seeds` in turn.

    `text` is the file's as it was read, empty if it was none.
    """

    name: str
    description: str
    scenario: Scenario
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    text: str = ""

    def runs(self) -> Iterator[tuple[str, Scenario]]:
        """Each policy and its scenario; those of one seed have the same noise."""
        for seed in self.seeds:
            for policy in self.policies:
                yield policy, replace(self.scenario, job=replace(self.scenario.job, policy=policy), seed=seed)
