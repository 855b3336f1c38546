"""What lives as long as the operator: connection, Lease, controller and its own metrics."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from heterotrain_operator.clusters.kube.access import Access, connect
from heterotrain_operator.clusters.kube.client import PatientClient
from heterotrain_operator.clusters.kube.gateway import Gateway
from heterotrain_operator.clusters.kube.lease import Leadership
from heterotrain_operator.clusters.kube.nodes import Nodes
from heterotrain_operator.clusters.kube.observed import PodFacts
from heterotrain_operator.controller import Controller, Key
from heterotrain_operator.metrics.own import OperatorMetrics
from heterotrain_operator.metrics.pods import PodScraper
from heterotrain_operator.options import Options
from heterotrain_operator.rounds import JobRounds

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Runtime:
    """Started and stopped by kopf's handlers, in its event loop."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._metrics = OperatorMetrics()
        self._scraper = PodScraper()
        self._leadership: Leadership | None = None
        self.controller: Controller

    @property
    def leading(self) -> bool:
        """Whether this replica acts."""
        return self._leadership is not None and self._leadership.leading

    async def start(self, *, pods: Mapping[Key, Collection[PodFacts]], plans: Mapping[Key, Collection[str]]) -> None:
        """Connect, serve metrics, begin to ask for the Lease.

        `pods` and `plans` are indices: facts of pods and resource versions of plans, by job. Raises AccessError
        without a cluster, GatewayError if it does not answer, OSError if the metrics port is taken.
        """
        options = self._options
        loop = asyncio.get_running_loop()
        client = PatientClient(connect(Access()).api.configuration)

        def on_change(leads: bool) -> None:
            loop.call_soon_threadsafe(self._led, leads)

        self._leadership = Leadership(
            client,
            name=options.lease,
            namespace=options.namespace,
            identity=options.identity,
            on_change=on_change,
        )
        gateway = await asyncio.to_thread(Gateway, client, self._leadership.check, self._metrics.wrote)
        nodes = Nodes(gateway)
        self.controller = Controller(
            lambda: JobRounds(gateway, nodes, self._scraper, self._metrics, clock=time.time, monotonic=time.monotonic),
            leading=lambda: self.leading,
            pods_of=lambda key: _listed(pods, key),
            plan_version_of=lambda key: max(_listed(plans, key), default=""),
            failed=self._metrics.failed,
        )
        self._metrics.serve(options.metrics_port)
        threading.Thread(target=self._leadership.run, name="lease", daemon=True).start()

    async def stop(self) -> None:
        """End the rounds under way, and renew the Lease no more."""
        if self._leadership is not None:
            self._leadership.stop()
            await self.controller.close()
        self._scraper.close()

    def _led(self, leads: bool) -> None:
        self._metrics.leading(leads)
        if leads:
            self.controller.lead()


def _listed(index: Mapping[Key, Collection[T]], key: Key) -> Sequence[T]:
    return list(index.get(key, ()))
