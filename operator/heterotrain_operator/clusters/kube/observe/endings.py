"""How a pod's worker ended, from the pod's reason, the states of its containers, and the last words of the trainer."""

from __future__ import annotations

from dataclasses import dataclass

from heterotrain.contract import EXIT_PREEMPTED, Evaluated, Termination
from heterotrain_operator.clusters.kube.observe.pod_status import Document, containers_in, pod_reason

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

    `exit_code` is None if it never ran, or nobody knows. `finished`, `step`, `message`, `asked_to_stop`, `left`,
    `script_error` and `fatal` are its last words.
    """

    over: bool = False
    exit_code: int | None = None
    finished: bool = False
    step: int = 0
    message: str = ""
    out_of_memory: bool = False
    asked_to_stop: bool = False
    left: bool = False
    script_error: bool = False
    evaluated: Evaluated | None = None
    fatal: bool = False


def pod_ending(status: Document, container: Document, trainer: Document) -> Ending:
    """The end of a pod's worker. `container` is the one that trains, as the spec has it, and `trainer` its status."""
    terminated = (trainer.get("state") or {}).get("terminated")
    pod_over = status.get("phase") == "Failed"
    if terminated is None and not pod_over:
        return Ending()
    if terminated is None:
        return Ending(over=True, message=pod_reason(status) or _failed_before(status))
    # The kubelet gives this one for a container that it cannot find any more, of which nobody has seen the end.
    code: int | None = None if terminated.get("reason") == _UNKNOWN else terminated["exitCode"]
    words = Termination.from_text(terminated.get("message") or "")
    out_of_memory = code != 0 and (terminated.get("reason") == _OUT_OF_MEMORY or words.out_of_memory)
    return Ending(
        over=True,
        exit_code=code,
        finished=words.finished,
        step=words.step,
        message=pod_reason(status) or _in_words(terminated, words, _memory_limit(container, trainer)),
        out_of_memory=out_of_memory,
        asked_to_stop=words.asked_to_stop and code == EXIT_PREEMPTED,
        left=words.left and code == 0,
        script_error=words.script_error,
        evaluated=words.evaluated,
        fatal=words.fatal,
    )


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
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[-LOG_LINES:])[-LONGEST_LOG_TAIL:]


def _memory_limit(container: Document, trainer: Document) -> str:
    resources = trainer.get("resources") or container.get("resources") or {}
    return str((resources.get("limits") or {}).get("memory") or "")
