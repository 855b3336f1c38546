"""One operator acts at a time: the holder of a Lease, and only while it is sure to hold it.

The election is the Kubernetes client's. What is added is a fence, so that a process that was paused past its Lease
finds out before its next write, not after it; and giving the Lease back in the end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from kubernetes.client import ApiClient, ApiException, CoordinationV1Api
from kubernetes.leaderelection.electionconfig import Config
from kubernetes.leaderelection.leaderelection import LeaderElection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock
from urllib3.exceptions import HTTPError

logger = logging.getLogger(__name__)

LEASE_SECONDS = 15
RENEW_DEADLINE_SECONDS = 10
RETRY_SECONDS = 2
"""The same as in Kubernetes' own components. The difference between the first two is more than a request takes."""


def _is_trouble(record: logging.LogRecord) -> bool:
    return record.getMessage().startswith(("Failed", "Error"))


# The library logs every renewal at the same level as every refusal.
logging.getLogger("leaderelection").addFilter(_is_trouble)


class NotLeadingError(Exception):
    """Another replica may lead by now; this one must not write."""


class Leadership:
    """Whether this process may act. `run` keeps asking for the Lease in a thread of its own."""

    def __init__(
        self,
        client: ApiClient,
        *,
        name: str,
        namespace: str,
        identity: str,
        on_change: Callable[[bool], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_change` is called in the thread of `run`; `clock` must go on while the process is stopped."""
        self._lock = LeaseLock(name, namespace, identity)
        self._lock.api_instance = CoordinationV1Api(client)
        self._election = LeaderElection(
            Config(self._lock, LEASE_SECONDS, RENEW_DEADLINE_SECONDS, RETRY_SECONDS, lambda: None, lambda: None)
        )
        self.identity = identity
        self._on_change = on_change
        self._clock = clock
        self._led = False
        self._held_until = clock()
        self._stopped = threading.Event()

    @property
    def leading(self) -> bool:
        """Whether this process holds the Lease, for long enough that a request is over before it ends."""
        return self._clock() < self._held_until

    def check(self) -> None:
        """The fence. Raises NotLeadingError."""
        if not self.leading:
            raise NotLeadingError(f"{self.identity} does not hold the Lease any more")

    def run(self) -> None:
        """Acquire and renew until `stop`; then give the Lease back."""
        while not self._stopped.is_set():
            self.ask()
            self._stopped.wait(RETRY_SECONDS)
        self._give_back()

    def ask(self) -> None:
        """Acquire or renew the Lease once, and report a change of who leads."""
        asked = self._clock()
        granted = self._granted()
        if not granted and self._held_by_another():
            self._held_until = asked  # "no answer" may be waited out, a refusal may not
        if not self.leading:
            self._report(False)  # also if it is held again: another may have held it in between
        if granted:
            self._held_until = asked + RENEW_DEADLINE_SECONDS
            self._report(self.leading)

    def stop(self) -> None:
        """End `run`."""
        self._stopped.set()

    # --- inside ---------------------------------------------------------------------------------------------

    def _report(self, leads: bool) -> None:
        if leads != self._led:
            self._led = leads
            logger.info("%s %s", self.identity, "leads" if leads else "does not lead any more")
            self._on_change(leads)

    def _granted(self) -> bool:
        try:
            return bool(self._election.try_acquire_or_renew())
        except (HTTPError, ApiException) as error:
            logger.warning("the Lease cannot be asked for: %s", error)
            return False

    def _held_by_another(self) -> bool:
        """Whether the Lease as it was last read names somebody else, who may act by now."""
        record = self._election.observed_record
        return record is not None and record.holder_identity not in (None, self.identity)

    def _give_back(self) -> None:
        """Let the next replica lead at once, not only when the Lease has run out."""
        if not self.leading:
            return
        self._held_until = self._clock()
        try:
            found, record = self._lock.get(self._lock.name, self._lock.namespace)
            if found and record.holder_identity == self.identity:
                record.holder_identity = None
                self._lock.update(self._lock.name, self._lock.namespace, record)
        except (HTTPError, ApiException) as error:
            logger.warning("the Lease runs out by itself: %s", error)
        self._report(False)
