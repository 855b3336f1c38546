"""The loop of decisions beside rank 0 of workers that a launcher has started.

The trainer's library starts it (`python -m heterotrain_operator.balancer`), describes the workers in one
line of its standard input, and ends it by closing that.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time

from heterotrain.contract import Launch
from heterotrain_operator.clusters.launched import LaunchedCluster, job_of
from heterotrain_operator.core.model import Decision, Seen
from heterotrain_operator.loop import run_job

logger = logging.getLogger("heterotrain_operator.balancer")


def main() -> None:
    """Balance until rank 0 has ended."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    launch = Launch.from_json(sys.stdin.readline())
    ended = threading.Event()
    threading.Thread(target=_await_end, args=(ended,), daemon=True).start()

    def pause(seconds: float) -> None:
        ended.wait(seconds)

    with contextlib.closing(LaunchedCluster(launch)) as cluster:
        run_job(
            job_of(launch),
            cluster,
            now=time.time,
            pause=pause,
            on_round=_log,
            until=lambda _seen, _decision: ended.is_set(),
        )


def _await_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


def _log(_: Seen, decision: Decision) -> None:
    for event in decision.events:
        level = logging.WARNING if event.kind == "Warning" else logging.INFO
        logger.log(level, "%s: %s", event.reason, event.message)


if __name__ == "__main__":
    main()
