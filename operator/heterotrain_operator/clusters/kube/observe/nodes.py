"""Whether a node is lost: asked for only when a pod on it falls silent, so that nothing watches all nodes."""

from __future__ import annotations

import logging
import threading

from heterotrain_operator.clusters.kube.api_server.gateway import FORBIDDEN, Gateway, GatewayError

logger = logging.getLogger(__name__)

FRESH_SECONDS = 3.0
"""An answer about a node holds this long, for all jobs."""


class Nodes:
    """What the API server says of nodes, remembered for a moment; for use by many threads."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._answers: dict[str, tuple[float, bool]] = {}
        self._lock = threading.Lock()
        self._forbidden = False

    def lost(self, name: str, now: float) -> bool:
        """Whether the node is not Ready, or is gone; False where that may not be asked.

        Raises GatewayError if the API server fails.
        """
        with self._lock:
            asked_at, answer = self._answers.get(name, (-FRESH_SECONDS, False))
        if 0 <= now - asked_at < FRESH_SECONDS:  # a clock that was set back keeps no answer fresh
            return answer
        try:
            body = self._gateway.read("Node", None, name)
        except GatewayError as error:
            if error.status != FORBIDDEN:
                raise
            if not self._forbidden:
                logger.warning("lost nodes are not recognized, since nodes must not be read here: %s", error)
            self._forbidden, answer = True, False
        else:
            conditions = [] if body is None else (body.get("status") or {}).get("conditions") or []
            answer = body is None or any(c.get("type") == "Ready" and c.get("status") != "True" for c in conditions)
        with self._lock:
            self._answers[name] = (now, answer)
        return answer
