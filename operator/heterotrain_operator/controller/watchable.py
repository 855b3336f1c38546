"""Which of the namespaces that are to be watched can be.

kopf calls no handler before everything that it watches was listed once: one namespace that was deleted, and the Role in
it, would keep the operator from the jobs of all the others.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from heterotrain_operator.clusters.kube.api_server.gateway import JOB_KIND, Gateway, GatewayError

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
