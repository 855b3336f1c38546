"""The recording of a straggler's replacement on a cluster, as a section of the documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]


def replacement(documents: Sequence[Document]) -> str:
    """How long those that stay stood still, the events and what kubectl printed, with seconds since the slowdown."""
    return "\n\n".join(map(_replacement, documents))


def _replacement(document: Document) -> str:
    stood = "; ".join(
        f"`{each['worker']}` {1000 * max(each['idle_seconds'], 0):.0f} ms beyond its usual step of "
        f"{1000 * each['usual_step_seconds']:.0f} ms"
        for each in document["survivors"]
    )
    machine = document["machine"]
    summary = (
        f"Kubernetes {document['kubernetes']}, {machine['cpus']} CPUs, of which the load was {machine['load']:g}. "
        f"At the swap those that stay stood still: {stood}. The last step of `{document['straggler']}` was "
        f"{document['last_step_of_straggler']}, the first one of `{document['newcomer']}` "
        f"{document['first_step_of_newcomer']}; restarts of the job: {document['restarts']}."
    )
    events = [f"{each['seconds']:5.0f} s  {each['reason']}: {each['message']}" for each in document["events"]]
    pods = [f"{each['seconds']:5.0f} s  {each['line']}" for each in document["pods"]]
    return "\n\n".join([summary, _block("the job's events", events), _block("kubectl get pods --watch", pods)])


def _block(title: str, lines: Sequence[str]) -> str:
    return "\n".join(["```text", f"# {title}", *lines, "```"])
