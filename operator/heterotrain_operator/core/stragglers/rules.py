"""The rules about stragglers by name. Manifests name none: the paper's is here to be compared with."""

from __future__ import annotations

from heterotrain_operator.core.stragglers import expected_time, median_throughput
from heterotrain_operator.core.stragglers.rule import Rule

RULES: dict[str, Rule] = {
    "ExpectedTime": expected_time.RULE,
    "MedianThroughput": median_throughput.RULE,
}
