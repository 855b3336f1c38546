"""Batching policies, one per file; the names in `POLICIES` are those of `batching.policy` in a manifest."""

from __future__ import annotations

from heterotrain_operator.core.batching.policies import optimal, profile, proportional, static, uniform
from heterotrain_operator.core.batching.policies.profile import PROFILE_PLANS
from heterotrain_operator.core.batching.policy import Policy, Promise, Proposal, Seat, Split

POLICIES: dict[str, Policy] = {
    "Uniform": uniform.POLICY,
    "Static": static.POLICY,
    "Proportional": proportional.POLICY,
    "Optimal": optimal.POLICY,
    "Profile": profile.POLICY,
}

__all__ = ["POLICIES", "PROFILE_PLANS", "Policy", "Promise", "Proposal", "Seat", "Split"]
