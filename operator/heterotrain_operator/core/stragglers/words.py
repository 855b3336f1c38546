"""Verdicts in words and numbers, for the condition, events and the command line."""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain_operator.core.batching.words import duration
from heterotrain_operator.core.facts import listed
from heterotrain_operator.core.prediction.resource_use import NAMES, Cause
from heterotrain_operator.core.stragglers.verdict import Grounds, Outlooks, Remedy, Verdict

_GROUNDS = {
    Grounds.ITSELF: "takes {slowdown} times as long as when it was healthy, at its present batch and CPU limit",
    Grounds.LEAST_BATCH: "takes {slowdown} times as long as the median, though it has the fewest samples it may have",
    Grounds.GROUP: "takes {slowdown} times as long for a sample as the median",
}


def sentence(verdict: Verdict) -> str:
    """One straggler: how slow, since when, what holds it back, and what would help."""
    slow = _GROUNDS[verdict.grounds].format(slowdown=f"{verdict.slowdown:.2g}")
    said = f"{verdict.worker} {slow}, since step {verdict.since_step}; {_cause(verdict)}; {_remedy(verdict)}"
    return f"{said}; {verdict.hindrance}" if verdict.hindrance else said


def summary(verdicts: Sequence[Verdict]) -> str:
    """All stragglers in one message: of one, all that is known of it."""
    if len(verdicts) == 1:
        return sentence(verdicts[0])
    slowest = max(verdicts, key=lambda verdict: verdict.slowdown)
    return f"{listed([verdict.worker for verdict in verdicts])}; the slowest: {sentence(slowest)}"


_CAUSES = {
    NAMES[Cause.CPU_LIMIT]: "its CPU limit holds it back for longer, though the limit has not changed",
    NAMES[Cause.NEIGHBOUR]: "it waits for a CPU that others use",
    NAMES[Cause.COMPUTATION]: "its steps take more CPU time",
    NAMES[Cause.SCRIPT]: "it computes no more and waits no longer for a CPU, so it waits for something of its own",
}


def _cause(verdict: Verdict) -> str:
    """What slows it, and the figures behind that as far as the kernel has them."""
    figures = [
        f"{duration(seconds)} of a step {what}"
        for seconds, what in ((verdict.throttled, "throttled"), (verdict.waiting, "waiting for a CPU"))
        if seconds is not None
    ]
    cause = _CAUSES.get(verdict.cause, "what slows it is not known")
    return f"{cause} ({', '.join(figures)})" if figures else cause


def _remedy(verdict: Verdict) -> str:
    ahead = verdict.outlooks
    if not verdict.weighed:
        return "what would help is worked out for slower stragglers"
    if ahead is None:
        return "too little is known of the others to say what would help"
    figures = _figures(ahead)
    left = verdict.budget.replacements_left
    return {
        Remedy.REBALANCE: f"rebalancing the batches helps: {figures}",
        Remedy.REPLACE: f"a replacement would help, of which {left} are left: {figures}, "
        f"for about {duration(ahead.replacement_seconds)} of standstill",
        Remedy.REMOVE: f"the others would be faster without it: {figures}",
        Remedy.IGNORE: f"nothing would help enough to repay it: {figures}",
    }[verdict.remedy]


def _figures(ahead: Outlooks) -> str:
    parts = [
        f"a step takes {duration(ahead.as_it_is)}",
        f"{duration(ahead.rebalanced)} rebalanced",
        f"{duration(ahead.replaced)} with a healthy replacement",
    ]
    if ahead.removed is not None:
        parts.append(f"{duration(ahead.removed)} without it")
    return ", ".join(parts)
