"""How simulated workers end while they train: by an event, or since their memory does not hold their batches."""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain.contract import Plan
from heterotrain_operator.clusters.simulated.events import Death, EndOfWorker, Preemption
from heterotrain_operator.clusters.simulated.pod import SimulatedPod
from heterotrain_operator.core.split.passes import at_once


def end_by(event: EndOfWorker, pod: SimulatedPod, step: int) -> None:
    """A worker ends after so many committed steps."""
    pod.last_step = step
    match event:
        case Preemption():
            pod.end(143, message="its node was taken away", disrupted=True)
        case Death(_, _, exit_code, out_of_memory, message):
            pod.end(exit_code, message=message)
            pod.out_of_memory = out_of_memory


def kill_beyond_limits(pods: Sequence[SimulatedPod], plan: Plan) -> bool:
    """Kill members of the plan, by rank, whose memory does not hold their batches; whether there are any."""
    killed = False
    for pod, member in zip(pods, plan.members, strict=True):
        use = pod.memory
        if use is not None and use.limit_bytes is not None and use.peak_bytes(at_once(member)) > use.limit_bytes:
            pod.end_out_of_memory(f"out of memory (limit {use.limit_bytes / 2**20:.0f} MiB)")
            killed = True
    return killed
