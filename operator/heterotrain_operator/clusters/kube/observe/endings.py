"""How a pod's worker ended, why it waits, and whose fault it was, from the pod's status.

Kubernetes tells it in four places: the pod's own phase and reason (eviction, a rejected pod), its conditions
(scheduling, disruption), the states of its containers, and the last words of the trainer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heterotrain.contract import EXIT_PREEMPTED, Evaluated, Termination

Document = Mapping[str, Any]

LONGEST_LOG_TAIL = 500
"""Characters kept of a log's last lines, where they stand in for last words."""

LOG_LINES = 3
"""Lines kept of it: of a Python traceback the place, the code and the error."""

_TAKEN_AWAY = frozenset({"Preempting", "NodeLost", "NodeShutdown", "Shutdown", "Terminated"})
"""Reasons of a pod that somebody else ended: preempted by the kubelet, its node lost or shut down."""

_REJECTED = frozenset(
    {
        "NodeAffinity",
        "NodeName",
        "NodePorts",
        "TaintToleration",
        "TopologyAffinityError",
        "UnexpectedAdmissionError",
    }
)
_OUT_OF = "OutOf"
"""Reasons of a pod that the kubelet did not admit to the node that the scheduler had found for it, and the beginning of
those that name a resource, as OutOfcpu does. Source: Kubernetes 1.34, `pkg/kubelet/lifecycle/predicate.go` and
`pkg/kubelet/cm/topologymanager`.
"""

_EVICTED = "Evicted"
_LOST = frozenset({"ContainerStatusUnknown", "Unknown"})
"""Reasons of a container that ended unobserved, as all do whose node stops at once."""

_GATED = "SchedulingGated"
"""Reason of a pod that is not scheduled."""

_OUT_OF_MEMORY = "OOMKilled"
_PLAIN_ENDS = frozenset({"Completed", "Error", _OUT_OF_MEMORY})
"""Reasons of a container that say no more than its exit code, or are told otherwise."""

_PLAIN_WAITS = frozenset({"PodInitializing"})
"""Reasons of a waiting container that only point at another one."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the container that trains ended; `over` is false as long as it has not.

    `exit_code` is None if it never ran, or nobody knows. `finished`, `step`, `message`, `asked_to_stop`, `script_error`
    and `fatal` are its last words.
    """

    over: bool = False
    exit_code: int | None = None
    finished: bool = False
    step: int = 0
    message: str = ""
    out_of_memory: bool = False
    asked_to_stop: bool = False
    script_error: bool = False
    evaluated: Evaluated | None = None
    fatal: bool = False


def how_it_ended(spec: Document, status: Document, container: Document, trainer: Document) -> Ending:
    """The end of a pod's worker. `container` is the one that trains in the spec, `trainer` its status."""
    terminated = (trainer.get("state") or {}).get("terminated")
    pod_over = status.get("phase") == "Failed"
    if terminated is None and not pod_over:
        return Ending()
    if terminated is None:
        return Ending(over=True, message=_pod_reason(status) or _failed_before(status))
    code: int = terminated["exitCode"]
    words = Termination.from_text(terminated.get("message") or "")
    out_of_memory = code != 0 and (terminated.get("reason") == _OUT_OF_MEMORY or words.out_of_memory)
    return Ending(
        over=True,
        exit_code=code,
        finished=words.finished,
        step=words.step,
        message=_pod_reason(status) or _in_words(terminated, words, _memory_limit(container, trainer)),
        out_of_memory=out_of_memory,
        asked_to_stop=words.asked_to_stop and code == EXIT_PREEMPTED,
        script_error=words.script_error,
        evaluated=words.evaluated,
        fatal=words.fatal,
    )


