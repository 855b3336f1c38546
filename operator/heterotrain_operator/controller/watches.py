"""How each watch of the operator fares, by what the API server answered last.

kopf repeats a request that is refused and says so only in its log. Here its answers are seen as they come, so that a
right that was taken away shows in a metric and in the readiness, while all that may still be watched goes on.

Namespaces that cannot be watched are left out before the start: kopf calls no handler before everything that it watches
was listed once, so one namespace that was deleted, and the Role in it, would keep the operator from the jobs of all the
others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import aiohttp
from yarl import URL

from heterotrain_operator.clusters.kube.api_server.gateway import JOB_KIND, Gateway, GatewayError
from heterotrain_operator.controller.short_documents import RefusedError

logger = logging.getLogger(__name__)

WATCHED_KINDS = (JOB_KIND, "Pod", "ConfigMap")
"""What `handlers.py` watches."""


class NothingToWatchError(Exception):
    """No namespace is left; the message names them all."""


def watchable(gateway: Gateway, namespaces: Sequence[str]) -> tuple[str, ...]:
    """Those of the namespaces in which everything may be listed; a warning names each of the others.

    While the API server does not answer, nothing is known, and none is left out. Raises NothingToWatchError.
    """
    try:
        left = tuple(namespace for namespace in namespaces if _may_be_watched(gateway, namespace))
    except GatewayError as error:
        logger.warning("whether all namespaces can be watched is not known: %s", error)
        return tuple(namespaces)
    if not left:
        raise NothingToWatchError(f"no right to list jobs, pods and ConfigMaps in {', '.join(namespaces)}")
    return left


def _may_be_watched(gateway: Gateway, namespace: str) -> bool:
    forbidden = [kind for kind in WATCHED_KINDS if not gateway.may_list(kind, namespace)]
    if forbidden:
        kinds = ", ".join(forbidden)
        logger.warning("namespace %s is left out until the next start: no right to list %s in it", namespace, kinds)
    return not forbidden


FORBIDDEN = 403

BLOCKED_SECONDS = 60.0
"""So long a start waits for a right to be given back; the next start leaves the namespace out."""


def _is_no_attempt(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Request attempt")


# kopf logs every attempt, one every few seconds for as long as a right is missing; here it is logged once.
logging.getLogger("kopf._cogs.clients.watching").addFilter(_is_no_attempt)

Watch = tuple[str, str]
"""Plural name of what is watched, and the namespace; empty for all."""


class EndlessPauses:
    """Pauses between a request's attempts, without an end: a watch that is given up would end the whole process."""

    def __init__(self, *pauses: float) -> None:
        """`pauses` in seconds; the last one is repeated."""
        self._pauses = pauses

    def __iter__(self) -> Iterator[float]:
        yield from self._pauses
        while True:
            yield self._pauses[-1]


class Watches:
    """The state of each watch. For the event loop's thread."""

    def __init__(
        self,
        plurals: Sequence[str],
        namespaces: Sequence[str],
        changed: Callable[[str, str, bool], None],
        listed: Callable[[str, str], None],
        clock: Callable[[], float],
    ) -> None:
        """`namespaces` is empty for all. `changed` is called with plural, namespace and whether that watch stands,
        `listed` when a watch begins again, which does not show what went meanwhile. `clock` gives seconds that never
        leap.
        """
        self._changed = changed
        self._relisted = listed
        self._clock = clock
        self._wanted = frozenset((plural, namespace) for plural in plurals for namespace in namespaces or ("",))
        self._seen: set[Watch] = set()
        self._failing: dict[Watch, str] = {}
        self._refused_since: float | None = None
        for plural, namespace in self._wanted:
            changed(plural, namespace, False)

    @property
    def complete(self) -> bool:
        """Whether every watch has stood at least once: only then is anything known of the cluster."""
        return self._wanted <= self._seen

    @property
    def failing(self) -> dict[Watch, str]:
        """Why, of each watch that does not stand now."""
        return dict(self._failing)

    @property
    def ready(self) -> bool:
        """Whether the cluster is seen: everything at first, then at least in part."""
        return self.complete and len(self._failing) < len(self._wanted)

    def check(self) -> None:
        """Raises RuntimeError if one refused watch keeps all the others from their start, and will: no job
        has a round before everything was listed once."""
        since = self._refused_since
        if not self.complete and since is not None and self._clock() - since > BLOCKED_SECONDS:
            raise RuntimeError(f"the start waits for {_listed(self._failing)}")

    def answered(self, url: URL, status: int) -> None:
        """The API server answered a request of kopf's."""
        watch = self._watch_of(url)
        if watch is None:
            return
        if status >= 400:
            if status == FORBIDDEN and self._refused_since is None:
                self._refused_since = self._clock()
            self._fails(watch, f"HTTP {status}")
        elif "watch" in url.query:
            self._stands(watch)
        elif "continue" not in url.query:
            self._relisted(*watch)

    def unanswered(self, url: URL, error: BaseException) -> None:
        """A request of kopf's had no answer."""
        watch = self._watch_of(url)
        if watch is not None and not isinstance(error, asyncio.CancelledError):
            self._fails(watch, "no answer")

    def trace(self) -> aiohttp.TraceConfig:
        """What makes an HTTP session report its requests here."""
        config = aiohttp.TraceConfig()

        async def end(session: Any, context: Any, params: aiohttp.TraceRequestEndParams) -> None:
            self.answered(params.url, getattr(params.response, "refused", 0) or params.response.status)

        async def fail(session: Any, context: Any, params: aiohttp.TraceRequestExceptionParams) -> None:
            if isinstance(params.exception, RefusedError):
                self.answered(params.url, params.exception.status)
            else:
                self.unanswered(params.url, params.exception)

        config.on_request_end.append(end)
        config.on_request_exception.append(fail)
        return config

    # --- inside ---------------------------------------------------------------------------------------------

    def _stands(self, watch: Watch) -> None:
        news = watch in self._failing or watch not in self._seen
        self._seen.add(watch)
        if self._failing.pop(watch, None):
            logger.warning("%s goes again", _name(watch))
        if news:
            self._changed(*watch, True)
        if not self._failing:
            self._refused_since = None

    def _fails(self, watch: Watch, why: str) -> None:
        if self._failing.get(watch) != why:
            logger.warning("%s: %s; trying again until it goes", _name(watch), why)
        self._failing[watch] = why
        self._changed(*watch, False)

    def _watch_of(self, url: URL) -> Watch | None:
        """Which of those that are wanted a request belongs to."""
        *_, before, namespace, plural = ("", "", *url.path.split("/"))
        watch = (plural, namespace if before == "namespaces" else "")
        return watch if watch in self._wanted else None


def _name(watch: Watch) -> str:
    plural, namespace = watch
    return f"watching {plural} in {f'namespace {namespace}' if namespace else 'all namespaces'}"


def _listed(failing: Collection[Watch]) -> str:
    return ", ".join(_name(watch) for watch in sorted(failing))
