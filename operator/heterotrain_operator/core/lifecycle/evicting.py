"""Whom a plan names as evicted: workers that were seen to end, so that the others may go on without a quorum.

Those that are left go on by themselves where they are a majority, or can prove that the others have ended. A worker
that ends after it was silent for long proves nothing to the others: it may have gone on without them before. Then they
wait for the operator's word, which would split the job if it were wrong. So it is given only

* of workers whose exit code was seen, which their own machine reports. Nobody on a node that does not answer is seen
  to end, and a pod that was deleted by force, or that is only not there any more, may still run.
* if nobody else could train beside the members of the next plan: everybody whom the active plan names is one of them,
  or was seen to end. The active plan speaks for all before it if a member has gone over to it, since every later
  attempt needs a majority of that one; or if it gives the word itself, so that this was so by then.

Of this only that is remembered, beside the plan itself: that a member was seen to have gone over to it. Nobody goes
back, and in the look that shows who has ended those that are left may not be read. Where the operator has missed
something, it says nothing, and the workers start again from their checkpoint once they have waited for long enough.
"""

from __future__ import annotations

from collections.abc import Collection

from heterotrain.contract import MAX_EVICTED
from heterotrain_operator.core.facts import Facts
from heterotrain_operator.core.lifecycle.following import was_carried_out
from heterotrain_operator.core.state import Memory


def evicted(facts: Facts, memory: Memory, staying: Collection[str]) -> tuple[str, ...]:
    """UIDs of the workers without which those that are `staying`, by UID, go on by the next plan's word; none if that
    would not be safe.
    """
    plan = facts.plan
    if plan is None or len(facts.members) != len(plan.members):
        return ()
    is_followed = was_carried_out(facts, memory)
    before = () if is_followed else plan.evicted
    if not before and not is_followed:
        return ()
    missing = [
        (member, worker if worker is not None else facts.departed.get(member.name))
        for member, worker in zip(plan.members, facts.members, strict=True)
        if member.uid not in staying
    ]
    if any(seen is None or seen.uid != member.uid or seen.exit_code is None for member, seen in missing):
        return ()
    uids = (*before, *(member.uid for member, _ in missing))
    return uids if len(uids) <= MAX_EVICTED and not set(uids) & set(staying) else ()
