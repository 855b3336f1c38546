"""Batching policies, one per file; the names in `POLICIES` are those of `batching.policy` in a manifest.

Internal ones are no choice for a manifest: they profile workers, or show what the papers' own rules do.
"""

from __future__ import annotations

from heterotrain_operator.core.batching.policies import (
    omnilearn,
    optimal,
    papers_proportional,
    profile,
    proportional,
    static,
    uniform,
)
from heterotrain_operator.core.batching.policies.profile import PROFILE_PLANS
from heterotrain_operator.core.batching.policy import Policy, Promise, Proposal, Seat, Split

POLICIES: dict[str, Policy] = {
    "Uniform": uniform.POLICY,
    "Static": static.POLICY,
    "Proportional": proportional.POLICY,
    "Optimal": optimal.POLICY,
    "Profile": profile.POLICY,
    "PapersProportional": papers_proportional.POLICY,
    "OmniLearn": omnilearn.POLICY,
}

__all__ = ["POLICIES", "PROFILE_PLANS", "Policy", "Promise", "Proposal", "Seat", "Split"]
