"""A worker that is slow by fault befalls nobody else: the others train on, and another one joins them in its place."""

from __future__ import annotations

import pytest

from e2e.conftest import Apply
from e2e.history import History
from e2e.jobs import START_SECONDS, JobOnCluster, shares
from e2e.members import assert_only_replaced, uids, without
from e2e.slowing import INTERVAL, LIMITED, SLOWED, slowed_job, wait_for_replacement
from e2e.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SETTLED_INTERVALS = 6
"""Control intervals after which a worker that is slow by fault would long have been named."""


@pytest.mark.alone
def test_a_slowed_worker_is_replaced_and_one_with_a_lower_limit_only_rebalanced(apply: Apply) -> None:
    struck = apply(slowed_job())
    with History(struck) as history:
        struck.wait_for_step(8 * INTERVAL)
        before = shares(struck.plan)[struck.pod_name(LIMITED)]
        struck.resize(LIMITED, "150m")
        wait_for(
            lambda: shares(struck.plan)[struck.pod_name(LIMITED)] < 0.8 * before,
            120,
            "fewer samples for the worker whose limit was lowered",
        )
        struck.wait_for_step(struck.step() + SETTLED_INTERVALS * INTERVAL)
        assert struck.pod_name(LIMITED) not in told(struck, "StragglerDetected", "ReplacingStraggler")
        assert not struck.events("WorkerReplaced")
        stay = uids(struck)
        replaced = wait_for_replacement(struck)
        wait_for(lambda: len(struck.pods()) == 3, START_SECONDS, "the pod of the straggler to go")
        struck.wait_for_step(struck.step() + INTERVAL)
    straggler, newcomer = replaced.straggler, replaced.newcomer
    assert newcomer in uids(struck).keys() - stay.keys()
    assert {name: uid for name, uid in uids(struck).items() if name != newcomer} == without(stay, straggler)
    assert_only_replaced(struck, history, "first", LIMITED)
    # It warmed up beside those that trained, and took over between two steps; only then the other one was let go.
    assert "warmed up" in struck.log(newcomer)
    swap = min(version for version, plan in history.plans.items() if newcomer in {each.name for each in plan.members})
    assert straggler not in {each.name for each in history.plans[swap].members}
    assert history.written[swap] <= history.leaving[stay[straggler]]
    (left,) = struck.records(SLOWED)[-1:]
    joined = struck.records(SLOWED, replaced.index)[0]
    assert joined.step == left.step + 1
    assert joined.version == swap
    assert struck.pod_name(LIMITED) not in told(struck, "StragglerDetected", "ReplacingStraggler", "WorkerReplaced")


def told(struck: JobOnCluster, *reasons: str) -> str:
    """What events with these reasons say."""
    return "\n".join(event["message"] for reason in reasons for event in struck.events(reason))
