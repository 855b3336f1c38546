"""What a pod's status says: why it waits, how its worker ended, and whether somebody else ends it.

The last matters because a restart counts only if it was the worker's own fault.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from heterotrain.contract import EXIT_PREEMPTED, Termination
from heterotrain.foreign import last_lines
from heterotrain_operator.core.lifecycle.ends import SIGNAL_EXIT_BASE, speaks_of_memory

Document = Mapping[str, Any]

NO_WORDS = Termination(finished=False)


def pod_reason(status: Document) -> str:
    """Why the pod as a whole is as it is; empty if that is not said."""
    return worded(status) if status.get("reason") else ""


def worded(entry: Document) -> str:
    """A reason and its message."""
    return ": ".join(filter(None, [entry.get("reason"), (entry.get("message") or "").strip()]))


def condition_of(status: Document, kind: str) -> Document:
    """The condition of a type; empty if there is none."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == kind:
            found: Document = condition
            return found
    return {}


def containers_in(status: Document) -> Iterator[tuple[str, Document]]:
    """All containers' statuses in the order in which they start, each with how to call it."""
    for entry in status.get("initContainerStatuses") or ():
        yield f"init container {entry['name']}: ", entry
    containers: Sequence[Document] = status.get("containerStatuses") or ()
    for entry in containers:
        yield (f"container {entry['name']}: " if len(containers) > 1 else ""), entry


_GATED = "SchedulingGated"
"""Reason of a pod that is not scheduled."""

_PLAIN_WAITS = frozenset({"PodInitializing"})
"""Reasons of a waiting container that only refer to another container."""


def why_it_waits(status: Document) -> str:
    """Why a pod does not run yet: not scheduled, or a container that cannot start; empty if nothing is known."""
    if reason := pod_reason(status):
        return reason
    for kind, entry in containers_in(status):
        waiting = (entry.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] not in _PLAIN_WAITS:
            return f"{kind}{worded(waiting)}"
    scheduled = condition_of(status, "PodScheduled")
    return worded(scheduled) if scheduled.get("status") == "False" else ""


def is_gated(spec: Document, status: Document) -> bool:
    """Whether the scheduler passes over a pod, because somebody, such as a queue, has put a gate on it."""
    return bool(spec.get("schedulingGates")) or condition_of(status, "PodScheduled").get("reason") == _GATED


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
"""Reasons of a container that ended unobserved, as all containers of a node that stops at once."""


def is_disrupted(status: Document, trainer: Document) -> bool:
    """Whether a pod was or is being ended by somebody else, as far as its status says."""
    reason = status.get("reason") or ""
    if disruption(status) or reason in _TAKEN_AWAY or reason in _REJECTED or reason.startswith(_OUT_OF):
        return True
    if reason == _EVICTED:
        # Its node ran out of memory. A pod that exceeded its own limit on storage would do so again, and counts.
        return "exceed" not in (status.get("message") or "")
    terminated = (trainer.get("state") or {}).get("terminated") or {}
    return terminated.get("reason") in _LOST


def disruption(status: Document) -> str:
    """Who takes the pod away and why, in Kubernetes' words; empty if its condition DisruptionTarget is not true."""
    condition = condition_of(status, "DisruptionTarget")
    return worded(condition) or "DisruptionTarget" if condition.get("status") == "True" else ""


LONGEST_LOG_TAIL = 500
"""Characters kept of a log's last lines, where there are no last words."""

LOG_LINES = 3
"""Lines kept of a log; of a Python traceback these are the place, the code and the error."""

_OUT_OF_MEMORY = "OOMKilled"
_UNKNOWN = "ContainerStatusUnknown"
_PLAIN_ENDS = frozenset({"Completed", "Error", _OUT_OF_MEMORY})
"""Reasons of a container that say no more than its exit code, or that have words of their own below."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the container that trains ended; `over` is false as long as it has not.

    `exit_code` is None if it never ran, or nobody knows. `words` are its last ones as far as they are believed, with a
    message of Kubernetes' where that says more. `finished_at` is the moment, as Kubernetes writes it.
    """

    over: bool = False
    exit_code: int | None = None
    words: Termination = NO_WORDS
    finished_at: str = ""


def pod_ending(status: Document, container: Document, trainer: Document) -> Ending:
    """The end of a pod's worker. `container` is the one that trains, as the spec has it, and `trainer` its status."""
    terminated = (trainer.get("state") or {}).get("terminated")
    pod_over = status.get("phase") == "Failed"
    if terminated is None and not pod_over:
        return Ending()
    if terminated is None:
        return Ending(over=True, words=replace(NO_WORDS, message=pod_reason(status) or _failed_before(status)))
    # The kubelet gives this one for a container that it cannot find any more, of which nobody has seen the end.
    code: int | None = None if terminated.get("reason") == _UNKNOWN else terminated["exitCode"]
    words = Termination.from_text(terminated.get("message") or "")
    out_of_memory = code != 0 and terminated.get("reason") == _OUT_OF_MEMORY
    out_of_memory |= words.out_of_memory and not words.finished
    if code and code <= SIGNAL_EXIT_BASE and words == Termination(finished=False, message=words.message):
        out_of_memory |= speaks_of_memory(words.message)
    limit = _memory_limit(container, trainer)
    message = pod_reason(status) or _in_words(terminated, words, limit)
    if code == SIGNAL_EXIT_BASE + signal.SIGKILL and not message and not disruption(status):
        message = f"perhaps for want of memory (its limit is {limit})" if limit else "perhaps for want of memory"
    believed = replace(
        words,
        message=message,
        out_of_memory=out_of_memory,
        asked_to_stop=words.asked_to_stop and code == EXIT_PREEMPTED,
        left=words.left and code == 0,
    )
    return Ending(True, code, believed, terminated.get("finishedAt") or "")


def _failed_before(status: Document) -> str:
    """Which container ended the pod before the one that trains could start."""
    for kind, entry in containers_in(status):
        terminated = (entry.get("state") or {}).get("terminated") or {}
        if terminated.get("exitCode"):
            words = Termination.from_text(terminated.get("message") or "")
            return f"{kind}exit code {terminated['exitCode']}, {_in_words(terminated, words, '')}".rstrip(", ")
    return (status.get("message") or "").strip()


def _in_words(terminated: Document, words: Termination, memory_limit: str) -> str:
    """An end in words: out of memory, one that Kubernetes has a name for, or the last words of the process."""
    text = (terminated.get("message") or "").strip()
    own = words.message if words.message != text else _log_tail(text)
    reason = terminated.get("reason") or ""
    if reason == _OUT_OF_MEMORY and terminated["exitCode"]:
        limit = f"limit {memory_limit}" if memory_limit else "it has no limit; its node ran out"
        message = words.message if words.message != text else ""  # a log that was cut off has no last words
        return "; ".join(filter(None, [f"out of memory ({limit})", message]))
    if reason and reason not in _PLAIN_ENDS:
        return ": ".join(filter(None, [reason, own]))
    return own


def _log_tail(text: str) -> str:
    """The last lines of a log, in one: what Kubernetes shows of a process that left no last words."""
    return "; ".join(last_lines(text, LOG_LINES, LONGEST_LOG_TAIL))[-LONGEST_LOG_TAIL:]


def _memory_limit(container: Document, trainer: Document) -> str:
    resources = trainer.get("resources") or container.get("resources") or {}
    return str((resources.get("limits") or {}).get("memory") or "")
