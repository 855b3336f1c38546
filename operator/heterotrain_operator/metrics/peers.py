"""What a parameter server exports of each of its workers, as people are shown it; no decision reads it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from heterotrain_operator.core.model import PeerMetrics
from heterotrain_operator.metrics.workers import MAX_FIGURE, Sample

PREFIX = "heterotrain_server_"
PEER_LABEL = "peer"

UPDATES = f"{PREFIX}updates_total"
DISCARDED = f"{PREFIX}discarded_total"
WAITED = f"{PREFIX}waited_seconds_total"
STALENESS_SUM, STALENESS_COUNT = f"{PREFIX}staleness_sum", f"{PREFIX}staleness_count"

MAX_PEERS = 256
"""Workers of which something is read: a job's status lists as many."""

MAX_NAME = 64


def peers_of(samples: Iterable[Sample]) -> tuple[PeerMetrics, ...]:
    """The workers by name; figures that are impossible are passed over, for nothing rests on them."""
    sums: dict[str, dict[str, float]] = {}
    for name, labels, value in samples:
        peer = labels.get(PEER_LABEL, "")
        if (
            not 0 < len(peer) <= MAX_NAME
            or not 0 <= value <= MAX_FIGURE
            or (peer not in sums and len(sums) == MAX_PEERS)
        ):
            continue
        figures = sums.setdefault(peer, {})
        figures[name] = figures.get(name, 0.0) + value  # of several reasons
    return tuple(_peer(peer, figures) for peer, figures in sorted(sums.items()))


def _peer(peer: str, figures: dict[str, float]) -> PeerMetrics:
    count = figures.get(STALENESS_COUNT, 0.0)
    mean = figures.get(STALENESS_SUM, 0.0) / count if count > 0 else math.nan
    return PeerMetrics(
        peer,
        updates=figures.get(UPDATES, 0.0),
        discarded=figures.get(DISCARDED, 0.0),
        waited_seconds=figures.get(WAITED, 0.0),
        staleness=mean if math.isfinite(mean) else None,
    )
