"""What the kubelet's probes ask: is the process alive, and may it be counted on.

Served from the event loop, so that an answer means that the loop turns; over IPv4 and IPv6, whichever the pod has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from heterotrain.reporting.serving import listening

ALIVE, READY = "/healthz", "/readyz"


class Health:
    """A small web server for probes."""

    def __init__(self, alive: Callable[[], Mapping[str, Any]], ready: Callable[[], Mapping[str, Any]]) -> None:
        """Both return what to show, or raise RuntimeError with what is wrong."""
        application = web.Application()
        application.add_routes([web.get(ALIVE, _answer(alive, 500)), web.get(READY, _answer(ready, 503))])
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        self._started = False

    async def serve(self, port: int) -> None:
        """Begin; nothing where it has begun already. Raises OSError, naming the port, if it cannot be had."""
        if self._started:
            return
        try:
            own = listening(port)
        except OSError as error:
            raise OSError(error.errno, f"health port {port}: {error.strerror}") from error
        await self._runner.setup()
        await web.SockSite(self._runner, own).start()
        self._started = True

    async def close(self) -> None:
        """End serving."""
        await self._runner.cleanup()


def _answer(state: Callable[[], Mapping[str, Any]], status: int) -> Callable[[web.Request], Any]:
    async def answer(request: web.Request) -> web.Response:
        try:
            return web.json_response(state())
        except RuntimeError as error:
            return web.json_response({"error": str(error)}, status=status)

    return answer
