"""What lives as long as the operator: connection, Lease, controller, its own metrics, and answers to the probes.

These are served from the event loop, so that an answer means that the loop turns; over IPv4 and IPv6, whichever the pod
has.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from heterotrain.reporting.serving import listening
from heterotrain_operator.clusters.kube.api_server.access import Access, connect
from heterotrain_operator.clusters.kube.api_server.gateway import JOB_API, Gateway, GatewayError
from heterotrain_operator.clusters.kube.api_server.lease import Leadership
from heterotrain_operator.clusters.kube.api_server.transport import PatientClient
from heterotrain_operator.clusters.kube.objects.names import PLURAL
from heterotrain_operator.clusters.kube.observe.nodes import Nodes
from heterotrain_operator.clusters.kube.observe.pod_facts import PodFacts
from heterotrain_operator.clusters.kube.observe.sources import Sources
from heterotrain_operator.clusters.kube.observe.watched import Index, Key
from heterotrain_operator.controller.judging import Documents
from heterotrain_operator.controller.options import Options
from heterotrain_operator.controller.rounds import Former, JobRounds
from heterotrain_operator.controller.supervisor import MAX_THREADS, Controller
from heterotrain_operator.controller.watches import Watches
from heterotrain_operator.metrics.own import OperatorMetrics

ALIVE, READY = "/healthz", "/readyz"


MOST_PROBES = 64
"""Connections to the port for probes at a time. Where there are more, the oldest goes."""


class Health:
    """A small web server for probes."""

    def __init__(self, alive: Callable[[], Mapping[str, Any]], ready: Callable[[], Mapping[str, Any]]) -> None:
        """Both return what to show, or raise RuntimeError with what is wrong."""
        application = web.Application()
        application.add_routes([web.get(ALIVE, _answer(alive, 500)), web.get(READY, _answer(ready, 503))])
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        self._server: asyncio.Server | None = None

    async def serve(self, port: int) -> None:
        """Begin; nothing where it has begun already. Raises OSError, naming the port, if it cannot be had."""
        if self._server is not None:
            return
        try:
            own = listening(port)
        except OSError as error:
            raise OSError(error.errno, f"health port {port}: {error.strerror}") from error
        await self._runner.setup()
        self._server = await asyncio.get_running_loop().create_server(self._connected, sock=own)

    async def close(self) -> None:
        """End serving."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()

    def _connected(self) -> asyncio.Protocol:
        serving = self._runner.server
        assert serving is not None, "it is set up"
        there = serving.connections
        for surplus in there[: max(len(there) - MOST_PROBES + 1, 0)]:
            surplus.force_close()
        return serving()


def _answer(state: Callable[[], Mapping[str, Any]], status: int) -> Callable[[web.Request], Any]:
    async def answer(request: web.Request) -> web.Response:
        try:
            return web.json_response(state())
        except RuntimeError as error:
            return web.json_response({"error": str(error)}, status=status)

    return answer


WATCHED_PLURALS = (PLURAL, "pods", "configmaps")
"""What `handlers.py` watches."""


class Runtime:
    """Started and stopped by kopf's handlers, in its event loop."""

    controller: Controller
    pods: Index[PodFacts]
    """Facts of workers' pods, by job."""
    plans: Index[str]
    """Resource versions of the plans, by job."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._metrics = OperatorMetrics()
        self.watches = Watches(WATCHED_PLURALS, options.watched, self._watching, self._listed, time.monotonic)
        self.pods, self.plans = Index(), Index()
        self._health = Health(self._alive, self._ready)
        self._client: PatientClient
        self._sources: Sources
        self._documents: Documents
        self._leadership: Leadership
        self._lease_thread: threading.Thread | None = None
        self._complete = False

    @property
    def leading(self) -> bool:
        """Whether this replica acts."""
        return self._leadership.leading

    async def start(self) -> None:
        """Connect, serve metrics, begin to ask for the Lease.

        Raises AccessError without a cluster, GatewayError if it does not answer or lacks the resource, OSError if a
        port is taken.
        """
        options = self._options
        loop = asyncio.get_running_loop()

        def on_change(leads: bool) -> None:
            loop.call_soon_threadsafe(self._led, leads)

        self._client = connect(Access(), connections=MAX_THREADS).api
        self._leadership = Leadership(
            self._client,
            name=options.lease,
            namespace=options.namespace,
            identity=options.identity,
            on_change=on_change,
        )
        await self._health.serve(options.health_port)
        gateway = Gateway(self._client, self._leadership.check, self._metrics.wrote)
        if not await asyncio.to_thread(gateway.serves_jobs):
            raise GatewayError(f"the cluster does not serve {JOB_API}; install the chart heterotrain-crds")
        try:
            self._metrics.serve(options.metrics_port)
        except OSError:
            await self._health.close()
            raise
        nodes = Nodes(gateway)
        sources = self._sources = Sources(gateway, options.prometheus_allow)
        documents = self._documents = Documents(gateway)
        former: Former = {}
        self.controller = Controller(
            lambda: JobRounds(
                gateway,
                nodes,
                self._metrics,
                sources.of,
                documents,
                clock=time.time,
                monotonic=time.monotonic,
                metrics_from=options.metrics_from,
                former=former,
            ),
            # What is not listed yet would look like gone.
            leading=lambda: self.leading and self.watches.complete,
            pods_of=self.pods.of,
            plan_versions_of=self.plans.of,
            failed=self._metrics.failed,
            over=self._over,
        )
        self._lease_thread = threading.Thread(target=self._leadership.run, name="lease", daemon=True)
        self._lease_thread.start()

    async def stop(self) -> None:
        """End the rounds under way, then give the Lease back; nothing where the start did not get so far."""
        if self._lease_thread is None:
            return
        await self.controller.close()
        await self._sources.close()
        self._documents.close()
        self._leadership.stop()
        await asyncio.to_thread(self._lease_thread.join)
        await asyncio.to_thread(self._metrics.close)
        await self._health.close()
        self._client.close()

    def _alive(self) -> dict[str, Any]:
        """Raises RuntimeError if this replica cannot lead any more, however long it lives; one still starting may."""
        if self._lease_thread is not None and not self._lease_thread.is_alive():
            raise RuntimeError("the thread that asks for the Lease has ended")
        self.watches.check()
        return {"leading": self._lease_thread is not None and self.leading}

    def _ready(self) -> dict[str, Any]:
        """Raises RuntimeError unless this replica sees the cluster, and leads or will."""
        state = self._alive()
        if self._lease_thread is None or not self.watches.ready:
            raise RuntimeError("not everything is watched yet" if not self.watches.complete else "nothing is watched")
        failing = [
            f"{plural} in {namespace or 'all namespaces'}: {why}"
            for (plural, namespace), why in self.watches.failing.items()
        ]
        return state | {"failing": failing}

    def _watching(self, plural: str, namespace: str, stands: bool) -> None:
        self._metrics.watching(plural, namespace, stands)
        if stands and self._lease_thread is not None and self.watches.complete and not self._complete:
            self._complete = True
            self.controller.lead()

    def _listed(self, plural: str, namespace: str) -> None:
        if plural == PLURAL and self._lease_thread is not None:
            self.controller.doubt(namespace)

    def _over(self, key: Key, uid: str) -> None:
        """Pods that went with their job while no watch stood are shown by none, and would be kept for ever."""
        self.pods.forget(key, lambda pod: pod.owner_uid == uid)

    def _led(self, leads: bool) -> None:
        self._metrics.leading(leads)
        if leads:
            self.controller.lead()
