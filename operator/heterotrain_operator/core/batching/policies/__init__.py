"""Batching policies; the names in `POLICIES` are those of `batching.policy` in a manifest.

Internal ones are no choice for a manifest: they profile workers.
"""

from __future__ import annotations

from heterotrain_operator.core.batching.policies import lbbsp, optimal, papers, proportional, static
from heterotrain_operator.core.batching.policies.static import PROFILE_PLANS
from heterotrain_operator.core.batching.policy import Policy, Promise, Proposal, Seat, Split

POLICIES: dict[str, Policy] = {
    "Uniform": static.UNIFORM,
    "Static": static.STATIC,
    "Proportional": proportional.POLICY,
    "Optimal": optimal.POLICY,
    "LBBSP": lbbsp.POLICY,
    "PapersProportional": papers.POLICY,
    "Profile": static.PROFILE,
}

__all__ = ["POLICIES", "PROFILE_PLANS", "Policy", "Promise", "Proposal", "Seat", "Split"]
