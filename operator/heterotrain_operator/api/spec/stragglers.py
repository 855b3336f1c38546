"""Workers that are slow by fault rather than by design, and what is done about them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from heterotrain_operator.api.base import Count, Model, Seconds, Weight


class Stragglers(Model):
    """Workers that are slow by fault rather than by design."""

    action: Literal["Ignore", "Report", "Rebalance", "Replace", "Remove"] = Field(
        default="Replace",
        description="What is done about a persistent straggler. Report: a condition, an event and a metric name it, "
        "with what would help; nothing else changes. Rebalance: its batch is also lowered without waiting for as much "
        "evidence. Replace: another worker is started, and takes its place once its warm-up shows a gain. Remove: it "
        "leaves if the step is predicted to be shorter without it, and its group keeps minReplicas. Replace and Remove "
        "need workers whose members change while they train, and do as Rebalance elsewhere.",
    )
    threshold: Weight = Field(
        default=0.8,
        description="A worker below this fraction of the speed expected of it counts as a straggler. More than 0.9 "
        "is taken for 0.9.",
    )
    smoothing: Weight = Field(
        default=0.1, description="Weight of the newest control interval in the moving average of the relative speed."
    )
    max_replacements: Count = Field(
        default=3, description="Replacements that are begun over the whole job, whatever comes of them."
    )
    cooldown_seconds: Seconds = Field(
        default=60, description="Shortest time from the begin, and from the end, of one replacement to the next one."
    )
