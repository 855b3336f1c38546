"""What trainers do by themselves whose members can change while they train: those that are left share the batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from heterotrain.contract import MEMBERS_MAY_END, Plan
from heterotrain_operator.clusters.simulated.pod import SimulatedPod
from heterotrain_operator.core.split.allocation import split_proportionally
from heterotrain_operator.core.split.passes import at_once


def can_change(pods: Sequence[SimulatedPod]) -> bool:
    """Whether these members can go on with others, and without some of them."""
    return all(pod.protocol >= MEMBERS_MAY_END for pod in pods)


def reformed(plan: Plan, survivors: Sequence[SimulatedPod]) -> Plan:
    """The plan with those that are left of its members, and their batches as many times as large, in whole samples; a
    member computes no more of them at once than before.
    """
    uids = {pod.uid for pod in survivors}
    members = [member for member in plan.members if member.uid in uids]
    total = plan.global_batch_size
    batches = split_proportionally([member.batch_size for member in members], total, [(0, total)] * len(members))
    return replace(
        plan,
        members=tuple(
            replace(member, batch_size=batch, micro_batch_size=at_once(member) if batch > at_once(member) else 0)
            for member, batch in zip(members, batches, strict=True)
        ),
    )


def present_of(plan: Plan, pods: Mapping[str, SimulatedPod]) -> list[SimulatedPod]:
    """The plan's members that are there and can take part in steps, by rank."""
    found = ((pods.get(member.name), member.uid) for member in plan.members)
    return [pod for pod, uid in found if pod is not None and pod.uid == uid and pod.is_ready]


def leave(pods: Sequence[SimulatedPod], staying: Collection[str], step: int) -> None:
    """Members whose UIDs are not among those that stay end in order, after so many committed steps."""
    for pod in pods:
        if pod.uid not in staying and pod.exit_code is None and pod.gone_at is None:
            pod.end_in_order(step)