def is_disrupted(status: Document, trainer: Document) -> bool:
    """Whether a pod was or is being ended by somebody else, as far as its status tells."""
    reason = status.get("reason") or ""
    if disruption(status) or reason in _TAKEN_AWAY or reason in _REJECTED or reason.startswith(_OUT_OF):
        return True
    if reason == _EVICTED:
        # For want of memory on its node; but one that outgrew a limit of its own on storage would do so again.
        return "exceed" not in (status.get("message") or "")
    terminated = (trainer.get("state") or {}).get("terminated") or {}
    return terminated.get("reason") in _LOST


def disruption(status: Document) -> str:
    """Who takes the pod away and why, in Kubernetes' words; empty if its condition DisruptionTarget is not true."""
    condition = _condition(status, "DisruptionTarget")
    return _told(condition) or "DisruptionTarget" if condition.get("status") == "True" else ""


def is_gated(spec: Document, status: Document) -> bool:
    """Whether the scheduler leaves a pod alone, because somebody, as a queue, has closed a gate of it."""
    return bool(spec.get("schedulingGates")) or _condition(status, "PodScheduled").get("reason") == _GATED


def why_it_waits(status: Document) -> str:
    """Why a pod does not run yet: not scheduled, or a container that cannot start; empty if nothing is known."""
    if reason := _pod_reason(status):
        return reason
    for kind, entry in _containers(status):
        waiting = (entry.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] not in _PLAIN_WAITS:
            return f"{kind}{_told(waiting)}"
    scheduled = _condition(status, "PodScheduled")
    return _told(scheduled) if scheduled.get("status") == "False" else ""


def _pod_reason(status: Document) -> str:
    return _told(status) if status.get("reason") else ""


def _told(entry: Document) -> str:
    """A reason and its message."""
    return ": ".join(filter(None, [entry.get("reason"), (entry.get("message") or "").strip()]))


def _condition(status: Document, kind: str) -> Document:
    for condition in status.get("conditions") or ():
        if condition.get("type") == kind:
            found: Document = condition
            return found
    return {}


def _containers(status: Document) -> Iterator[tuple[str, Document]]:
    """All containers' statuses in the order in which they start, each with how to call it."""
    for entry in status.get("initContainerStatuses") or ():
        yield f"init container {entry['name']}: ", entry
    containers: Sequence[Document] = status.get("containerStatuses") or ()
    for entry in containers:
        yield (f"container {entry['name']}: " if len(containers) > 1 else ""), entry


def _failed_before(status: Document) -> str:
    """Which container ended the pod before the one that trains could start."""
    for kind, entry in _containers(status):
        terminated = (entry.get("state") or {}).get("terminated") or {}
        if terminated.get("exitCode"):
            words = Termination.from_text(terminated.get("message") or "")
            return f"{kind}exit code {terminated['exitCode']}, {_in_words(terminated, words, '')}".rstrip(", ")
    return (status.get("message") or "").strip()


def _in_words(terminated: Document, words: Termination, memory_limit: str) -> str:
    """An end in words: out of memory, one that Kubernetes has a name for, or what the process said at last."""
    text = (terminated.get("message") or "").strip()
    own = words.message if words.message != text else _log_tail(text)
    reason = terminated.get("reason") or ""
    if reason == _OUT_OF_MEMORY and terminated["exitCode"]:
        limit = f"limit {memory_limit}" if memory_limit else "it has no limit; its node ran out"
        said = words.message if words.message != text else ""  # a log that was cut off says nothing of it
        return "; ".join(filter(None, [f"out of memory ({limit})", said]))
    if reason and reason not in _PLAIN_ENDS:
        return ": ".join(filter(None, [reason, own]))
    return own


def _log_tail(text: str) -> str:
    """The last lines of a log, in one: what Kubernetes shows of a process that left no last words."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[-LOG_LINES:])[-LONGEST_LOG_TAIL:]


def _memory_limit(container: Document, trainer: Document) -> str:
    resources = trainer.get("resources") or container.get("resources") or {}
    return str((resources.get("limits") or {}).get("memory") or "")
