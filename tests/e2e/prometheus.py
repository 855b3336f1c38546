"""A real Prometheus in the cluster, which finds and scrapes workers and operator; started and stopped at will."""

from __future__ import annotations

from typing import Any

from e2e.api import CORE, Api
from e2e.helm import REPOSITORY
from e2e.programs import run

SCRIPT = REPOSITORY / "hack" / "kind" / "prometheus" / "prometheus.sh"
START_SECONDS = 400.0
"""The first time it is built."""

SERVICE = f"{CORE}/namespaces/monitoring/services/prometheus:9090/proxy"


class Prometheus:
    """The server that `hack/kind/prometheus` runs."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.url = run("bash", SCRIPT, "url").strip()

    def start(self) -> None:
        """Start it, with no data, and wait until it is ready."""
        run("bash", SCRIPT, "start", seconds=START_SECONDS)

    def stop(self) -> None:
        """Stop it; its address stays, and nobody answers there."""
        run("bash", SCRIPT, "stop", seconds=120)

    def delete(self) -> None:
        """Remove it."""
        run("bash", SCRIPT, "delete", seconds=120)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression gives now. Raises ApiError."""
        answer = self._api.get(f"{SERVICE}/api/v1/query", query=expression)
        series: list[dict[str, Any]] = answer["data"]["result"]
        return series
