"""What a newcomer shows of its speed before it joins: it computes some steps by itself, beside those that train."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from heterotrain.contract import Plan
from heterotrain_operator.clusters.simulated.influences import Influences, Trainee
from heterotrain_operator.clusters.simulated.pod import READY, SimulatedPod
from heterotrain_operator.clusters.simulated.steps import mean_seconds
from heterotrain_operator.core.model import WorkerMetrics


def warm(pod: SimulatedPod, plan: Plan | None, influences: Influences, *, step: int) -> WorkerMetrics:
    """The metrics of a worker that is ready, after steps of its own at the mean batch of its group under the plan that
    others follow; without them where there is no plan. `step` counts the steps that were executed by then.
    """
    if plan is None:
        return READY
    alike = [member.batch_size for member in plan.members if member.group == pod.group] or plan.batch_sizes
    batch = max(round(fmean(alike)), 1)
    [own] = mean_seconds([pod], [batch])
    found = influences.of(step, 1, (Trainee(pod.name, pod.group, pod.column, pod.begun_limit, pod.started_step),))
    own = float(own) * (1.0 if found is None else float(found.true[0, 0]))
    return replace(READY, warm_up=((batch, own),))
